"""The split's part of the spread of results, for runs crossed over seeds of the partition and seeds of training."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd

from pipeline.report.drawing.sections import PlainTable
from pipeline.report.printed import NO_VALUE, titled
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
    frame, decimals, rows = _crossed(results), results.table.decimals, []
    for cell, lines in frame.groupby("cell", sort=False):
        values = lines.pivot_table("value", "split", "seed").dropna(axis="columns")
        if min(values.shape) < 2:
            continue
        between, within = variance_components(values.to_numpy())
        share = f"{100 * between / (between + within):.0f} %" if between + within else NO_VALUE
        deviations = (f"{variance**0.5:.{decimals}f}" for variance in (between, within))
        rows.append((str(cell), *map(str, values.shape), *deviations, share))
    return PlainTable(_HEADER, rows, labels=1) if rows else None


def _crossed(results: Results) -> pd.DataFrame:
    """Return a line per run whose split has a seed: cell, split (its seed), seed, value. Cells that differ only in
    seeds are one, whatever the axes are called on which they differ."""
    found, whole = [], results.of_runs  # one cell for several quantities
    shown = any(cell.quantity is None for cell in results.cells)
    labels_of = defaultdict[str, list[dict[str, str]]](list)
    for cell in whole.cells if shown else ():
        for run in (results.runs[run] for run in cell.runs):
            record, split, value = run.resolved.record, run.resolved.federation, run.values.get(results.table.metric)
            if "seed" in record["partition"] and value:
                same = short_hash({**record, "partition": split["partition"], "seed": None, "tuned": None})
                labels_of[same].append(cell.labels)
                found.append((cell.labels, split["seed"], run.resolved.seed, value.mean))
    vary = {axis for of in labels_of.values() for axis in of[0] if len({at[axis] for at in of}) > 1}
    axes = [axis for axis in whole.table.axes if axis not in vary]
    lines = [(titled(axes, [labels[axis] for axis in axes]), *seeds) for labels, *seeds in found]
    return pd.DataFrame(lines, columns=["cell", "split", "seed", "value"])
