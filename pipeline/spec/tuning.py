"""Tuning: the trials that a spec's ``tune`` asks for, and the runs that wait for what they find.

Trials are ordinary runs with seeds of their own. A *selection* compares the trials of one setting of a table, whatever
its seed, by accuracy on validation samples; the runs of that setting are trained with what it has chosen. Which runs
there are is known before any is trained, so everything is cached like everything else.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pflcore.registry import did_you_mean
from pipeline.spec.draft import Draft, Patch, Patcher, validates
from pipeline.spec.grid import Points, check_option, check_where, matches
from pipeline.spec.parts import Where
from pipeline.spec.run import Run, canonical_json, short_hash
from pipeline.spec.schema import Tune
from pipeline.spec.yamlfile import Address, Document, show

_PARTS = ("training", "method", "backbone")
_FIXED = ("training.rounds", "training.patience", "training.save_weights", "backbone.pretrained")
_MAX_TRIALS = 1_000  # of one selection


class Setting(NamedTuple):
    """``training.lr``, its values, where they are written, and the labels of the runs that are tuned with it."""

    name: str
    part: str
    option: str
    values: list[Any]
    address: Address
    when: Where


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


def check_labels(wanted: Tune, grid: Points, document: Document) -> None:
    """Raise :class:`UserError` for an axis or a label that does not exist, and for labels that pick no run."""
    points = [point.labels for point in grid.points]
    _check_picks(wanted.where, points, grid, document, ("tune", "where"))
    tuned = [labels for labels in points if matches(wanted.where, labels)]
    for index, more in enumerate(wanted.also):
        address: Address = ("tune", "also", index)
        _check_picks(more.when, tuned, grid, document, (*address, "when"))
        if not more.space and not more.trial:
            raise document.error(address, "says nothing of these runs; state a `space` or a `trial`")


def check_seeds(wanted: Tune, runs: list[Run], document: Document) -> None:
    """Raise :class:`UserError` for a seed of trials that is that of a run, or is there twice."""
    taken = {run.seed for run in runs}
    for index, seed in enumerate(wanted.seeds):
        twice = seed in wanted.seeds[:index]
        if twice or seed in taken:
            reason = "is there twice" if twice else "is the seed of a run that the trials choose for"
            raise document.error(("tune", "seeds", index), f"{seed} {reason}; use another one")


def tuned_as(wanted: Tune | None, labels: Mapping[str, str]) -> tuple[bool, ...] | None:
    """Return whether each entry of `also` is about a run with these labels; None if it is not tuned."""
    if wanted is None or not matches(wanted.where, labels):
        return None
    return tuple(matches(more.when, labels) for more in wanted.also)


def tune(
    wanted: Tune,
    grid: Points,
    drafts: Sequence[Draft],
    runs: list[Run],
    change: Callable[[Run], list[Patch]],
    patcher: Patcher,
) -> tuple[list[Run], dict[str, Selection]]:
    """Return the runs, those that are tuned naming their selection, and the selections by id.

    Args:
        drafts, runs: One per point of the grid.
        change: What the profile makes of a run, which it makes of a trial, too.

    Raises:
        UserError: A setting cannot be tuned or is an axis, a value is not valid for a run or its trial, a trial is said
            to have what it does not, or a partition holds back no samples for validation.
    """
    settings = _settings(wanted, grid, patcher)
    stated: list[tuple[Where, dict[str, Any], Address]] = [({}, wanted.trial, ("tune", "trial"))]
    stated += [(more.when, more.trial, ("tune", "also", index, "trial")) for index, more in enumerate(wanted.also)]
    for _, own_trial, address in stated:
        if "seed" in own_trial:
            raise patcher.document.error((*address, "seed"), "trials have the `seeds` of `tune`; state them there")
    patches = [(when, patcher.read(own_trial, address)) for when, own_trial, address in stated]
    tuned, selections = list(runs), dict[str, Selection]()
    by_setting: dict[str, Selection] = {}
    for index, (point, draft, run) in enumerate(zip(grid.points, drafts, runs, strict=True)):
        way = tuned_as(wanted, point.labels)
        if way is None:
            continue
        key = canonical_json([{**run.record, "seed": None}, way])
        if key not in by_setting:
            own = list({one.name: one for one in settings if matches(one.when, point.labels)}.values())
            changes = [patch for when, patch in patches if matches(when, point.labels)]
            for patch, setting in itertools.product(changes, own):
                if setting.option in patch.values.get(setting.part, {}):
                    address = patcher.place([patch], setting.part, setting.option)
                    raise patcher.document.error(address, "is in the `space` of these trials; leave it to one of them")
            trial = [*point.draft, *changes]
            if run.record["profile"] != "paper":
                trial += change(patcher.run(trial, "paper"))
            by_setting[key] = _selection(wanted, own, trial, draft, run, patcher)
        selection = by_setting[key]
        selections[selection.id] = selection
        tuned[index] = Run({**run.record, "tuned": selection.id})
    return tuned, selections


def _check_picks(
    where: Where, points: list[dict[str, str]], grid: Points, document: Document, address: Address
) -> None:
    """Check that labels pick a run. What `only` leaves out may be named, and then picks nothing."""
    check_where(where, grid.known, document, address)
    absent = any(set(chosen) <= set(grid.left_out[axis]) for axis, chosen in where.items())
    if points and not absent and not any(matches(where, labels) for labels in points):
        raise document.error(address, "picks no run that is tuned")


def _settings(wanted: Tune, grid: Points, patcher: Patcher) -> list[Setting]:
    """Return every setting that is tuned."""
    spaces: list[tuple[Where, dict[str, list[Any]], Address]] = [({}, wanted.space, ("tune", "space"))]
    spaces += [(more.when, more.space, ("tune", "also", index, "space")) for index, more in enumerate(wanted.also)]
    settings = []
    for when, space, address in spaces:
        for name, values in space.items():
            part, _, option = name.partition(".")
            settings.append(Setting(name, part, option, values, (*address, name), when))
            _check_setting(settings[-1], grid, patcher)
    if not settings:
        message = "names nothing to tune; state a `space`, such as {training.lr: [0.01, 0.1]}"
        raise patcher.document.error(("tune",), message)
    return settings


def _check_setting(setting: Setting, grid: Points, patcher: Patcher) -> None:
    error, name = patcher.document.error, setting.name
    if not setting.option or setting.part not in _PARTS or name in _FIXED:
        hint = did_you_mean(setting.part, list(_PARTS)) if setting.part not in _PARTS else ""
        can = f"training.…, method.… and backbone.…, but {', '.join(_FIXED)}"
        raise error(setting.address, f"cannot be tuned; what can is {can}{hint}")
    check_option(setting.part, setting.option, setting.address, patcher)
    if name in grid.labels:
        raise error(setting.address, "is an axis of the grid, which states its values")
    for index, value in enumerate(setting.values):
        if value in setting.values[:index]:
            raise error((*setting.address, index), f"{show(value)} is there twice")


def _selection(
    wanted: Tune, settings: list[Setting], trial: Draft, draft: Draft, run: Run, patcher: Patcher
) -> Selection:
    """Return the trials of a run, given the draft of a trial and its own."""
    size = math.prod(len(setting.values) for setting in settings)
    budget = size if wanted.trials is None else min(size, wanted.trials)
    if budget > _MAX_TRIALS:
        message = f"{budget:,} trials for {run.id}; state `trials`, at most {_MAX_TRIALS:,}"
        raise patcher.document.error(("tune",), message)
    if size > sys.maxsize:
        raise patcher.document.error(("tune",), f"{size:.0e} combinations for {run.id}; narrow the space")
    trials = []
    for combination in _tried(settings, size, budget):
        values = [
            patcher.read_option(setting.part, setting.option, setting.values[index], (*setting.address, index))
            for setting, index in zip(settings, combination, strict=True)
        ]
        patcher.run([*draft, *values], run.record["profile"])  # the run itself may turn out to have these
        trials.append(_trial(wanted, [*trial, *values], settings, run, patcher))
    return Selection({setting.name: setting.values for setting in settings}, size, tuple(trials))


def _tried(settings: list[Setting], size: int, budget: int) -> Iterator[tuple[int, ...]]:
    """Yield the combinations that are tried, as positions of their values, in the order of the grid.

    Equal spaces draw the same.
    """
    positions = [range(len(setting.values)) for setting in settings]
    if budget == size:
        yield from itertools.product(*positions)
        return
    rng = random.Random(canonical_json([0, [[setting.name, setting.values] for setting in settings]]))
    for number in sorted(rng.sample(range(size), budget)):
        combination = []
        for values in reversed(positions):
            number, position = divmod(number, len(values))
            combination.append(position)
        yield tuple(reversed(combination))


def _trial(wanted: Tune, tried: Draft, settings: list[Setting], run: Run, patcher: Patcher) -> Trial:
    seeds = [patcher.read_field("seed", seed, ("tune", "seeds", index)) for index, seed in enumerate(wanted.seeds)]
    runs = tuple(patcher.run([*tried, seed], run.record["profile"]) for seed in seeds)
    if not validates(runs[0]):
        message = "chooses by accuracy on validation samples; set validation_share of the partition"
        raise patcher.document.error(("tune",), message)
    stated, record = patcher.fields.stated, runs[0].record
    chosen = {setting.name: stated(setting.part, record[setting.part], setting.option) for setting in settings}
    return Trial(chosen, runs)
