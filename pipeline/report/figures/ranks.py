"""Mean ranks over the columns of a table, and which rows cannot be told apart by them (Demšar, 2006, figure 1)."""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np
from matplotlib.figure import Figure

from pipeline.report.drawing.panels import styles_of
from pipeline.report.drawing.sections import Picture, PlainTable, Section, counted
from pipeline.report.figures._data import TableData
from pipeline.report.statistics import Ranking, rank_methods

TITLE = "Mean ranks"
FEWEST = 5
"""Columns that are needed: of fewer, next to no ranks differ by more than the critical difference."""


def draw(data: TableData) -> Section:
    """Draw the rows that have a number in every column, by the numbers as printed, and join those that Nemenyi's test
    cannot tell apart; one line when there are too few. CSV: mean_rank."""
    cells = data.cells
    scores = data.sign * cells["mean"].where(cells["complete"]).round(data.table.decimals)
    every = cells.assign(score=scores).pivot(index="series", columns="panel", values="score")
    whole = every.dropna()
    if len(whole.columns) < FEWEST or len(whole) < 2:
        found = f"{counted(len(whole.columns), 'column')} and {counted(len(whole), 'such row')}"
        return Section(
            f"Mean ranks need {FEWEST} columns and two rows that have numbers in all of them; here: {found}."
        )
    ranking = rank_methods(whole.to_numpy().T)
    order = [int(at) for at in np.argsort(ranking.mean_ranks, kind="stable")]
    names = [str(whole.index[at]) for at in order]
    groups = list(zip(ascii_lowercase, ranking.groups, strict=False))
    letters = ["".join(letter for letter, group in groups if at in group) for at in order]
    labels = cells.drop_duplicates("series").set_index("series").loc[names, data.rows].reset_index(drop=True)
    lines = labels.assign(mean_rank=ranking.mean_ranks[order])
    printed = labels.assign(rank=lines["mean_rank"].map("{:.2f}".format), group=letters)
    printed = printed.rename(columns={"rank": "mean rank"})
    text = (
        f"Ranks of the numbers as printed, 1 the best, their mean over {len(whole.columns)} columns; rows that tie"
        f" share the mean of theirs. Friedman's test that all are alike: p = {ranking.p:.2g}. By Nemenyi's test at 5 %"
        f" two rows differ when their mean ranks are more than {ranking.critical:.2f} apart (critical difference)."
        " Columns count as independent of each other, whatever they share. Lines join and letters name rows that cannot"
        f" be told apart{'' if ranking.groups else '; here, all can'}."
    )
    if lacking := [str(row) for row in every.index if row not in whole.index]:
        text += f" Left out, as they lack a number: {', '.join(lacking)}."
    alt = f"Mean ranks of {counted(len(order), 'row')}, from {names[0]} to {names[-1]}."
    return Section(text, Picture(_draw(ranking, order, names), alt), PlainTable.of(printed, data.rows), lines)


def _draw(ranking: Ranking, order: list[int], names: list[str]) -> Figure:
    figure = Figure(figsize=(6.0, 1.1 + 0.28 * len(order)), layout="constrained")
    axes = figure.subplots()
    styles = styles_of(range(len(names)))
    for down, at in enumerate(order):
        axes.plot(ranking.mean_ranks[at], down, **{**styles[at], "linestyle": "none", "markersize": 6})
    for across, group in enumerate(ranking.groups):
        ends = [order.index(group[0]), order.index(group[-1])]
        axes.plot([len(order) + 0.4 + 0.25 * across] * 2, ends, color="#444444", linewidth=3, solid_capstyle="round")
    axes.set_yticks(range(len(order)), names, parse_math=False)
    axes.set_xticks(range(1, len(order) + 1))
    axes.set(xlim=(0.7, len(order) + 0.7 + 0.25 * len(ranking.groups)), ylim=(len(order) - 0.5, -0.5))
    axes.set_xlabel("mean rank")
    return figure
