"""The variance between splits, for runs crossed over seeds of the partition and seeds of training."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd

from pipeline.report.drawing.sections import PlainTable
from pipeline.report.printed import NO_VALUE, join_labels
from pipeline.report.statistics import variance_components
from pipeline.report.table import Results
from pipeline.spec.run import short_hash

SPREAD_LEGEND = (
    "Of runs under several seeds of the split and, within each, the same seeds of training: standard deviations in "
    "the unit of the table by one-way random effects (analysis of variance; a negative estimate is 0), and the part of "
    "the variance that is between splits. A few splits tell their variance badly. Ties and verdicts count seeds of "
    "training, so they are about these splits."
)
_HEADER = ("", "splits", "seeds", "± between splits", "± within a split", "share of the split")


def spread_table(results: Results) -> PlainTable | None:
    """Return a row per cell, ignoring seeds, with at least two splits and two seeds of training; None without any."""
    decimals, rows = results.table.decimals, []
    for cell, lines in _crossed_runs(results).groupby("cell", sort=False):
        values = lines.pivot_table("value", "split", "seed").dropna(axis="columns")
        if min(values.shape) < 2:
            continue
        between, within_split = variance_components(values.to_numpy())
        share = f"{100 * between / (between + within_split):.0f} %" if between + within_split else NO_VALUE
        deviations = (f"{variance**0.5:.{decimals}f}" for variance in (between, within_split))
        rows.append((str(cell), *map(str, values.shape), *deviations, share))
    return PlainTable(_HEADER, rows, labels=1) if rows else None


def _crossed_runs(results: Results) -> pd.DataFrame:
    """Return a line per run whose split has a seed: cell, split (its seed), seed, value. Cells that differ only in
    seeds are merged, whatever the axes are called on which they differ."""
    runs, run_level = [], results.run_level  # with one cell for several quantities
    labels_by_settings = defaultdict[str, list[dict[str, str]]](list)
    for cell in run_level.cells if any(cell.quantity is None for cell in results.cells) else ():
        for run in (results.runs[run] for run in cell.runs):
            record, split, value = run.resolved.record, run.resolved.federation, run.values().get(results.table.metric)
            if "seed" in record["partition"] and value:
                settings = short_hash({**record, "partition": split["partition"], "seed": None, "tuned": None})
                labels_by_settings[settings].append(cell.labels)
                runs.append((cell.labels, split["seed"], run.resolved.seed, value.mean))
    groups = [pd.DataFrame(labels) for labels in labels_by_settings.values()]
    axes = [axis for axis in run_level.table.axes if not any(group[axis].nunique() > 1 for group in groups)]
    lines = [(join_labels(axes, [labels[axis] for axis in axes]), *values) for labels, *values in runs]
    return pd.DataFrame(lines, columns=["cell", "split", "seed", "value"])
