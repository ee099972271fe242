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
from pipeline.study.small_run import CONVNET, IMAGES, SEQUENTIAL, Entry, SmallRun, perform, same_everywhere

TOLERANCE = 1e-3  # of stacked clients, whose sums are taken in another order; relative to the size of what is compared
_WORSE = 1.05  # times the loss after round 1 may be that after round 8, as some entries hardly learn in eight rounds
_FLOOR = 1e-6  # numbers that are all smaller are compared as if they were as large as this
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
"""On which a method is tried: the first one that has its groups."""


class Failed(Exception):
    """A test fails; the message says what was found."""


def check_training(kind: str, name: str, given: Entry, other: Entry | None = None) -> Iterator[tuple[str, bool, str]]:
    """Test a method on a backbone, or a backbone under FedAvg; yield test, whether it passes, and what it saw.

    Raises :class:`UserError` if there is no such entry or option. `other` is the other one of the two; None takes one
    that fits.
    """
    entry = {"name": name, **registry_of(kind).get(name).smoke, **given}
    registry_of(kind).create(name, **options(entry))
    with TemporaryDirectory() as folder, same_everywhere():
        trial = Trial(kind, entry, other, Path(folder))
        for test, carry_out in TESTS.items():
            passed = False
            try:
                said, passed = carry_out(trial), True
            except (Failed, UserError) as error:
                said = str(error)
            except Exception as error:
                said = error_line(error)
            yield test, passed, said
            if test == "fits" and not passed:  # there is nothing to try after it
                return


@dataclass
class Trial:
    """A method or a backbone under test, and the other of the two, if somebody chose it."""

    kind: str
    entry: Entry
    other: Entry | None
    folder: Path
    done: dict[tuple[str, str], Path | str] = field(default_factory=dict)

    @cached_property
    def probe(self) -> SmallRun:
        """The run that is tried: five uneven clients, of whom three take part in each of three rounds."""
        method = self.entry if self.kind == "method" else self.other or {"name": "fedavg"}
        if chosen := self.entry if self.kind == "backbone" else self.other:
            return _probe(method, chosen)
        reason = None
        for backbone in _BACKBONES:
            try:
                _parts(probe := _probe(method, backbone))
                return probe
            except UserError as error:
                reason = error
        names = ", ".join(one["name"] for one in _BACKBONES)
        raise UserError(f"none of {names} fits ({reason}); name another: --with BACKBONE")

    def perform(self, way: str, probe: SmallRun) -> Path:
        """Return the folder of a run, which is carried out once."""
        key = probe.name, way
        if key not in self.done:
            try:
                self.done[key] = perform(probe, way, self.folder)
            except Exception as error:
                self.done[key] = type(error).__name__
                raise
        done = self.done[key]
        if isinstance(done, str):
            raise Failed(f"not tried, as a run that it needs fails: {done}")
        return done

    def described(self) -> str:
        """Check that the class says what it is, and what each option does."""
        cls = registry_of(self.kind).get(self.entry["name"])
        if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):  # which a dataclass has by itself
            raise Failed(f"{cls.__name__} has no docstring: its first line is what `pfl list` shows")
        infos = describe_options(cls)
        if mute := [info.name for info in infos if len(info.help) < 10]:
            raise Failed(f"option {mute[0]!r} has no help that says what it is")
        own = len(inspect.get_annotations(cls).keys() & {info.name for info in infos})
        return f"{cls.__doc__.splitlines()[0]} {own} option{'' if own == 1 else 's'} of its own"

    def fits(self) -> str:
        """Check that the backbone has the groups that the method names, and takes the dataset."""
        run, (_, _, roles) = self.probe.run, _parts(self.probe)
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
        first, last = (float(losses[rounds == one].mean()) for one in (1, 8))
        if not np.isfinite(losses).all() or last > _WORSE * first:
            raise Failed(f"the loss on test samples goes from {first:.3f} after round 1 to {last:.3f} after round 8")
        return f"loss on test samples {first:.3f} after round 1, {last:.3f} after round 8"

    def same_bytes(self, name: str, way: str, said: str) -> str:
        """Check that a run leaves the files of the first run, although global generators have other states by then."""
        first = self.perform(SEQUENTIAL, self.probe)
        for draw in (random.random, np.random.rand, lambda: torch.rand(())):
            draw()
        again = self.perform(way, replace(self.probe, name=name))
        for file in ("rounds.parquet", "weights.safetensors"):
            if (first / file).read_bytes() != (again / file).read_bytes():
                what, size = _deviation(first, again)
                raise Failed(f"{file} is another: {what} deviates by {size:.1g}")
        return f"{said} the same bytes"

    def stacked(self, probe: SmallRun | None = None, of: str = "") -> str:
        """Check that clients trained stacked, as on a GPU, end with the state of clients trained one by one, but for
        rounding."""
        probe = probe or self.probe
        what, size = _deviation(self.perform(SEQUENTIAL, probe), self.perform("stacked", probe), of)
        if size > TOLERANCE:
            raise Failed(f"{what} deviates by {size:.1g}, more than {TOLERANCE:g}: steps depend on values?")
        return f"as on a GPU, within {size:.0e} of one by one"

    def state(self, probe: SmallRun | None = None) -> str:
        """Check that the final state has the names, shapes and types of the initial one, and its owners."""
        probe = probe or self.probe
        weights = load_file(self.perform(SEQUENTIAL, probe) / "weights.safetensors")
        initial, _, roles = _parts(probe)
        for client in {entry.split(".")[1] for entry in weights if entry.startswith("client.")}:
            if gone := [entry for entry in sorted(roles.personal) if f"client.{client}.{entry}" not in weights]:
                raise Failed(f"client {client} has lost {', '.join(gone[:3])}")
        for entry, tensor in weights.items():
            own = entry.startswith("client.")
            plain = entry.split(".", 2)[2] if own else entry
            if plain in initial and (found := _form(tensor)) != (wanted := _form(initial[plain])):
                raise Failed(f"{entry} has become {found}, and was {wanted}")
            if own and plain in initial and plain not in roles.personal:
                raise Failed(f"{entry} is kept by a client, and {plain} is not personal")
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
            initial, groups, _ = _parts(probe)
        except UserError as error:
            return f"not tried: {error}"
        if not (count := len(initial.keys() - groups.parameters - groups.fixed)):
            return "the backbone has none"
        self.state(probe)
        close = self.stacked(probe, "loss")  # norms of few samples magnify what rounding does to states
        return f"{count} of {probe.backbone['name']}; {close}"

    def one_sample(self) -> str:
        """Check clients with a single sample, one of which takes part in a round."""
        training, few = {"rounds": 2, "sample_rate": 0.2, "lr": 0.01}, {"name": "iid", "train_limit": 1}
        try:
            self.perform(SEQUENTIAL, replace(self.probe, name="one sample", partition=few, training=training))
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
"""By name, in the order in which a mistake is best found."""


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


def _parts(probe: SmallRun) -> tuple[dict[str, Tensor], Groups, Roles]:
    """Return the model's state as it begins, without content, its groups, and who owns what; refuse what cannot be."""
    run, dataset = probe.run, DATASETS.create(probe.dataset["name"])
    method = METHODS.create(run.method, **run.options("method"))
    with torch.device("meta"):
        backbone = BACKBONES.create(run.backbone, **run.options("backbone"))
        model, groups = backbone.create(dataset.shape, dataset.classes, 0, method.extend, dataset.kind)
    groups = groups_of(method, groups)
    return dict(model.state_dict()), groups, roles_of(method, groups)


def _deviation(first: Path, other: Path, of: str = "") -> tuple[str, float]:
    """Return by how much two runs deviate, relative to the first, and in what: losses, or the state of somebody."""
    sides: list[dict[str, list[Tensor]]] = []
    for folder in (first, other):
        table, _ = read_table(folder / "rounds.parquet", "rounds/2")
        sides.append(parts := {"loss": [torch.from_numpy(table["loss"].to_numpy().copy())]})
        for name, tensor in sorted(load_file(folder / "weights.safetensors").items()):
            owner = ".".join(name.split(".")[: 2 if name.startswith("client.") else 1])
            parts.setdefault(f"state of {owner}", []).append(tensor.double().flatten())
    gaps = {}
    for name in filter(lambda name: name.startswith(of), {**sides[0], **sides[1]}):
        one, two = (torch.cat(side.get(name, [torch.empty(0)])) for side in sides)
        same = one.shape == two.shape
        gaps[name] = float((one - two).norm() / one.norm().clamp(min=_FLOOR)) if same else math.inf
    worst = max(gaps, key=lambda name: gaps[name])
    return worst, gaps[worst]


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
