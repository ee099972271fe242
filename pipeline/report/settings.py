"""Settings of runs as text, and settings that are not held equal along an axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.spec.run import COMPONENTS, LISTS, OPTIONAL, RUN_FIELDS, SETTINGS, Run
from pipeline.spec.table import ResolvedTable

_IGNORED = ("seed", *LISTS, "training.save_weights", "evaluation.curve_every")
"""The seed, and settings that no number of a table depends on."""
_DEFAULT = "its default"  # records lack options that were added later, at their default
Texts = tuple[str, ...]


def confounded_settings(table: ResolvedTable, settings: Mapping[str, Mapping[str, str]]) -> list[Texts]:
    """Return the settings that differ between labels of an axis that is not about them, such as a learning rate that
    only one method has. A row is the axis, the setting, its value for most labels, and other values with their labels.
    `settings` has those of each run (:func:`settings_of`). Only cells that differ on no other axis are compared. An
    axis over a field or an option of a run is about that, any other axis about components and lists."""
    names, rows = sorted({name for texts in settings.values() for name in texts}), list[Texts]()
    names = [name for name in names if len({texts.get(name, _DEFAULT) for texts in settings.values()}) > 1]
    cells = [
        (cell.labels, {name: _distinct(settings[run].get(name, _DEFAULT) for run in cell.runs) for name in names})
        for cell in table.cells
        if cell.runs
    ]
    for axis in table.axes:
        groups, differing = defaultdict[Texts, list[tuple[str, dict[str, Texts]]]](list), set[tuple[str, Texts]]()
        for labels, values in cells:
            groups[tuple(label for other, label in labels.items() if other != axis)].append((labels[axis], values))
        for name in names:
            field = name.partition(".")[0]  # options come after their entries and are skipped if these differ
            if axis in (name, field) if axis in RUN_FIELDS or "." in axis else field in COMPONENTS:
                continue
            keys = [key for key, group in groups.items() if len({frozenset(values[name]) for _, values in group}) > 1]
            by_label, labels_by_values = defaultdict[str, list[str]](list), defaultdict[Texts, list[str]](list)
            for key in keys:
                for label, values in groups[key] if (field, key) not in differing else ():
                    by_label[label] += values[name]
            differing |= {(name, key) for key in keys}
            for label, texts in by_label.items():
                labels_by_values[_distinct(texts)].append(label)
            if labels_by_values:
                usual = max(labels_by_values, key=lambda texts: len(labels_by_values[texts]))
                others = [f"{', '.join(k)} ({', '.join(v)})" for k, v in labels_by_values.items() if k != usual]
                rows.append((axis.rpartition(".")[2].replace("_", " "), name, ", ".join(usual), "; ".join(others)))
    return rows


def _distinct(values: Iterable[str]) -> Texts:
    return tuple(dict.fromkeys(values))


def settings_of(run: Run) -> dict[str, str]:
    """Return the settings of a run as text, components by name and each option, without those of :data:`_IGNORED`."""
    settings: dict[str, str] = {}
    for field in RUN_FIELDS:
        part = vars(getattr(run, field)) if field in SETTINGS else run.record.get(field, OPTIONAL.get(field))
        options = part if isinstance(part, dict) else {"name": part}
        settings |= {field if key == "name" else f"{field}.{key}": text_of(value) for key, value in options.items()}
    return {setting: value for setting, value in settings.items() if setting not in _IGNORED}


def text_of(value: Any) -> str:
    """Return the value of a setting or a fact as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {text_of(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
