"""`pfl check` of a method or a backbone: the project's generic tests on it, on a few generated digits."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from pflcore.artifacts import read_table
from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.engine.phases import groups_of, roles_of
from pflcore.errors import UserError
from pflcore.faults import error_line
from pflcore.groups import Groups, Roles
from pflcore.methods import METHODS
from pflcore.options import describe_options
from pflcore.registry import registry_of
from pipeline.spec.run import options
from pipeline.study.small_run import CONVNET, IMAGES, SEQUENTIAL, Entry, SmallRun, fixed_environment, perform

TOLERANCE = 1e-3  # of stacked clients, which sum in another order; relative to the norm
_MAX_LOSS_RATIO = 1.05  # of round 8 to round 1, because some entries hardly learn in eight rounds
_FLOOR = 1e-6  # smallest norm that deviations are divided by
_LARGER: Entry = {"name": "cifar10", "stand_in": 120}
_SENSORS: Entry = {"name": "har", "stand_in": 120}
_TEXTS: Entry = {"name": "shakespeare", "stand_in": 120}
_CAREFUL: Entry = {"batch_size": 16, "lr": 0.005}  # where there may be norms, which magnify rounding
_NORMS: Entry = {"name": "lenet_bn", "channels": [4, 6], "kernel": 3, "padding": 1}
_BACKBONES: tuple[Entry, ...] = (
    CONVNET,
    {"name": "tiny_vit", "depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4, "dropout": 0.0},
    {"name": "language_transformer", "depth": 1, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12},
)
"""Backbones for the test of a method, which takes the first one with its groups."""


class Failed(Exception):
    """The error of a failed test."""


def check_training(kind: str, name: str, chosen: Entry, other: Entry | None = None) -> Iterator[tuple[str, bool, str]]:
    """Test a method on a backbone, or a backbone under FedAvg; yield test, whether it passes, and a message.

    Raises :class:`UserError` if there is no such entry or one of the `chosen` options is wrong. `other` is the backbone
    of a method, the method of a backbone; by default one that fits.
    """
    entry = {"name": name, **registry_of(kind).get(name).smoke, **chosen}
    registry_of(kind).create(name, **options(entry))
    with TemporaryDirectory() as folder, fixed_environment():
        trial = Trial(kind, entry, other, Path(folder))
        for test, function in TESTS.items():
            passed = False
            try:
                message, passed = function(trial), True
            except (Failed, UserError) as error:
                message = str(error)
            except Exception as error:
                message = error_line(error)
            yield test, passed, message
            if test == "fits" and not passed:  # there is nothing to try after it
                return


@dataclass
class Trial:
    """A method or a backbone under test; `other` is the backbone or method to test it with, if one was chosen."""

    kind: str
    entry: Entry
    other: Entry | None
    folder: Path
    done: dict[tuple[str, str], Path | str] = field(default_factory=dict)

    @cached_property
    def probe(self) -> SmallRun:
        """The run under test: five clients of unequal size, of whom three take part in each of three rounds."""
        method = self.entry if self.kind == "method" else self.other or {"name": "fedavg"}
        backbone = self.entry if self.kind == "backbone" else self.other
        if backbone:
            return _probe(method, backbone)
        for backbone in _BACKBONES:
            try:
                probe = _probe(method, backbone)
                _initial_state(probe)
                return probe
            except UserError as error:
                reason = error
        names = ", ".join(entry["name"] for entry in _BACKBONES)
        raise UserError(f"none of {names} fits ({reason}); name another: --with BACKBONE")

    def perform(self, mode: str, probe: SmallRun) -> Path:
        """Return the folder of a run, which runs once."""
        key = probe.name, mode
        if key not in self.done:
            try:
                self.done[key] = perform(probe, mode, self.folder)
            except Exception as error:
                self.done[key] = type(error).__name__
                raise
        outcome = self.done[key]
        if isinstance(outcome, str):
            raise Failed(f"not tried, as a run that it needs fails: {outcome}")
        return outcome

    def described(self) -> str:
        """Check that the class has a docstring and each option a help text."""
        cls = registry_of(self.kind).get(self.entry["name"])
        if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):  # which a dataclass has by itself
            raise Failed(f"{cls.__name__} has no docstring: its first line is what `pfl list` shows")
        infos = describe_options(cls)
        if undocumented := [info.name for info in infos if len(info.help) < 10]:
            raise Failed(f"option {undocumented[0]!r} has no help that says what it is")
        declared = len(inspect.get_annotations(cls).keys() & {info.name for info in infos})
        return f"{cls.__doc__.splitlines()[0]} {declared} option{'' if declared == 1 else 's'} of its own"

    def fits(self) -> str:
        """Check that the backbone has the groups that the method names, and takes the dataset."""
        run, (_, _, roles) = self.probe.run, _initial_state(self.probe)
        counts = {role: len(getattr(roles, role)) for role in ("shared", "personal", "generated")}
        words = ", ".join(f"{count} {role}" for role, count in counts.items() if count)
        return f"{run.method} on {run.backbone}, entries of the state: {words}"

    def trains(self) -> str:
        """Check that losses are finite and fall."""
        self.perform(SEQUENTIAL, self.probe)
        longer = {"rounds": 8, "sample_rate": 1.0, "batch_size": 10}
        probe = replace(self.probe, name="longer", partition={"name": "iid"}, training=longer, clients=3)
        table, meta = read_table(self.perform(SEQUENTIAL, probe) / "rounds.parquet", "rounds/2")
        if meta["diverged"]:
            raise Failed(f"diverged in round {meta['diverged']['round']}, at a learning rate of 0.1")
        rounds, losses = (table[name].to_numpy() for name in ("round", "loss"))
        first, last = float(losses[rounds == 1].mean()), float(losses[rounds == 8].mean())
        if not np.isfinite(losses).all() or last > _MAX_LOSS_RATIO * first:
            raise Failed(f"the loss on test samples goes from {first:.3f} after round 1 to {last:.3f} after round 8")
        return f"loss on test samples {first:.3f} after round 1, {last:.3f} after round 8"

    def same_bytes(self, name: str, mode: str, message: str) -> str:
        """Check that a run leaves the files of the first run, although global generators have other states by then."""
        first = self.perform(SEQUENTIAL, self.probe)
        _ = random.random(), np.random.rand(), torch.rand(())
        other = self.perform(mode, replace(self.probe, name=name))
        for file in ("rounds.parquet", "weights.safetensors"):
            if (first / file).read_bytes() != (other / file).read_bytes():
                part, size = _deviation(first, other)
                raise Failed(f"{file} is another: {part} deviates by {size:.1g}")
        return f"{message} the same bytes"

    def stacked(self, probe: SmallRun | None = None, prefix: str = "") -> str:
        """Check that clients trained stacked, as on a GPU, end with the state of clients trained one by one, but for
        rounding."""
        probe = probe or self.probe
        part, size = _deviation(self.perform(SEQUENTIAL, probe), self.perform("stacked", probe), prefix)
        if size > TOLERANCE:
            raise Failed(f"{part} deviates by {size:.1g}, more than {TOLERANCE:g}: steps depend on values?")
        return f"as on a GPU, within {size:.0e} of one by one"

    def state(self, probe: SmallRun | None = None) -> str:
        """Check that the final state has the names, shapes and types of the initial one, and its owners."""
        probe = probe or self.probe
        weights = load_file(self.perform(SEQUENTIAL, probe) / "weights.safetensors")
        initial, _, roles = _initial_state(probe)
        for client in {entry.split(".")[1] for entry in weights if entry.startswith("client.")}:
            if missing := [entry for entry in sorted(roles.personal) if f"client.{client}.{entry}" not in weights]:
                raise Failed(f"client {client} has lost {', '.join(missing[:3])}")
        for entry, tensor in weights.items():
            is_client = entry.startswith("client.")
            name = entry.split(".", 2)[2] if is_client else entry
            if name in initial and _type_and_shape(tensor) != _type_and_shape(initial[name]):
                raise Failed(f"{entry} has become {_type_and_shape(tensor)}, and was {_type_and_shape(initial[name])}")
            if is_client and name in initial and name not in roles.personal:
                raise Failed(f"{entry} is kept by a client, and {name} is not personal")
            if not torch.isfinite(tensor).all():
                raise Failed(f"{entry} is not finite")
        return f"{len(weights)} entries have the names, shapes and types that they began with"

    def buffers(self) -> str:
        """Check the final state on a backbone with running statistics, one by one and stacked."""
        # Larger steps magnify rounding: pFedMe's, at a rate of 0.05, from 1e-7 to 1e-2 within a round.
        training = {"rounds": 2, "batch_size": 16, "lr": 0.01, "sample_rate": 1.0}
        probe = replace(self.probe, name="buffers", training=training)
        if self.kind == "method":
            probe = replace(probe, backbone=_NORMS, dataset=IMAGES)
        try:
            initial, groups, _ = _initial_state(probe)
        except UserError as error:
            return f"not tried: {error}"
        if not (count := len(initial.keys() - groups.parameters - groups.fixed)):
            return "the backbone has none"
        self.state(probe)
        close = self.stacked(probe, "loss")  # norms of few samples magnify what rounding does to states
        return f"{count} of {probe.backbone['name']}; {close}"

    def one_sample(self) -> str:
        """Check clients with a single sample, one of which takes part in a round."""
        training, partition = {"rounds": 2, "sample_rate": 0.2, "lr": 0.01}, {"name": "iid", "train_limit": 1}
        try:
            self.perform(SEQUENTIAL, replace(self.probe, name="one sample", partition=partition, training=training))
        except UserError as error:
            return f"refused in a line: {error}"
        return "clients with one sample, one client in a round"


TESTS: dict[str, Callable[[Trial], str]] = {
    "described": Trial.described,
    "fits": Trial.fits,
    "trains": Trial.trains,
    "repeats": lambda trial: trial.same_bytes("again", SEQUENTIAL, "a second run leaves"),
    "pooled": lambda trial: trial.same_bytes("plain", "pooled", "two worker processes leave"),
    "resumed": lambda trial: trial.same_bytes("plain", "resumed", "killed, short of memory and continued, it leaves"),
    "stacked": Trial.stacked,
    "state": Trial.state,
    "buffers": Trial.buffers,
    "one sample": Trial.one_sample,
}
"""Tests by name; the first ones find a mistake most directly."""


def _probe(method: Entry, backbone: Entry) -> SmallRun:
    """Return a run on the smallest images that a backbone takes, or texts; generated in any case."""
    entry = BACKBONES.get(backbone["name"])
    if entry.takes == "text":
        return SmallRun("plain", method, backbone, _TEXTS, partition={"name": "natural", "min_samples": 1})
    if backbone in _BACKBONES:
        return SmallRun("plain", method, backbone)
    if "images" not in entry.takes:
        return SmallRun("plain", method, backbone, _SENSORS)
    if entry.predicts == "boxes":
        raise UserError(f"backbone {entry.name} is a detector, of which there are no generated samples to check it on")
    dataset = _LARGER
    with suppress(UserError), torch.device("meta"):
        BACKBONES.create(backbone["name"], **options(backbone)).build(DATASETS.create(IMAGES["name"]).shape, 2)
        dataset = IMAGES
    return SmallRun("plain", method, backbone, dataset, training=_CAREFUL)


def _initial_state(probe: SmallRun) -> tuple[dict[str, Tensor], Groups, Roles]:
    """Return initial state (without values), groups and roles. Raises :class:`UserError` if the parts do not fit."""
    run, dataset = probe.run, DATASETS.create(probe.dataset["name"])
    method = METHODS.create(run.method, **run.options("method"))
    with torch.device("meta"):
        backbone = BACKBONES.create(run.backbone, **run.options("backbone"))
        model, groups = backbone.create(dataset.shape, dataset.classes, 0, method.extend, dataset.kind)
    groups = groups_of(method, groups)
    return dict(model.state_dict()), groups, roles_of(method, groups)


def _deviation(first: Path, other: Path, prefix: str = "") -> tuple[str, float]:
    """Return in what two runs deviate most (losses, or the state of a client or the server), and the relative error."""
    sides: list[dict[str, list[Tensor]]] = []
    for folder in (first, other):
        table, _ = read_table(folder / "rounds.parquet", "rounds/2")
        parts = {"loss": [torch.from_numpy(table["loss"].to_numpy().copy())]}
        for name, tensor in sorted(load_file(folder / "weights.safetensors").items()):
            owner = ".".join(name.split(".")[: 2 if name.startswith("client.") else 1])
            parts.setdefault(f"state of {owner}", []).append(tensor.double().flatten())
        sides.append(parts)
    gaps = {}
    for name in filter(lambda name: name.startswith(prefix), {**sides[0], **sides[1]}):
        left, right = (torch.cat(side.get(name, [torch.empty(0)])) for side in sides)
        gaps[name] = math.inf
        if left.shape == right.shape:
            gaps[name] = float((left - right).norm() / left.norm().clamp(min=_FLOOR))
    worst = max(gaps, key=lambda name: gaps[name])
    return worst, gaps[worst]


def _type_and_shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
