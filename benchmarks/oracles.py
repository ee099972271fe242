"""Comparison of our engine with other code on the same samples, initial weights, cohorts and batches.

    python benchmarks/oracles.py                             # plain loops (benchmarks/oracle/plain.py)
    python benchmarks/oracles.py --pflib FOLDER              # a copy of PFLlib
    python benchmarks/oracles.py --fedtp FOLDER --dataset cifar10 --generated 400 --lr 0.01     # a copy of FedTP's code
    python benchmarks/oracles.py --adapter mine.py           # your own code, as benchmarks/oracle/setting.py describes
    python benchmarks/oracles.py --adapter mine.py --methods ditto --rounds 50 --dataset mnist --data data --curve

For each method it prints both accuracies after the last round, the largest difference of any round, the number of
clients whose count of right predictions ever differs, and the largest difference of an entry of a client's last model.
If only the order of sums differs, entries agree to 1e-7 after a round. Training amplifies such differences slowly, or
at once if the input of a ReLU is that close to zero.
The exit code is 1 if an accuracy differs by more than a tenth of a point.
"""

import argparse
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from oracle import fedtp, pflib, plain
from oracle.setting import Setting

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.datasets import DATASETS
from pflcore.datasets._stand_in import stand_in, stand_in_counts
from pflcore.engine import train
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.errors import UserError
from pflcore.groups import Tensors, pick
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS, partition
from pflcore.settings import Evaluation, Training

ENOUGH = 0.1  # points of accuracy
Trajectory = tuple[np.ndarray, list[Tensors]]
"""The course of a training: right predictions (rounds, clients), and the clients' models at the end."""


@dataclass(frozen=True, kw_only=True)
class Models(Analysis):
    """Keeps the model that each client is measured with in `kept`, which is not an option."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kept", [])

    def check(self, subject: Subject) -> None: ...

    def findings(self, subject: Subject) -> Iterator[Finding]:
        names, clients = subject.groups.group_of, range(subject.trainer.data.clients)
        vars(self)["kept"].extend(pick(subject.measured(client), names) for client in clients)
        return iter(())


def compare(chosen: argparse.Namespace) -> int:
    """Print the table of differences; return the exit code."""
    adapter = adapter_of(chosen)
    if unknown := sorted(set(chosen.methods or ()) - adapter.METHODS.keys()):
        raise UserError(f"the adapter has no {', '.join(unknown)}; it has {', '.join(adapter.METHODS)}")
    torch.set_num_threads(1)
    setting, worst = setting_of(chosen), 0.0
    total = sum(map(len, setting.data.test))
    print("| method | ours (%) | theirs (%) | largest difference of a round | clients that differ | of an entry |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for name in chosen.methods or adapter.METHODS:
        options = adapter.METHODS[name]
        (ours, own), (theirs, others) = our_run(name, options, setting), their_run(adapter, name, options, setting)
        shares = [100 * correct.sum(1) / total for correct in (ours, theirs)]
        gap = float(np.nanmax(abs(shares[0] - shares[1])))
        worst = max(worst, gap)
        differ = int(((ours != theirs) & ~np.isnan(theirs)).any(0).sum())
        cells = f"{shares[0][-1]:.2f} | {shares[1][-1]:.2f} | {gap:.2f} | {differ} of {setting.clients}"
        print(f"| {name} | {cells} | {largest(own, others):.1e} |", flush=True)
        for round_, (one, other) in enumerate(zip(*shares, strict=True) if chosen.curve else (), 1):
            known = " | " if np.isnan(other) else f"{other:.2f} | {abs(one - other):.2f}"
            print(f"|   round {round_} | {one:.2f} | {known} | | |", flush=True)
    return int(worst > ENOUGH)


def adapter_of(chosen: argparse.Namespace) -> Any:
    if chosen.pflib:
        return pflib.load(chosen.pflib)
    if chosen.fedtp:
        return fedtp.load(chosen.fedtp, chosen.backbone)
    if chosen.adapter is None:
        return plain
    if not chosen.adapter.is_file():
        raise UserError(f"{chosen.adapter}: no such file")
    names = runpy.run_path(str(chosen.adapter))
    if missing := [name for name in ("METHODS", "run") if name not in names]:
        raise UserError(f"{chosen.adapter}: has no {' and no '.join(missing)}; see benchmarks/oracle/setting.py")
    return SimpleNamespace(**names)


def setting_of(chosen: argparse.Namespace) -> Setting:
    dataset, size = DATASETS.create(chosen.dataset), chosen.generated
    samples = stand_in(dataset, *stand_in_counts(size)) if size else dataset.load(chosen.data / dataset.name)
    scheme = PARTITIONS.create("dirichlet", alpha=chosen.alpha, train_limit=chosen.train_limit)
    assignment = partition(scheme, samples, chosen.clients, chosen.seed)
    data = FederatedData.from_samples(samples, assignment, torch.device("cpu"))
    how = {name: getattr(chosen, name) for name in ("rounds", "sample_rate", "batch_size", "lr", "momentum")}
    options: dict[str, Any] = {"kernel": 3, "padding": 1} if min(data.shape[1:]) < 16 else {}
    if chosen.backbone == "tiny_vit":
        options = {"depth": 2, "dropout": 0.0}  # other code draws other dropout masks
    backbone = BACKBONES.create(chosen.backbone, **options)
    model, groups = backbone.create(data.shape, data.classes, chosen.seed)
    return Setting(data, backbone, model, groups, Training(local_epochs=chosen.epochs, **how), chosen.seed)


def our_run(name: str, options: dict[str, Any], setting: Setting) -> Trajectory:
    models = Models()
    result = train(
        data=setting.data,
        backbone=setting.backbone,
        method=METHODS.create(name, **options),
        training=setting.training,
        evaluation=Evaluation(every=1, window=setting.training.rounds, curve_every=0),
        seed=setting.seed,
        analyses={"models": models},
    )
    if result.diverged:
        raise UserError(f"{name}: {result.diverged}; take a smaller --lr")
    return result.correct.reshape(-1, setting.clients), vars(models)["kept"]


def their_run(adapter: Any, name: str, options: dict[str, Any], setting: Setting) -> Trajectory:
    rounds: list[Sequence[float]] = []
    models: list[Tensors] = []
    for after in adapter.run(name, options, setting):
        rounds.append([np.nan] * setting.clients if after.correct is None else after.correct)
        if len(rounds) == setting.training.rounds:
            models = list(after.models())
    correct = np.array(rounds, float)
    if correct.shape != (setting.training.rounds, setting.clients):
        raise UserError(f"{name}: the adapter gave counts of shape {correct.shape}, not (rounds, clients)")
    return correct, models


def largest(ours: list[Tensors], theirs: list[Tensors]) -> float:
    """Return the largest difference of an entry; NaN if there are no models."""
    gaps = [
        float((one[name] - entry).abs().max())
        for one, other in zip(ours, theirs, strict=True)
        for name, entry in other.items()
        if name in one and one[name].is_floating_point()
    ]
    return max(gaps, default=float("nan"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--adapter", type=Path, help="a Python file")
    source.add_argument("--fedtp", type=Path, help="folder of a copy of FedTP's code")
    source.add_argument("--pflib", type=Path, help="folder of a copy of PFLlib")
    parser.add_argument("--methods", nargs="+", help="some of those that the adapter has")
    parser.add_argument("--curve", action="store_true", help="print every round")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where raw data lies")
    parser.add_argument("--generated", type=int, help="so many generated images in place of the dataset's own")
    parser.add_argument("--backbone", choices=("convnet", "tiny_vit"), default="convnet")
    parser.add_argument("--alpha", type=float, default=0.3, help="of the Dirichlet partition")
    parser.add_argument("--momentum", type=float, default=0.0, help="of the clients' SGD; with --fedtp")
    parser.add_argument("--train-limit", type=int, help="most training samples of a client")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--sample-rate", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    try:
        return compare(parser.parse_args())
    except UserError as error:
        print(f"oracles: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
