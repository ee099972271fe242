"""The same runs under every protocol: who is ahead, whose rank changes, and which claims are decided otherwise.

Papers report different numbers of the same models. Runs keep counts per client and round, so all of them can be shown
side by side and nothing is trained for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import NO_VALUE, Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData, heading
from pipeline.report.table.cells import Value
from pipeline.report.table.printed import TIED, format_value, printed_rank

TITLE = "Under other protocols"

NAMES = {
    "last_rounds": "window",
    "last_ten": "last ten",
    "final": "last round",
    "clients": "mean of clients",
    "worst_tenth": "worst tenth",
    "last_position": "last position",
    "best_by_validation": "best by validation",
    "best_by_test": "best by test",
}
"""Protocols in the order in which they are shown, after the table's own; others follow under their own names."""

RISES, FALLS = "↑", "↓"
_TEXT = (
    "The same runs, nothing trained anew. In parentheses the rank within the column, rows that tie as printed sharing "
    f"the mean of their ranks; {RISES} a better, {FALLS} a worse rank than under the first, the table's own protocol. "
    f"{TIED}: cannot be told apart from the best of its column under the protocol, by seeds."
)
_MEANINGS = {
    "last_rounds": "pooled over all test samples, the mean of the last measured rounds",
    "last_ten": "pooled, the mean of the last ten measurements",
    "final": "pooled, after the last round",
    "clients": "every client counts the same",
    "worst_tenth": "the mean of the tenth of the clients that fare worst, rounded up",
    "last_position": "as window, but of texts the last character alone",
    "best_by_validation": "pooled, after the measured round that is best on validation samples",
}


def draw(data: TableData) -> Section:
    """Draw ranks under each protocol; one line when nothing has been measured. CSV: protocol, mean, std, rank, tied."""
    frame = data.protocols
    if frame.empty:
        return Section("No run of this table has been measured yet.")
    names = _shown(data, frame)
    frame = frame[frame["protocol"].isin(names)]
    frame["protocol"] = pd.Categorical(frame["protocol"], names, ordered=True)
    scores = data.sign * frame["mean"].round(data.table.decimals)
    frame["rank"] = scores.groupby([frame["panel"], frame["protocol"]], observed=True).rank(ascending=False)
    frame = frame.sort_values(["panel", "series", "protocol"])
    figure = draw_panels(frame, "", "rank", _ranks)
    for panel in figure.axes:
        words = [_short(name) for name in names]
        panel.set_xticks(range(len(names)), words, rotation=35, ha="right", rotation_mode="anchor")
        panel.yaxis.set_major_locator(MaxNLocator(integer=True))
        panel.invert_yaxis()
    meanings = "; ".join(f"{_short(name)}: {_MEANINGS[name]}" for name in names if name in _MEANINGS)
    text = " ".join([_TEXT, f"{meanings[:1].upper()}{meanings[1:]}.", _changes(frame), *_claims(data, names)])
    rows, columns = frame["series"].nunique(), frame["panel"].nunique()
    alt = f"Ranks of {counted(rows, 'row')} in {counted(columns, 'column')} under each protocol."
    lines = frame[[*data.axes(frame), "protocol", "mean", "std", "rank", "tied"]]
    return Section(text + left_out(frame, "protocols"), Picture(figure, alt), _table(data, frame, names), lines)


def _shown(data: TableData, frame: pd.DataFrame) -> list[str]:
    """Return the protocols in their order. Of images the last position is the whole, so there it is left out."""
    means = {str(name): own.set_index(["series", "panel"])["mean"] for name, own in frame.groupby("protocol")}
    images = "last_position" in means and means["last_position"].equals(means["last_rounds"])
    if images and data.table.metric != "last_position":
        del means["last_position"]
    return [name for name in dict.fromkeys((data.table.metric, *NAMES, *means)) if name in means]


def _ranks(axes: Axes, cells: pd.DataFrame, style: Style) -> None:
    axes.plot(cells["protocol"].cat.codes, cells["rank"], linewidth=1.3, **{**style, "markersize": 4})


def _table(data: TableData, frame: pd.DataFrame, names: Sequence[str]) -> PlainTable:
    """Print a line per cell, column by column, and where there are several columns the rows' mean ranks below."""
    columns = frame["panel"].nunique()
    values = zip(frame["mean"], frame["std"].replace(np.nan, None), strict=True)
    printed = [format_value(Value(mean, std), data.table.decimals) for mean, std in values]
    marks = frame["tied"].map(lambda tied: TIED if tied is True else "")
    ranks = frame.pivot(index=["panel", "series"], columns="protocol", values="rank")
    cells = frame.assign(printed=printed + marks).pivot(index=["panel", "series"], columns="protocol", values="printed")
    lines = cells + " (" + _ranks_printed(ranks) + ")"
    if columns > 1:
        by_row = ranks.groupby("series", observed=True)
        means = by_row.mean().where(by_row.count() == columns)
        below = _ranks_printed(means.dropna(how="all"))
        lines = pd.concat([lines, pd.concat({"mean rank": below}, names=["panel"])])
    rows = [(*map(str, key), *own) for key, own in zip(lines.index, lines.fillna(NO_VALUE).to_numpy(), strict=True)]
    table = PlainTable((heading(data.columns), heading(data.rows), *map(_short, names)), rows, labels=2)
    return table if columns > 1 else table.select(range(1, len(table.header)))


def _ranks_printed(ranks: pd.DataFrame) -> pd.DataFrame:
    """Print ranks, with marks where they differ from that under the first protocol."""
    first = ranks.iloc[:, 0]
    marks = ranks.apply(lambda own: np.select([own < first, own > first], [RISES, FALLS], ""))
    return ranks.map(printed_rank, na_action="ignore") + marks


def _short(protocol: str) -> str:
    return NAMES.get(protocol, protocol.replace("_", " "))


def _changes(frame: pd.DataFrame) -> str:
    """Say in how many columns the order and the best row depend on the protocol."""
    turned, others_ahead = 0, []
    for panel, own in frame.groupby("panel", observed=True):
        ranks = own.pivot(index="protocol", columns="series", values="rank").dropna(axis="columns")
        gaps = [ranks[a] - ranks[b] for a, b in itertools.combinations(ranks.columns, 2)]
        turned += any(gap.min() < 0 < gap.max() for gap in gaps)
        if not ranks.eq(ranks.min(axis="columns"), axis="index").all().any():
            others_ahead.append(str(panel))
    where = f": {'; '.join(others_ahead)}" if any(others_ahead) else ""
    best = (
        f"no row stays the best one in {len(others_ahead)}{where}"
        if others_ahead
        else "in each, one row stays the best"
    )
    return f"Two rows change places in {turned} of {counted(frame['panel'].nunique(), 'column')}; {best}."


def _claims(data: TableData, names: Sequence[str]) -> list[str]:
    """Return a sentence per claim whose verdict depends on the protocol, or one on all of them."""
    verdicts = data.verdicts[data.verdicts["protocol"].isin(names)]
    sentences = []
    for claim, own in verdicts.groupby("claim", sort=False):
        order = own.set_index("protocol").loc[list(names)].groupby("verdict", sort=False)
        words = [f"{verdict} under {', '.join(map(_short, under.index))}" for verdict, under in order]
        if len(words) > 1:
            sentences.append(f"Claim “{claim}”: {'; '.join(words)}.")
    return sentences or ["Every claim has the same verdict under all protocols."] * (not verdicts.empty)
