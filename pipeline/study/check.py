"""`pfl check` of a method or a backbone: the project's generic tests on it, on a few generated digits."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from pflcore.artifacts import read_table
from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.errors import UserError
from pflcore.faults import in_a_line
from pflcore.groups import Groups, Roles
from pflcore.methods import METHODS, Method
from pflcore.options import describe_options
from pflcore.ownership import groups_of, roles_of
from pflcore.registry import registry_of
from pipeline.spec.run import options
from pipeline.study.small_run import (
    POOLED,
    RESUMED,
    SEQUENTIAL,
    STACKED,
    Numbers,
    SmallRun,
    differences,
    perform,
    same_everywhere,
)

Component = dict[str, Any]
TOLERANCE = 1e-3  # of stacked clients, whose sums are taken in another order; relative to the largest number
_WORSE = 1.05  # times as large as after the first round may a loss be after the eighth, of who learns little in eight
_IMAGES: Component = {"name": "digits", "stand_in": 120}
_LARGER: Component = {"name": "cifar10", "stand_in": 120}
_TEXTS: Component = {"name": "shakespeare", "stand_in": 120}
_CAREFUL: Component = {"batch_size": 16, "lr": 0.005}  # where there may be norms, which magnify rounding
_BACKBONES: tuple[Component, ...] = (
    {"name": "convnet", "channels": [4, 6], "hidden": [12], "kernel": 3, "padding": 1},
    {"name": "tiny_vit", "depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4, "dropout": 0.0},
    {"name": "language_transformer", "depth": 1, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12},
)
"""On which a method is tried: the first one that has its groups."""
_NORMS: Component = {"name": "lenet_bn", "channels": [4, 6], "kernel": 3, "padding": 1}


@dataclass(frozen=True)
class Verdict:
    """What one test found: whether all is well, and in a line what was seen."""

    test: str
    passed: bool
    said: str


class Failed(Exception):
    """A test does not pass; the message says what was found."""


def check_training(kind: str, name: str, given: Component, other: Component | None = None) -> Iterator[Verdict]:
    """Test a method on a backbone, or a backbone under FedAvg. Whatever goes wrong is a verdict, in a line.

    Args:
        kind: ``"method"`` or ``"backbone"``.
        given: Options.
        other: The other one of the two; None takes one that fits.

    Raises:
        UserError: There is no such entry, or its options are others.
    """
    cls = registry_of(kind).get(name)
    entry = {"name": name, **cls.smoke, **given}
    registry_of(kind).create(name, **options(entry))
    with TemporaryDirectory() as folder, same_everywhere():
        for test, carry_out in Trial(kind, entry, other, Path(folder)).tests.items():
            try:
                verdict = Verdict(test, True, carry_out())
            except (Failed, UserError) as error:
                verdict = Verdict(test, False, str(error))
            except Exception as error:
                verdict = Verdict(test, False, in_a_line(error))
            yield verdict
            if test == "fits" and not verdict.passed:  # there is nothing to try after it
                return


@dataclass
class Trial:
    """A method and a backbone under test.

    Attributes:
        kind: Which of them is.
        entry: It, with its options.
        other: The other one, if somebody chose it.
    """

    kind: str
    entry: Component
    other: Component | None
    folder: Path
    numbers: dict[str, Numbers] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def tests(self) -> dict[str, Callable[[], str]]:
        """By name, in the order in which a mistake is best found."""
        return {
            "described": self.described,
            "fits": self.fits,
            "trains": self.trains,
            "repeats": lambda: self.same_bytes("again", SEQUENTIAL),
            "pooled": lambda: self.same_bytes("plain", POOLED),
            "resumed": lambda: self.same_bytes("plain", RESUMED),
            "stacked": lambda: self.close("plain", self.probe, "loss", "state"),
            "state": lambda: self.state("plain", self.probe),
            "buffers": self.buffers,
            "one sample": self.one_sample,
        }

    def described(self) -> str:
        """It says of itself what it is, and of each option what it does."""
        cls = registry_of(self.kind).get(self.entry["name"])
        if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):  # which a dataclass has by itself
            raise Failed(f"{cls.__name__} has no docstring: its first line is what `pfl list` shows")
        infos = describe_options(cls)
        if mute := [info.name for info in infos if len(info.help) < 10]:
            raise Failed(f"option {mute[0]!r} has no help that says what it is")
        own = len(inspect.get_annotations(cls).keys() & {info.name for info in infos})
        return f"{cls.__doc__.splitlines()[0]} {own} option{'' if own == 1 else 's'} of its own"

    def fits(self) -> str:
        """The groups that the method names are in the backbone, and the backbone takes what there is."""
        roles = self.roles(self.probe)
        parts = [
            f"{len(names)} {role}" for role in ("shared", "personal", "generated") if (names := getattr(roles, role))
        ]
        return f"{self.method['name']} on {self.backbone['name']}, entries of the state: {', '.join(parts)}"

    def trains(self) -> str:
        """Losses are finite and fall."""
        self.perform("plain", SEQUENTIAL, self.probe)
        longer = {"rounds": 8, "sample_rate": 1.0, "batch_size": 10}
        probe = replace(self.probe, partition={"name": "iid"}, training=longer, clients=3)
        self.perform("longer", SEQUENTIAL, probe)
        table, meta = read_table(self.place("longer", SEQUENTIAL) / "rounds.parquet", "rounds/2")
        if meta["diverged"]:
            raise Failed(f"diverged in round {meta['diverged']['round']}, at a learning rate of 0.1")
        rounds, losses = (table[name].to_numpy() for name in ("round", "loss"))
        first, last = (float(losses[rounds == one].mean()) for one in (1, 8))
        if not np.isfinite(losses).all() or last > _WORSE * first:
            raise Failed(f"the loss on test samples goes from {first:.3f} after round 1 to {last:.3f} after round 8")
        return f"loss on test samples {first:.3f} after round 1, {last:.3f} after round 8"

    def same_bytes(self, name: str, way: str) -> str:
        """Whatever a run leaves is the same as in the first run, wherever global generators are by then."""
        first = self.perform("plain", SEQUENTIAL, self.probe)
        for draw in (random.random, np.random.rand, lambda: torch.rand(())):
            draw()
        self.perform(name, way, self.probe)
        for file in ("rounds.parquet", "weights.safetensors"):
            places = (self.place("plain", SEQUENTIAL), self.place(name, way))
            one, other = ((place / file).read_bytes() for place in places)
            if one != other:
                raise Failed(f"{file} is another: {self.apart(first, name, way)}")
        return {
            SEQUENTIAL: "a second run leaves the same bytes",
            POOLED: "two worker processes leave the same bytes",
            RESUMED: "killed, short of memory and continued, it leaves the same bytes",
        }[way]

    def close(self, name: str, probe: SmallRun, *quantities: str) -> str:
        """Clients that are trained stacked, as on a GPU, end where they end one by one, but for rounding."""
        first = self.perform(name, SEQUENTIAL, probe)
        by = differences(first, self.perform(name, STACKED, probe), 0.0)
        by = {quantity: size for quantity, size in by.items() if quantity.startswith(quantities)}
        if worst := next(iter(by.items()), None):
            if worst[1] > TOLERANCE:
                raise Failed(f"{worst[0]} deviates by {worst[1]:.1g}, more than {TOLERANCE:g}: steps depend on values?")
            return f"as on a GPU, within {worst[1]:.0e} of one by one"
        return "as on a GPU, no difference to one by one"

    def state(self, name: str, probe: SmallRun) -> str:
        """What a run ends with has the names, shapes and types that it began with, in the hands that roles say."""
        self.perform(name, SEQUENTIAL, probe)
        weights = load_file(self.place(name, SEQUENTIAL) / "weights.safetensors")
        initial, groups = self.model(probe)
        roles = self.roles(probe)
        if lost := ((roles.shared | groups.fixed) & initial.keys()) - weights.keys():
            raise Failed(f"the server has lost {', '.join(sorted(lost)[:3])}")
        clients = {entry.split(".")[1] for entry in weights if entry.startswith("client.")}
        for client in clients:
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
        """The same of a backbone with running statistics, trained stacked as well."""
        own = self.kind == "backbone"
        # Larger steps magnify rounding: pFedMe's, at a rate of 0.05, from 1e-7 to 1e-2 within a round.
        probe = replace(self.probe, training={"rounds": 2, "batch_size": 16, "lr": 0.01, "sample_rate": 1.0})
        probe = probe if own else replace(probe, backbone=_NORMS, dataset=_IMAGES)
        try:
            initial, groups = self.model(probe)
            self.roles(probe)
        except UserError as error:
            return f"not tried: {error}"
        count = len(initial.keys() - groups.parameters - groups.fixed)
        if not count:
            return "the backbone has none"
        self.state("buffers", probe)
        told = self.close("buffers", probe, "loss")  # norms of few samples magnify what rounding does to states
        return f"{count} of {probe.backbone['name']}; {told}"

    def one_sample(self) -> str:
        """Clients with a single sample, of whom one takes part in a round."""
        few = {"name": "iid", "train_limit": 1}
        probe = replace(self.probe, partition=few, training={"rounds": 2, "sample_rate": 0.2, "lr": 0.01})
        try:
            self.perform("one sample", SEQUENTIAL, probe)
        except UserError as error:
            return f"refused in a line: {error}"
        return "clients with one sample, one client in a round"

    @cached_property
    def probe(self) -> SmallRun:
        """The run that is tried: five uneven clients, of whom three take part in each of three rounds."""
        return _probe(self.method, self.backbone)

    @cached_property
    def method(self) -> Component:
        """The method that is trained."""
        return self.entry if self.kind == "method" else self.other or {"name": "fedavg"}

    @cached_property
    def backbone(self) -> Component:
        """The backbone that is trained."""
        if self.kind == "backbone":
            return self.entry
        if self.other:
            return self.other
        for backbone in _BACKBONES:
            try:
                self.roles(_probe(self.method, backbone))
            except UserError as error:
                reason = error
            else:
                return backbone
        raise UserError(
            f"none of {', '.join(one['name'] for one in _BACKBONES)} fits ({reason}); name another: --with BACKBONE"
        )

    def made_method(self) -> Method:
        """An instance of the method."""
        return METHODS.create(self.method["name"], **options(self.method))

    def model(self, probe: SmallRun) -> tuple[dict[str, Tensor], Groups]:
        """The model's state as it begins, without content, and its groups."""
        dataset = DATASETS.create(probe.dataset["name"])
        method = self.made_method()
        backbone = BACKBONES.create(probe.backbone["name"], **options(probe.backbone))
        with torch.device("meta"):
            model, groups = backbone.create(dataset.shape, dataset.classes, 0, method.extend)
        return dict(model.state_dict()), groups_of(method, groups)

    def roles(self, probe: SmallRun) -> Roles:
        """Who owns what. Raises :class:`UserError` when the method needs what the backbone lacks."""
        return roles_of(self.made_method(), self.model(probe)[1])

    def perform(self, name: str, way: str, probe: SmallRun) -> Numbers:
        """What a run gives, which is carried out once."""
        key = f"{name} {way}"
        if key in self.failed:
            raise Failed(f"not tried, as a run that it needs fails: {self.failed[key]}")
        if key not in self.numbers:
            try:
                self.numbers[key] = perform(replace(probe, name=name), way, self.folder)
            except Exception as error:
                self.failed[key] = type(error).__name__
                raise
        return self.numbers[key]

    def place(self, name: str, way: str) -> Path:
        """Where a run left its files."""
        return self.folder / name / way

    def apart(self, first: Numbers, name: str, way: str) -> str:
        """The largest difference in words."""
        by = differences(first, self.numbers[f"{name} {way}"], 0.0)
        return next(
            (f"{quantity} deviates by {size:.1g}" for quantity, size in by.items()), "by less than 7 digits show"
        )


def _probe(method: Component, backbone: Component) -> SmallRun:
    """The smallest images that a backbone takes, or texts; generated in any case."""
    entry = BACKBONES.get(backbone["name"])
    if entry.takes == "text":
        return SmallRun("check", method, backbone, _TEXTS, partition={"name": "natural", "min_samples": 1})
    if backbone in _BACKBONES:
        return SmallRun("check", method, backbone, _IMAGES)
    if entry.predicts == "boxes":
        raise UserError(f"backbone {entry.name} is a detector, of which there are no generated samples to check it on")
    made = BACKBONES.create(backbone["name"], **options(backbone))
    with suppress(UserError), torch.device("meta"):
        made.build(DATASETS.create(_IMAGES["name"]).shape, 2)
        return SmallRun("check", method, backbone, _IMAGES, training=_CAREFUL)
    return SmallRun("check", method, backbone, _LARGER, training=_CAREFUL)


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
