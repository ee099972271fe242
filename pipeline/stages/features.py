"""The features stage: it encodes the samples of a dataset with a frozen encoder, once for all runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pflcore.backbones import BACKBONES
from pflcore.data.assignment import Assignment
from pflcore.data.federation import FederatedData
from pflcore.data.preparation import preparing, track
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.data.samples import Attribute, Rows, Samples
from pflcore.engine import Result, select_device, train
from pflcore.engine.device import one_thread
from pflcore.engine.encoder import Encoder
from pflcore.errors import UserError
from pflcore.method import Method
from pflcore.seeds import generator
from pflcore.settings import Evaluation, Training
from pipeline.spec.run import Run


def run(
    requested: Run,
    dataset: Path,
    weights: Path | None = None,
    *,
    out: Path,
    scratch: Path | None = None,
    device: str = "auto",
    show: Callable[[str, int, int], None] = lambda *_: None,
) -> str:
    """Encode the samples of `dataset` with the encoder of the run and write them to `out`; return a line to show.

    Samples on which this stage trains the encoder are left out. `scratch` and `show` are as in the data stage.
    """
    name, options = requested.encoder
    samples = read_samples(dataset, scratch)
    pretraining_rows, encoded_rows = _split_rows(samples, requested)
    test_rows = np.setdiff1d(np.arange(len(samples)), pretraining_rows)
    assignment = Assignment([pretraining_rows], [test_rows], "features", 0, own_split=True)
    data = FederatedData.from_samples(samples, assignment, select_device(device))
    backbone = BACKBONES.create(name, **options, pretrained=str(weights) if weights else None)
    trained, remark = None, ""
    with preparing(show, scratch):
        if pretrain := requested.features.get("pretrain"):
            result = _pretrain(data, backbone, pretrain)
            trained = result.weights
            accuracy = result.correct.sum() / result.total.sum()
            remark = f"; trained on {len(pretraining_rows):,} others, it recognises {accuracy:.1%} of these"
        inputs = Encoder(backbone, data, trained).encode_all(encoded_rows)
        write_samples(out, _encoded(samples, encoded_rows, inputs, name))
    return f"{requested.dataset}: {inputs.shape[1]:,} features of {len(encoded_rows):,} samples by {name}{remark}"


def _split_rows(samples: Samples, requested: Run) -> tuple[Rows, Rows]:
    """Return the rows that the encoder is trained on, ascending, and the rows that are encoded."""
    rows, training = np.arange(len(samples)), np.flatnonzero(samples.train)
    if pretrain := requested.features.get("pretrain"):
        first, _ = requested.client_sample_counts((len(training), 0))
        pretraining_rows = np.sort(generator(pretrain["seed"], "features").permutation(training)[first:])
        return pretraining_rows, np.setdiff1d(rows, pretraining_rows)
    # An encoder from a file sees no row. These rows only standardise arrays; at least one row has to be for test.
    return training[: len(training) - samples.train.all()], rows


def _pretrain(data: FederatedData, backbone: Any, pretrain: Mapping[str, Any]) -> Result:
    """Train an encoder as a federation of one client, a round per epoch. Raises :class:`UserError` if it diverges."""
    epochs = pretrain["epochs"]
    advance = track("training the encoder", epochs)
    settings = Training(rounds=epochs, sample_rate=1.0, local_epochs=1, batch_size=64, lr=pretrain["lr"], momentum=0.9)
    with one_thread(data.device):
        result = train(
            data=data,
            backbone=backbone,
            method=Method(),  # FedAvg; with one client, averaging changes nothing
            training=settings,
            evaluation=Evaluation(every=epochs, window=0, curve_every=0),
            seed=pretrain["seed"],
            executor="sequential",
            on_round=lambda _: advance(1),
        )
    if result.diverged:
        raise UserError(
            f"features: the encoder diverged in epoch {result.diverged.round}; choose a smaller pretrain.lr"
        )
    return result


def _encoded(samples: Samples, rows: Rows, inputs: np.ndarray, name: str) -> Samples:
    attributes = {key: Attribute(old.values[rows], old.names) for key, old in samples.attributes.items()}
    return replace(
        samples,
        inputs=inputs,
        labels=samples.labels[rows],
        train=samples.train[rows],
        mean=(),
        std=(),
        source=f"{samples.source}, encoded by {name}",
        size=None,
        attributes=attributes,
        boxes=None,
        standardise=True,
    )
