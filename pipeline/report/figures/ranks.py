"""Mean ranks over the columns of a table, and which rows cannot be told apart by them (Demšar, 2006, figure 1)."""

from __future__ import annotations

import string

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.drawing.panels import styles_of
from pipeline.report.drawing.sections import PlainTable, Section, counted, draw_picture
from pipeline.report.statistics import Ranking, rank_methods
from pipeline.report.table.cells import Key
from pipeline.report.table.results import Results

TITLE = "Mean ranks"
FEWEST = 5
"""Columns that are needed: of fewer, next to no ranks differ by more than the critical difference."""

_LINE = 0.28  # inches per row


def draw(results: Results) -> Section:
    """The section; one line when there are too few columns or rows with numbers."""
    layout = results.layout
    scores, left_out = _scores(results)
    if len(scores.columns) < FEWEST or len(scores) < 2:
        return Section(
            f"Mean ranks need {FEWEST} columns and two rows that have numbers in all of them; there "
            f"{'is' if len(scores.columns) == 1 else 'are'} {counted(len(scores.columns), 'column')} here and "
            f"{counted(len(scores), 'such row')}."
        )
    ranking = rank_methods(scores.to_numpy().T)
    order = [int(at) for at in np.argsort(ranking.mean_ranks, kind="stable")]
    rows: list[Key] = list(scores.index)
    names = [" · ".join(row) for row in rows]
    letters = ["".join(string.ascii_lowercase[i % 26] for i, g in enumerate(ranking.groups) if at in g) for at in order]
    lines = [(*rows[at], f"{ranking.mean_ranks[at]:.2f}", own) for at, own in zip(order, letters, strict=True)]
    header = (*layout.place_header[: len(layout.row_axes)], "mean rank", "group")
    data = pd.DataFrame(
        [dict(zip(layout.row_axes, rows[at], strict=True)) | {"mean_rank": ranking.mean_ranks[at]} for at in order]
    )
    picture = draw_picture(lambda: _draw(ranking, order, names), _alt(ranking, order, names))
    text = _text(ranking, len(scores.columns)) + left_out
    return Section(text, picture, PlainTable(header, lines, labels=len(layout.row_axes)), data)


def _scores(results: Results) -> tuple[pd.DataFrame, str]:
    """The numbers as printed of the rows that have all, the highest the best, and a sentence on the other rows."""
    layout, table = results.layout, results.table
    sign = -1.0 if table.better == "lower" else 1.0

    def score(row: Key, column: Key) -> float:
        cell = layout.cell(row, column)
        return sign * round(cell.obtained.mean, table.decimals) if cell and cell.obtained and cell.complete else np.nan

    numbers = np.array([[score(row, column) for column in layout.columns] for row in layout.rows])
    whole = ~np.isnan(numbers).any(axis=1)
    lacking = [" · ".join(row) for row, there in zip(layout.rows, whole, strict=True) if not there]
    words = f" Left out, as they lack a number: {', '.join(lacking)}." if lacking else ""
    frame = pd.DataFrame(numbers[whole], dtype=float)
    frame.index = pd.Index([row for row, there in zip(layout.rows, whole, strict=True) if there], tupleize_cols=False)
    return frame, words


def _text(ranking: Ranking, columns: int) -> str:
    found = (
        "Lines join, and letters name, the rows that cannot be told apart."
        if ranking.groups and len(ranking.groups[0]) < len(ranking.mean_ranks)
        else "No two rows can be told apart."
        if ranking.groups
        else "All rows can be told apart."
    )
    return (
        f"Ranks of the numbers as printed, 1 the best, their mean over {columns} columns; rows that tie share the mean"
        f" of their ranks. Friedman's test that all are alike: p = {ranking.p:.2g}. By Nemenyi's test at 5 % two rows"
        f" differ when their mean ranks are more than {ranking.critical:.2f} apart (critical difference). Columns count"
        f" as independent of each other, whatever they share. {found}"
    )


def _draw(ranking: Ranking, order: list[int], names: list[str]) -> Figure:
    figure = Figure(figsize=(6.0, 1.1 + _LINE * len(order)), layout="constrained")
    axes = figure.subplots()
    styles = styles_of(range(len(names)))
    for down, at in enumerate(order):
        axes.plot(ranking.mean_ranks[at], down, **{**styles[at], "linestyle": "none", "markersize": 6})
    for across, group in enumerate(ranking.groups):
        ends = [order.index(group[0]), order.index(group[-1])]
        axes.plot([len(order) + 0.4 + 0.25 * across] * 2, ends, color="#444444", linewidth=3, solid_capstyle="round")
    axes.set_yticks(range(len(order)), [names[at] for at in order], parse_math=False)
    axes.set_xticks(range(1, len(order) + 1))
    axes.set_xlim(0.7, len(order) + 0.7 + 0.25 * len(ranking.groups))
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlabel("mean rank")
    return figure


def _alt(ranking: Ranking, order: list[int], names: list[str]) -> str:
    best, worst = order[0], order[-1]
    return (
        f"Mean ranks of {counted(len(order), 'row')}: from {names[best]} at {ranking.mean_ranks[best]:.2f} to "
        f"{names[worst]} at {ranking.mean_ranks[worst]:.2f}, critical difference {ranking.critical:.2f}."
    )
