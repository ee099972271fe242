"""The clients of a partition in figures: a row for each, and a summary over all."""

from __future__ import annotations

import numpy as np

from pflcore.data.assignment import Assignment
from pflcore.data.heterogeneity import Heterogeneity

Columns = dict[str, np.ndarray]
"""Name → a value per client, in the order of a table."""


def client_columns(measures: Heterogeneity, assignment: Assignment) -> Columns:
    """What a client holds: samples, classes, and how far its labels are from those of others."""
    columns = {
        "client": np.arange(measures.clients),
        "train": measures.train.sum(axis=1),
        "test": measures.test.sum(axis=1),
        **({} if measures.validation is None else {"validation": measures.validation.sum(axis=1)}),
        "classes": (measures.train > 0).sum(axis=1),
        "entropy": measures.entropy,
        "distance": measures.distance,
        "split distance": measures.split_distance,
    }
    if assignment.noise:
        columns["noise"] = np.asarray(assignment.noise.std)
    if assignment.novel:
        columns["novel"] = np.isin(columns["client"], assignment.novel).astype(int)
    return columns


def summarise(columns: Columns) -> list[tuple[str, ...]]:
    """For each measure of the clients its smallest, median, mean and largest value, as text."""
    return [
        (name, *(number(x) for x in (values.min(), np.median(values), values.mean(), values.max())))
        for name, values in columns.items()
        if name not in ("client", "novel")
    ]


def number(value: float) -> str:
    """A count as it is, anything else to three decimal places."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.3f}"
