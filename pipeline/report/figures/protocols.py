"""The same runs under every protocol: who is ahead, whose rank changes, and which claims are decided otherwise.

Papers report different numbers of the same models. Runs keep counts per client and round, so all of them can be told
side by side and nothing is trained for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipeline.report.claims import judge_claims
from pipeline.report.drawing.panels import Style, columns_of, draw_columns, with_room
from pipeline.report.drawing.sections import NO_VALUE, OfCell, PlainTable, Section, all_points, counted, draw_picture
from pipeline.report.table.cells import Key, Value
from pipeline.report.table.layout import Layout
from pipeline.report.table.printed import TIED, format_value, printed_rank
from pipeline.report.table.results import Results

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
    "In parentheses the rank within the column, rows that tie as printed sharing the mean of their ranks; "
    f"{RISES} a better, {FALLS} a worse rank than under the table's own protocol, which is the first."
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
_TIED = f"{TIED}: cannot be told apart from the best of its column under the protocol, by seeds."
_NOTHING = "No run of this table has been measured yet."


def draw(results: Results) -> Section:
    """The section; one line when nothing has been measured."""
    by_protocol = {name: results.under(name) for name in protocols(results)}
    standings = collect_standings(by_protocol)
    if not standings:
        return Section(_NOTHING)
    layout = results.layout
    drawn, left_out = with_room(columns_of(layout, standings), "protocols")
    labels = "", "rank"
    picture = draw_picture(lambda: draw_columns(layout, standings, layout.rows, drawn, labels, _panel), _alt(standings))
    tied = [_TIED] if any(one.points["tied"].eq(True).any() for one in standings) else []
    text = (
        " ".join([_explained(by_protocol), _TEXT, *tied, _changes(layout, standings), *_claims(by_protocol)]) + left_out
    )
    table = _table(layout, standings, list(by_protocol), results.table.decimals)
    return Section(text, picture, table, all_points(layout, standings))


def protocols(results: Results) -> list[str]:
    """The protocols under which runs have figures, the table's own first.

    Of images the last position is the whole, so there it is left out. Accuracy on validation samples is what settings
    are chosen by, and no protocol of a paper.
    """
    values = [run.values for run in results.runs.values()]
    present = {name: None for by_protocol in values for name in by_protocol}
    alike = all(by.get("last_position") == by.get("last_rounds") for by in values)
    for name in ("validation", *(["last_position"] if alike and results.table.metric != "last_position" else [])):
        present.pop(name, None)
    return [name for name in dict.fromkeys((results.table.metric, *NAMES, *present)) if name in present]


def collect_standings(by_protocol: Mapping[str, Results]) -> list[OfCell]:
    """The cells that have a complete value under any protocol, column by column, with a line per protocol: protocol,
    mean, std, rank, tied (with the best; empty where seeds do not tell)."""
    standings: list[OfCell] = []
    for layout in [results.layout for results in by_protocol.values()][:1]:
        for column in layout.columns:
            ranks = {name: results.ranks(column, by_seeds=False) for name, results in by_protocol.items()}
            for row in layout.rows:
                lines = [
                    (name, value.mean, value.std, ranks[name][row], cell.tied)
                    for name, results in by_protocol.items()
                    if row in ranks[name] and (cell := results.layout.cell(row, column)) and (value := cell.obtained)
                ]
                if lines:
                    points = pd.DataFrame(lines, columns=["protocol", "mean", "std", "rank", "tied"])
                    standings.append(OfCell(row, column, points))
    return standings


def _table(layout: Layout, standings: list[OfCell], names: list[str], decimals: int) -> PlainTable:
    """A line per cell, column by column, and where there are several columns the rows' mean ranks below."""
    several = len(layout.columns) > 1
    lines = []
    for one in standings:
        own = {line["protocol"]: line for line in one.points.to_dict("records")}
        first = own[names[0]]["rank"] if names[0] in own else None
        cells = [_number(own[name], first, decimals) if name in own else NO_VALUE for name in names]
        lines.append((*([layout.column_title(one.column)] if several else []), *one.row, *cells))
    if several:
        lines += [("mean rank", *row, *cells) for row, cells in _mean_ranks(layout, standings, names)]
    *rows, column = layout.place_header if several else (*layout.place_header, "")
    header = (*([column] if several else []), *rows, *(_short(name) for name in names))
    return PlainTable(header, lines, labels=len(header) - len(names))


def _number(line: Mapping[Hashable, Any], first: float | None, decimals: int) -> str:
    value = Value(line["mean"], None if pd.isna(line["std"]) else line["std"])
    tied = TIED if line["tied"] is True else ""
    return f"{format_value(value, decimals)}{tied} ({printed_rank(line['rank'])}{_mark(line['rank'], first)})"


def _short(protocol: str) -> str:
    return NAMES.get(protocol, protocol.replace("_", " "))


def _mark(rank: float, first: float | None) -> str:
    return "" if first is None or rank == first else RISES if rank < first else FALLS


def _mean_ranks(layout: Layout, standings: list[OfCell], names: list[str]) -> list[tuple[Key, list[str]]]:
    """The mean rank of each row under each protocol, over all columns; a dash where it lacks one."""
    columns = columns_of(layout, standings)
    lines = []
    for row in layout.rows:
        own = [one.points.set_index("protocol")["rank"] for one in standings if one.row == row]
        means = [
            sum(ranks[name] for ranks in own) / len(columns)
            if len(own) == len(columns) and all(name in ranks for ranks in own)
            else None
            for name in names
        ]
        cells = [NO_VALUE if mean is None else f"{printed_rank(mean)}{_mark(mean, means[0])}" for mean in means]
        if any(mean is not None for mean in means):
            lines.append((row, cells))
    return lines


def _changes(layout: Layout, standings: list[OfCell]) -> str:
    """In how many columns the order and the best row depend on the protocol."""
    turned, others_ahead = 0, []
    columns = columns_of(layout, standings)
    for column in columns:
        ranks = pd.DataFrame(
            {one.row: one.points.set_index("protocol")["rank"] for one in standings if one.column == column}
        ).dropna(axis="columns")
        pairs = [(ranks[a] - ranks[b]) for a, b in itertools.combinations(ranks.columns, 2)]
        turned += any(gap.min() < 0 < gap.max() for gap in pairs)
        if not set.intersection(*(set(best) for best in _best(ranks))):
            others_ahead.append(layout.column_title(column))
    where = f": {'; '.join(filter(None, others_ahead))}" if any(others_ahead) else ""
    best = (
        f"no row stays the best one in {len(others_ahead)}{where}"
        if others_ahead
        else "in each, one row stays the best"
    )
    return f"Two rows change places in {turned} of {counted(len(columns), 'column')}; {best}."


def _explained(protocols: Iterable[str]) -> str:
    words = "; ".join(f"{_short(name)}: {_MEANINGS[name]}" for name in protocols if name in _MEANINGS)
    return f"The same runs, nothing trained anew. {words[:1].upper()}{words[1:]}."


def _best(ranks: pd.DataFrame) -> list[list[int]]:
    """The places of the rows of the best rank, by protocol."""
    return [[at for at, rank in enumerate(of) if rank == min(of)] for of in ranks.to_numpy().tolist()]


def _claims(by_protocol: Mapping[str, Results]) -> list[str]:
    """A sentence per claim whose verdict depends on the protocol, or one on all of them."""
    judged = {name: judge_claims(results) for name, results in by_protocol.items()}
    sentences, claims = [], list(zip(*judged.values(), strict=True))
    for judgements in claims:
        verdicts: dict[str, list[str]] = {}
        for name, judgement in zip(judged, judgements, strict=True):
            verdicts.setdefault(judgement.obtained.verdict, []).append(_short(name))
        if len(verdicts) > 1:
            words = "; ".join(f"{verdict} under {', '.join(names)}" for verdict, names in verdicts.items())
            sentences.append(f"Claim “{judgements[0].claim.text}”: {words}.")
    return sentences or (["Every claim has the same verdict under all protocols."] if claims else [])


def _panel(panel: Axes, standings: list[OfCell], styles: dict[Key, Style]) -> None:
    names = list(dict.fromkeys(name for one in standings for name in one.points["protocol"]))
    for one in standings:
        at = [names.index(name) for name in one.points["protocol"]]
        panel.plot(at, one.points["rank"], linewidth=1.3, **{**styles[one.row], "markersize": 4})
    panel.set_xticks(
        range(len(names)), [_short(name) for name in names], rotation=35, ha="right", rotation_mode="anchor"
    )
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panel.invert_yaxis()


def _alt(standings: list[OfCell]) -> str:
    rows, columns = ({key(one) for one in standings} for key in (attrgetter("row"), attrgetter("column")))
    return f"Ranks of {counted(len(rows), 'row')} in {counted(len(columns), 'column')} under each protocol."
