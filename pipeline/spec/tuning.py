"""Tuning: the trials that a spec's ``tune`` asks for, and the runs that are trained with the chosen values.

Trials are ordinary runs with seeds of their own. A *selection* compares the trials for runs that differ in their seed
alone, by accuracy on validation samples; these runs are trained with the values that it chooses. All runs are known
before any is trained, so DVC caches trials and selections like other stages.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pflcore.registry import did_you_mean
from pipeline.spec.grid import Points, check_option, check_where, matches
from pipeline.spec.metrics import Where
from pipeline.spec.patches import Draft, Patch, Patcher, has_validation
from pipeline.spec.run import Run, canonical_json, short_hash
from pipeline.spec.schema import Tune, TuneOverride
from pipeline.spec.yamlfile import Address, Document, show

_PARTS = ("training", "method", "backbone")
_FIXED = ("training.rounds", "training.patience", "training.save_weights", "backbone.pretrained")
_MAX_TRIALS = 1_000  # of one selection


class Setting(NamedTuple):
    """A setting to tune, such as ``training.lr``: its values, their address, and the labels of the runs."""

    name: str
    part: str
    option: str
    values: list[Any]
    address: Address
    when: Where


class Trial(NamedTuple):
    """A trial: a value per setting, and the run of each seed."""

    chosen: dict[str, Any]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Selection:
    """The trials of one choice: all `size` combinations of a space, or a random subset."""

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
        """The record that the select stage reads."""
        trials = [{"chosen": trial.chosen, "runs": [run.id for run in trial.runs]} for trial in self.trials]
        rounds = sum(run.training.rounds for trial in self.trials for run in trial.runs)
        return {"space": self.space, "size": self.size, "rounds": rounds, "trials": trials}


def check_tuned(section: Tune, grid: Points, runs: list[Run], document: Document) -> None:
    """Check that the labels of `tune` exist and pick a run, and that no run has one of its seeds."""

    def select(where: Where, points: list[dict[str, str]], address: Address) -> list[dict[str, str]]:
        """Return the `points` that match `where`, which may name labels that `only` leaves out."""
        check_where(where, grid.all_labels, document, address)
        absent = any({*chosen} <= {*grid.left_out[axis]} for axis, chosen in where.items())
        matching = [labels for labels in points if matches(where, labels)]
        document.check(matching or not points or absent, address, "selects no run that is tuned")
        return matching

    tuned = select(section.where, [point.labels for point in grid.points], ("tune", "where"))
    for index, override in enumerate(section.also):
        select(override.when, tuned, ("tune", "also", index, "when"))
        message = "has no effect; state a `space` or a `trial`"
        document.check(override.space or override.trial, ("tune", "also", index), message)
    run_seeds = {run.seed for run in runs}
    for index, seed in enumerate(section.seeds):
        address = ("tune", "seeds", index)
        document.check(seed not in section.seeds[:index], address, f"{seed} occurs twice; use another one")
        message = f"{seed} is also the seed of a run that is tuned; use another one"
        document.check(seed not in run_seeds, address, message)


def applied_overrides(section: Tune | None, labels: Mapping[str, str]) -> tuple[bool, ...] | None:
    """Return whether each entry of `also` applies to a run with these labels; None if the run is not tuned."""
    if section is None or not matches(section.where, labels):
        return None
    return tuple(matches(override.when, labels) for override in section.also)


def tune(
    section: Tune,
    grid: Points,
    drafts: Sequence[Draft],
    runs: list[Run],
    change: Callable[[Run], list[Patch]],
    patcher: Patcher,
) -> tuple[list[Run], dict[str, Selection]]:
    """Return the runs, where tuned ones name their selection, and the selections by id."""
    check = patcher.document.check
    settings, patches = _read_settings(section, grid, patcher)
    tuned = list(runs)
    by_setting: dict[str, Selection] = {}
    for index, (point, draft, run) in enumerate(zip(grid.points, drafts, runs, strict=True)):
        applied = applied_overrides(section, point.labels)
        if applied is None:
            continue
        key = canonical_json([{**run.record, "seed": None}, applied])
        if key not in by_setting:
            applicable = {setting.name: setting for setting in settings if matches(setting.when, point.labels)}
            changes = [patch for when, patch in patches if matches(when, point.labels)]
            for patch, setting in itertools.product(changes, applicable.values()):
                place = patcher.place([patch], setting.part, setting.option)
                duplicate = setting.option in patch.values.get(setting.part, {})
                check(not duplicate, place, "is also in the `space` of these trials; state it in one place")
            tried = [*point.draft, *changes]
            if run.record["profile"] != "paper":
                tried += change(patcher.run(tried, "paper"))
            by_setting[key] = _selection(section, list(applicable.values()), tried, draft, run, patcher)
        tuned[index] = Run({**run.record, "tuned": by_setting[key].id})
    return tuned, {selection.id: selection for selection in by_setting.values()}


def _read_settings(section: Tune, grid: Points, patcher: Patcher) -> tuple[list[Setting], list[tuple[Where, Patch]]]:
    """Return the settings to tune, and the patches of trials, each with the labels of the runs that it is for."""
    check = patcher.document.check
    settings: list[Setting] = []
    patches: list[tuple[Where, Patch]] = []
    overrides: list[tuple[TuneOverride, Address]]
    overrides = [(TuneOverride(when={}, space=section.space, trial=section.trial), ("tune",))]
    overrides += [(override, ("tune", "also", index)) for index, override in enumerate(section.also)]
    for override, address in overrides:
        for name, values in override.space.items():
            part, _, option = name.partition(".")
            place = (*address, "space", name)
            message = f"cannot be tuned; name a setting of {', '.join(_PARTS)}, but none of {', '.join(_FIXED)}"
            if part not in _PARTS:
                group = patcher.catalog.group_of(name)
                message += f"; did you mean '{group}.{name}'?" if group in _PARTS else did_you_mean(part, list(_PARTS))
            check(option and part in _PARTS and name not in _FIXED, place, message)
            check_option(part, option, place, patcher)
            check(name not in grid.labels, place, "is an axis of the grid, which states its values")
            for index, value in enumerate(values):
                check(value not in values[:index], (*place, index), f"{show(value)} occurs twice")
            settings.append(Setting(name, part, option, values, place, override.when))
        message = "trials have the `seeds` of `tune`; state them there"
        check("seed" not in override.trial, (*address, "trial", "seed"), message)
        patches.append((override.when, patcher.read(override.trial, (*address, "trial"))))
    check(settings, ("tune",), "names nothing to tune; state a `space`, such as {training.lr: [0.01, 0.1]}")
    return settings, patches


def _selection(
    section: Tune, settings: list[Setting], trial: Draft, draft: Draft, run: Run, patcher: Patcher
) -> Selection:
    """Return the selection of a run, given the draft of its trials and its own draft."""
    check = patcher.document.check
    profile = run.record["profile"]
    size = math.prod(len(setting.values) for setting in settings)
    budget = min(size, section.trials or size)
    message = f"{budget:,} trials for {run.id}; state `trials`, at most {_MAX_TRIALS:,}"
    check(budget <= _MAX_TRIALS, ("tune",), message)
    check(size <= sys.maxsize, ("tune",), f"{size:.0e} combinations for {run.id}; narrow the space")
    seeds = [patcher.read_field("seed", seed, ("tune", "seeds", index)) for index, seed in enumerate(section.seeds)]
    trials: list[Trial] = []
    numbers: Sequence[int] = range(size)
    if budget < size:  # the space is the seed, so equal spaces draw the same trials
        rng = random.Random(canonical_json([0, [[setting.name, setting.values] for setting in settings]]))
        numbers = sorted(rng.sample(range(size), budget))
    for number in numbers:  # in the order of the grid
        values: list[Patch] = []
        for setting in reversed(settings):
            number, index = divmod(number, len(setting.values))
            value = {setting.option: setting.values[index]}
            values.insert(0, patcher.read_field(setting.part, value, (*setting.address, index)))
        patcher.run([*draft, *values], profile)  # checks the run itself with these values
        runs = tuple(patcher.run([*trial, *values, seed], profile) for seed in seeds)
        message = "needs validation samples; set the partition's validation_share"
        check(has_validation(runs[0]), ("tune",), message)
        record, value_of = runs[0].record, patcher.catalog.option_value
        trials.append(Trial({name: value_of(part, record[part], option) for name, part, option, *_ in settings}, runs))
    return Selection({setting.name: setting.values for setting in settings}, size, tuple(trials))
