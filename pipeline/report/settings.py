"""Settings of runs as text, and those that a comparison does not hold equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report.table.layout import short
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS, Run
from pipeline.spec.table import ResolvedTable

_NO_MATTER = ("seed", *LISTS, "training.save_weights", "evaluation.curve_every")
"""What no number of a table depends on, and the seed."""

_LATER = "its default"  # of an option that came later, which is then in no record


def confounded_settings(table: ResolvedTable, runs: Mapping[str, Run]) -> list[tuple[str, ...]]:
    """Return the settings in which labels of an axis differ though it is about something else, such as a learning rate
    of one method: the axis, the setting, its value for most labels, and other values with their labels.

    Cells are compared that differ on this axis only. An axis over a field or an option of a run is about that, any
    other about components and lists, whatever they are.

    Args:
        runs: These and maybe more, by id.
    """
    settings = {run: settings_of(runs[run]) for run in table.runs}
    names = sorted({name for of_run in settings.values() for name in of_run})
    cells = pd.DataFrame(
        [
            {f"axis {axis}": label for axis, label in cell.labels.items()}
            | {name: _values([settings[run].get(name, _LATER) for run in cell.runs]) for name in names}
            for cell in table.cells
            if cell.runs
        ]
    )
    names = [name for name in names if len(cells) and cells[name].nunique() > 1]
    rows: list[tuple[str, ...]] = []
    for axis in table.axes:
        others = [f"axis {other}" for other in table.axes if other != axis]
        groups = [group for _, group in cells.groupby(others, sort=False)] if others and len(cells) else [cells]
        differing: set[tuple[str, int]] = set()
        for name in (name for name in names if not _about(axis, name)):
            field = name.partition(".")[0]  # unlike entries come before their options, which say no more than these
            at = [i for i, group in enumerate(groups) if group[name].map(frozenset).nunique() > 1]
            unlike = [groups[i] for i in at if (field, i) not in differing]
            differing |= {(name, i) for i in at}
            if unlike:
                by_label = pd.concat(unlike).groupby(f"axis {axis}", sort=False)[name]
                rows.append((short(axis), name, *_most_and_others(by_label.agg(lambda own: _values(own.explode())))))
    return rows


def settings_of(run: Run) -> dict[str, str]:
    """Return every setting of a run as text, but for those that no number depends on, and the seed: components by their
    name, and each option."""
    settings: dict[str, str] = {}
    for field in RUN_FIELDS:
        part = vars(getattr(run, field)) if field in SETTINGS else run.record.get(field)
        if isinstance(part, dict):
            settings |= {field if key == "name" else f"{field}.{key}": text_of(value) for key, value in part.items()}
        else:
            settings[field] = text_of(part)
    return {setting: value for setting, value in settings.items() if setting not in _NO_MATTER}


def _about(axis: str, setting: str) -> bool:
    """Return whether an axis is about a setting."""
    field = setting.partition(".")[0]
    return axis in (setting, field) if axis in RUN_FIELDS or "." in axis else field in COMPONENTS


def _values(several: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(several))


def _most_and_others(by_label: pd.Series[Any]) -> tuple[str, str]:
    """Return ``0.01`` and ``0.05 (FedPer)``; what most labels have comes first, of equally many the first."""
    labels = defaultdict[tuple[str, ...], list[str]](list)
    for label, several in by_label.items():
        labels[several].append(str(label))
    usual = max(labels, key=lambda several: len(labels[several]))
    others = [f"{', '.join(several)} ({', '.join(of)})" for several, of in labels.items() if several != usual]
    return ", ".join(usual), "; ".join(others)


def text_of(value: Any) -> str:
    """Return the value of a setting or a fact in print."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {text_of(own)}" for name, own in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
