"""The same runs under every protocol: who is ahead, whose rank changes, and which claims are decided otherwise.

Papers report different numbers of the same models. Runs keep counts per client and round, so all of them can be shown
side by side and nothing is trained for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipeline.report.claims import judge_claims
from pipeline.report.drawing.panels import Style, draw_panels, left_out
from pipeline.report.drawing.sections import NO_VALUE, Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData, heading
from pipeline.report.table import TIED, Value, format_value, printed_rank

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
    f"{TIED}: cannot be told apart from the best of its column under the protocol, by seeds. Window: pooled over all "
    "test samples, the mean of the last measured rounds; last ten: of the last ten measurements; last round, best by "
    "validation: pooled, after this round; mean of clients: every client counts the same; worst tenth: the mean of the "
    "tenth of the clients that fare worst, rounded up; last position: as window, but of texts the last character alone."
)


def draw(data: TableData) -> Section:
    """Draw ranks under each protocol; one line when nothing has been measured. CSV: protocol, mean, std, rank, tied."""
    measured = {name for run in data.results.runs.values() for name in run.values} - {"validation"}
    order = dict.fromkeys((data.table.metric, *NAMES, *sorted(measured)))
    under = {name: data.results.under(name) for name in order if name in measured}
    frames: dict[str, pd.DataFrame] = {}
    for name, results in under.items():
        cells = TableData(results).cells
        cells = cells[cells["complete"] & cells["mean"].notna()].assign(protocol=name)
        # Of images the last position is the whole, so there it is left out.
        whole = (
            name == "last_position" and "last_rounds" in frames and cells["mean"].equals(frames["last_rounds"]["mean"])
        )
        if len(cells) and not whole:
            frames[name] = cells
    if not frames:
        return Section("No run of this table has been measured yet.")
    frame, names = pd.concat(frames.values(), ignore_index=True), list(frames)
    frame["protocol"] = pd.Categorical(frame["protocol"], names, ordered=True)
    scores = data.sign * frame["mean"].round(data.table.decimals)
    frame["rank"] = scores.groupby([frame["panel"], frame["protocol"]], observed=True).rank(ascending=False)
    frame = frame.sort_values(["panel", "series", "protocol"])
    figure = draw_panels(frame, "", "rank", _ranks)
    for panel in figure.axes:
        panel.set_xticks(range(len(names)), map(_short, names), rotation=35, ha="right", rotation_mode="anchor")
        panel.yaxis.set_major_locator(MaxNLocator(integer=True))
        panel.invert_yaxis()
    verdicts = [{judged.claim.text: judged.obtained.verdict for judged in judge_claims(under[name])} for name in names]
    text = " ".join([_TEXT, *_claims(pd.DataFrame(verdicts, list(map(_short, names))))])
    rows, columns = frame["series"].nunique(), frame["panel"].nunique()
    alt = f"Ranks of {counted(rows, 'row')} in {counted(columns, 'column')} under each protocol."
    lines = frame[[*data.axes(frame), "protocol", "mean", "std", "rank", "tied"]]
    return Section(text + left_out(frame, "protocols"), Picture(figure, alt), _table(data, frame, names), lines)


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
        below = _ranks_printed(by_row.mean().where(by_row.count() == columns).dropna(how="all"))
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


def _claims(verdicts: pd.DataFrame) -> list[str]:
    """Return a sentence per claim (a column) whose verdict depends on the protocol (a row), or one on all of them."""
    sentences = []
    for claim, own in verdicts.items():
        words = [f"{verdict} under {', '.join(same.index)}" for verdict, same in own.groupby(own, sort=False)]
        if len(words) > 1:
            sentences.append(f"Claim “{claim}”: {'; '.join(words)}.")
    return sentences or ["Every claim has the same verdict under all protocols."] * (not verdicts.empty)
