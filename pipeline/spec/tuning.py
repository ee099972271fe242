"""Tuning: the trials that a spec's ``tune`` asks for, and the runs that wait for what they find.

Trials are ordinary runs with seeds of their own. A *selection* compares the trials of one setting of a table, whatever
its seed, by accuracy on validation samples; the runs of that setting are trained with what it has chosen. Which runs
there are is known before any is trained, so everything is cached like everything else.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pflcore.registry import did_you_mean
from pipeline.spec.axes import check_option
from pipeline.spec.draft import Patch, Patcher, compose
from pipeline.spec.grid import Points, check_where, matches
from pipeline.spec.run import Run, canonical_json, short_hash
from pipeline.spec.schema import Tune
from pipeline.spec.yamlfile import Address, show

_PARTS = ("training", "method", "backbone")
_FIXED = ("training.rounds", "training.save_weights")
_MOST = 1_000  # trials of one selection

Setting = tuple[str, list[Any], Address]
"""``training.lr``, its values, and where they are written."""


@dataclass(frozen=True)
class Trial:
    """What is tried: a value per setting, and the run of each seed."""

    chosen: dict[str, Any]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Selection:
    """The trials that one choice is made of.

    Attributes:
        space: Setting → the values that there are.
        size: Combinations of these.
        trials: Those that are tried, all of them or a random set.
    """

    space: dict[str, list[Any]]
    size: int
    trials: tuple[Trial, ...]

    @property
    def id(self) -> str:
        """``<method>-<backbone>-<dataset>-<8 hex digits>``."""
        run = self.trials[0].runs[0]
        tried = [[trial.chosen, [run.id for run in trial.runs]] for trial in self.trials]
        return f"{run.method}-{run.backbone}-{run.dataset}-{short_hash([self.space, tried])}"

    @property
    def record(self) -> dict[str, Any]:
        """As its stage reads it."""
        trials = [{"chosen": trial.chosen, "runs": [run.id for run in trial.runs]} for trial in self.trials]
        rounds = sum(run.training.rounds for trial in self.trials for run in trial.runs)
        return {"space": self.space, "size": self.size, "rounds": rounds, "trials": trials}


@dataclass(frozen=True)
class Tuned:
    """The runs of a grid when some of them wait for a selection.

    Attributes:
        runs: One per point, as before; those that are tuned name their selection.
        selections: By id.
    """

    runs: list[Run]
    selections: dict[str, Selection]


def check_labels(wanted: Tune, grid: Points, patcher: Patcher) -> None:
    """Raises :class:`UserError` for an axis or a label that does not exist."""
    check_where(wanted.where, grid.known, patcher, ("tune", "where"))
    for index, more in enumerate(wanted.also):
        check_where(more.when, grid.known, patcher, ("tune", "also", index, "when"))


def tuned_as(wanted: Tune | None, labels: Mapping[str, str]) -> tuple[bool, ...] | None:
    """Whether each entry of `also` is about a run with these labels; None if it is not tuned."""
    if wanted is None or not matches(wanted.where, labels):
        return None
    return tuple(matches(more.when, labels) for more in wanted.also)


def tune(wanted: Tune, grid: Points, drafts: Sequence[Patch], runs: Sequence[Run], patcher: Patcher) -> Tuned:
    """The trials of a grid's runs, and these runs as those that wait for them.

    Args:
        drafts, runs: One per point of the grid.

    Raises:
        UserError: A setting cannot be tuned or is an axis, a value is not valid for a run, a seed is that of a run, or
            a partition holds back no samples for validation.
    """
    settings = _settings(wanted, grid, patcher)
    _check_seeds(wanted, runs, patcher)
    patches: list[tuple[dict[str, list[str]], Patch]] = [({}, patcher.read(wanted.trial, ("tune", "trial")))]
    patches += [
        (more.when, patcher.read(more.trial, ("tune", "also", index, "trial")))
        for index, more in enumerate(wanted.also)
    ]
    tuned, selections = list(runs), dict[str, Selection]()
    by_setting: dict[str, Selection] = {}
    for index, (point, draft, run) in enumerate(zip(grid.points, drafts, runs, strict=True)):
        way = tuned_as(wanted, point.labels)
        if way is None:
            continue
        key = canonical_json([{**run.record, "seed": None}, way])
        if key not in by_setting:
            own = [one for when, one in settings if matches(when, point.labels)]
            for when, patch in patches:
                draft = compose(draft, patch) if matches(when, point.labels) else draft
            by_setting[key] = _selection(wanted, own, draft, run, patcher)
        selection = by_setting[key]
        selections[selection.id] = selection
        tuned[index] = Run({**run.record, "tuned": selection.id})
    return Tuned(tuned, selections)


def _settings(wanted: Tune, grid: Points, patcher: Patcher) -> list[tuple[dict[str, list[str]], Setting]]:
    """Every setting with the labels of the runs that have it."""
    spaces: list[tuple[dict[str, list[str]], dict[str, list[Any]], Address]] = [({}, wanted.space, ("tune", "space"))]
    for index, more in enumerate(wanted.also):
        spaces.append((more.when, more.space, ("tune", "also", index, "space")))
    settings = []
    for when, space, address in spaces:
        for name, values in space.items():
            here = (*address, name)
            _check_setting(name, values, grid, patcher, here)
            settings.append((when, (name, values, here)))
    if not settings:
        raise patcher.document.error(
            ("tune",), "names nothing to tune; state a `space`, such as {training.lr: [0.01, 0.1]}"
        )
    return settings


def _check_setting(name: str, values: list[Any], grid: Points, patcher: Patcher, address: Address) -> None:
    part, dot, option = name.partition(".")
    if not dot or part not in _PARTS or name in _FIXED:
        hint = did_you_mean(part, list(_PARTS)) if part not in _PARTS else ""
        raise patcher.document.error(
            address,
            f"cannot be tuned; what can is training.…, method.… and backbone.…, less {' and '.join(_FIXED)}{hint}",
        )
    check_option(part, option, address, patcher)
    if name in grid.labels:
        raise patcher.document.error(address, "is an axis of the grid, which states its values")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise patcher.document.error((*address, index), f"{show(value)} is there twice")


def _check_seeds(wanted: Tune, runs: Sequence[Run], patcher: Patcher) -> None:
    taken = {run.seed for run in runs}
    for index, seed in enumerate(wanted.seeds):
        if seed in taken or seed in wanted.seeds[:index]:
            what = (
                "is there twice" if seed in wanted.seeds[:index] else "is the seed of a run that the trials choose for"
            )
            raise patcher.document.error(("tune", "seeds", index), f"{seed} {what}; use another one")


def _selection(wanted: Tune, settings: list[Setting], draft: Patch, run: Run, patcher: Patcher) -> Selection:
    space = {name: values for name, values, _ in settings}
    size = math.prod(map(len, space.values()))
    budget = size if wanted.trials is None else min(size, wanted.trials)
    if budget > _MOST:
        raise patcher.document.error(("tune",), f"{budget:,} trials for {run.id}; state `trials`, at most {_MOST:,}")
    trials = []
    for combination in _tried(settings, size, budget, wanted.draw):
        tried = draft
        for (name, values, address), index in zip(settings, combination, strict=True):
            part, _, option = name.partition(".")
            tried = compose(tried, patcher.read_option(part, option, values[index], (*address, index)))
        trials.append(_trial(wanted, tried, space, run, patcher))
    return Selection(space, size, tuple(trials))


def _tried(settings: list[Setting], size: int, budget: int, draw: int) -> Iterator[tuple[int, ...]]:
    """The combinations that are tried, as places of their values, in the order of the grid; equal for equal spaces."""
    places = [range(len(values)) for _, values, _ in settings]
    if budget == size:
        yield from itertools.product(*places)
        return
    rng = random.Random(canonical_json([draw, [[name, values] for name, values, _ in settings]]))
    for number in sorted(rng.sample(range(size), budget)):
        combination = []
        for values in reversed(places):
            number, place = divmod(number, len(values))
            combination.append(place)
        yield tuple(reversed(combination))


def _trial(wanted: Tune, tried: Patch, space: dict[str, list[Any]], run: Run, patcher: Patcher) -> Trial:
    runs = []
    for index, seed in enumerate(wanted.seeds):
        seeded = compose(tried, {"seed": patcher.read_field("seed", seed, ("tune", "seeds", index))})
        runs.append(Run(patcher.record(seeded, run.record["profile"])))
    if not runs[0].record["partition"].get("validation_share"):
        raise patcher.document.error(
            ("tune",), "chooses by accuracy on validation samples; set validation_share of the partition"
        )
    chosen = {}
    for name in space:
        part, _, option = name.partition(".")
        chosen[name] = runs[0].record[part][option]
    return Trial(chosen, tuple(runs))
