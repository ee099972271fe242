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
    asked: Run,
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
    name, options = asked.encoder
    samples = read_samples(dataset, scratch)
    seen, kept = _divided(samples, asked)
    held = [seen], [np.setdiff1d(np.arange(len(samples)), seen)]
    data = FederatedData.from_samples(samples, Assignment(*held, "features", 0, own_split=True), select_device(device))
    backbone = BACKBONES.create(name, **options, pretrained=str(weights) if weights else None)
    trained, said = None, ""
    with preparing(show, scratch):
        if pretrain := asked.features.get("pretrain"):
            result = _pretrained(data, backbone, pretrain)
            trained = result.weights
            right = result.correct.sum() / result.total.sum()
            said = f"; trained on {len(seen):,} others, it recognises {right:.1%} of these"
        inputs = Encoder(backbone, data, trained).encode_all(kept)
        write_samples(out, _encoded(samples, kept, inputs, name))
    return f"{asked.dataset}: {inputs.shape[1]:,} features of {len(kept):,} samples by {name}{said}"


def _divided(samples: Samples, asked: Run) -> tuple[Rows, Rows]:
    """Return the rows that the encoder is trained on, ascending, and the rows that are encoded."""
    rows, training = np.arange(len(samples)), np.flatnonzero(samples.train)
    if pretrain := asked.features.get("pretrain"):
        left, _ = asked.client_sample_counts((len(training), 0))
        seen = np.sort(generator(pretrain["seed"], "features").permutation(training)[left:])
        return seen, np.setdiff1d(rows, seen)
    # An encoder from a file sees no row. These rows only standardise arrays; at least one row has to be for test.
    return training[: len(training) - samples.train.all()], rows


def _pretrained(data: FederatedData, backbone: Any, pretrain: Mapping[str, Any]) -> Result:
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
    attributes = {key: Attribute(one.values[rows], one.names) for key, one in samples.attributes.items()}
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
