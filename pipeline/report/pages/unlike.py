"""Settings that go with a label although its axis is about something else: what a comparison does not hold equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.report.drawing.sections import PlainTable
from pipeline.report.table.layout import short
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS, Run
from pipeline.spec.table import ResolvedTable

_NO_MATTER = ("seed", *LISTS, "training.save_weights", "evaluation.curve_every")
"""What no number of a table depends on, and the seed."""

_LATER = "its default"  # of an option that came later, which is then in no record

Values = dict[str, dict[str, None]]
"""Of one setting: by label those that occur, in order."""


def unlike_settings(table: ResolvedTable, runs: Mapping[str, Run]) -> PlainTable:
    """Return the settings in which labels of an axis differ though it is about something else, such as a learning rate
    of one method: the axis, the setting, its value for most labels, and other values with their labels.

    Cells are compared that differ on this axis only. An axis over a field or an option of a run is about that, any
    other about components and lists, whatever they are.

    Args:
        runs: These and maybe more, by id.
    """
    settings = {run: settings_of(runs[run]) for run in table.runs}
    rows: list[tuple[str, ...]] = []
    for axis in table.axes:
        found: dict[str, Values] = {}
        for group in _groups(table, axis):
            for setting, values in _differing(group, settings, axis).items():
                for label, several in values.items():
                    found.setdefault(setting, {}).setdefault(label, {}).update(several)
        rows += [(short(axis), setting, *_values(values)) for setting, values in found.items()]
    return PlainTable(("axis", "setting", "most", "others"), rows, labels=2)


def _groups(table: ResolvedTable, axis: str) -> Iterable[dict[str, list[str]]]:
    """Runs by label on the axis, of cells that are alike on all others."""
    groups: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for cell in table.cells:
        if cell.runs:
            others = tuple(label for other, label in cell.labels.items() if other != axis)
            groups.setdefault(others, {})[cell.labels[axis]] = cell.runs
    return groups.values()


def _differing(group: dict[str, list[str]], settings: dict[str, dict[str, str]], axis: str) -> dict[str, Values]:
    """By setting, where labels have other values of it and the axis is not about it."""
    found: dict[str, Values] = {}
    for setting in sorted({setting for runs in group.values() for run in runs for setting in settings[run]}):
        field, dot, _ = setting.partition(".")
        if _about(axis, setting) or (dot and field in found):  # names come first, and of unlike entries they say it all
            continue
        values = {
            label: dict.fromkeys(settings[run].get(setting, _LATER) for run in runs) for label, runs in group.items()
        }
        if len({frozenset(several) for several in values.values()}) > 1:
            found[setting] = values
    return found


def _about(axis: str, setting: str) -> bool:
    field = setting.partition(".")[0]
    if axis in RUN_FIELDS or "." in axis:
        return axis in (setting, field)
    return field in COMPONENTS


def settings_of(run: Run) -> dict[str, str]:
    """Every setting of a run as text, but for those that no number depends on, and the seed: components by their name,
    and each option."""
    settings: dict[str, str] = {}
    for field in RUN_FIELDS:
        part = vars(getattr(run, field)) if field in SETTINGS else run.record.get(field)
        if isinstance(part, dict):
            settings |= {field if key == "name" else f"{field}.{key}": _text(value) for key, value in part.items()}
        else:
            settings[field] = _text(part)
    return {setting: value for setting, value in settings.items() if setting not in _NO_MATTER}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(values: Values) -> tuple[str, str]:
    """Return ``0.01`` and ``0.05 (FedPer)``; what most labels have comes first."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, several in values.items():
        labels.setdefault(tuple(several), []).append(label)
    usual = max(labels, key=lambda several: len(labels[several]))  # of equally many the first
    others = [f"{', '.join(several)} ({', '.join(of)})" for several, of in labels.items() if several != usual]
    return ", ".join(usual), "; ".join(others)
