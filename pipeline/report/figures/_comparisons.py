"""Comparisons of methods: gains over local training, accuracy under noise, other protocols, mean ranks."""

from __future__ import annotations

import json
from string import ascii_lowercase

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from pipeline.report.cells import ACCURACY
from pipeline.report.claims import judge_claims
from pipeline.report.drawing.panels import Style, draw_panels, left_out, name_lines, styles_of
from pipeline.report.drawing.sections import Picture, PlainTable, Section, pluralize
from pipeline.report.figures._data import MIXED_QUANTITIES, TableData, match_runs
from pipeline.report.frame import Value
from pipeline.report.legend import PROTOCOL_NAMES
from pipeline.report.printed import NO_VALUE, TIED, axis_title, format_difference, format_rank, format_value
from pipeline.report.statistics import Ranking, rank_methods

MIN_COLUMNS = 5  # for ranks; with fewer, almost none differ by more than the critical difference
_GAIN = (
    "Accuracy of a method on a client less that of Local on the same client, after the last round, in percentage "
    "points: the same partition, seed and backbone. Gaussian kernel densities over the clients of all runs of a cell."
)
_NOISE = (
    "A point is a client: its test accuracy after the last round against the standard deviation of the noise on its "
    "images. Dotted: the mean of a method over its clients. Least and most noise: the mean over the clients that have "
    "it."
)
_PROTOCOLS = (
    "The same runs, not trained again. In parentheses the rank within the column, rows that tie as printed sharing "
    f"the mean of their ranks; ↑ a better, ↓ a worse rank than under the first, the table's own protocol. {TIED}: "
    "does not differ significantly from the best of its column under the protocol, by seeds. Window: pooled over all "
    "test samples, the mean of the last measured rounds; last round, best by validation: pooled, after this round; "
    "mean of clients: every client counts the same; worst tenth: the clients that fare worst; last position: as "
    "window, but of texts the last character alone."
)


def draw_gain(data: TableData) -> Section:
    """Draw densities of the clients' gain over Local; only a sentence if there is none. CSV: run, local (the run that
    it is compared with), client, gain."""
    is_local, accuracies = data.runs["method"] == "local", data.accuracies
    others = data.runs[~is_local]
    local = match_runs(others, data.runs[is_local], "federation")["run"].rename("local")
    gains = others.join(local, how="inner").merge(accuracies, on="run")
    gains = gains.merge(accuracies, left_on=["local", "client"], right_on=["run", "client"], suffixes=("", "_local"))
    if gains.empty:
        return Section("Nothing to compare: no measured run of Local shares partition and backbone with others.")
    axes = data.axes(gains)
    gains = gains.assign(gain=gains["accuracy"] - gains["accuracy_local"]).sort_values(axes, kind="stable")
    by_cell = gains.groupby(axes, observed=True)["gain"]
    means = by_cell.mean()
    summary = {
        "mean gain": means.map(lambda mean: format_difference(mean, data.table.decimals)),
        "clients that gain (%)": by_cell.agg(lambda gain: 100.0 * (gain > 0).mean()).map("{:.1f}".format),
        "clients": by_cell.size().map("{:,}".format),
    }
    figure = draw_panels(gains, "gain over Local (points)", "density of clients", _draw_density)
    for panel in figure.axes:
        panel.axvline(0.0, color="#888888", linewidth=0.8)
        panel.set_ylim(bottom=0.0)
    alt = f"Densities of the clients' gain over Local, {pluralize(gains['series'].nunique(), 'method')}"
    ends = " to ".join(format_difference(end, 2) for end in (means.min(), means.max()))
    picture = Picture(figure, f"{alt}: mean gains from {ends} points.")
    table = PlainTable.of(pd.DataFrame(summary).reset_index(), axes)
    return Section(_GAIN + left_out(gains, "gain"), picture, table, gains[[*axes, "run", "local", "client", "gain"]])


def density(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return positions up to three bandwidths beyond the outermost values, and a Gaussian kernel density there, with
    Scott's bandwidth. None if all values are equal."""
    from scipy.stats import gaussian_kde  # importing it takes longer than writing most reports

    if np.ptp(values) < 1e-9 * max(1.0, float(np.abs(values).max())):
        return None
    estimate = gaussian_kde(values)
    margin = 3.0 * float(np.sqrt(estimate.covariance[0, 0]))
    positions = np.linspace(values.min() - margin, values.max() + margin, 256)
    return positions, estimate(positions)


def _draw_density(axes: Axes, gains: pd.DataFrame, style: Style) -> None:
    line = {"linewidth": 1.3, "markersize": 3.5, **style}
    if curve := density(gains["gain"].to_numpy()):
        axes.plot(*curve, markevery=(21, 42), **line)
    else:
        axes.axvline(gains["gain"].mean(), **line)


def draw_noise(data: TableData) -> Section:
    """Draw a point per client; only a sentence if no partition has noise. CSV: run, client, noise, accuracy."""
    noisy = data.runs.dropna(subset="noise")
    clients = noisy.merge(data.accuracies, on="run")
    if clients.empty:
        return Section("No measured run of this table has clients with noise on their images.")
    noise = {text: json.loads(text) for text in clients["noise"].unique()}
    clients["noise"] = [noise[text][client] for text, client in zip(clients["noise"], clients["client"], strict=True)]
    axes = data.axes(clients)
    by_cell = clients.groupby(axes, observed=True)
    summary = pd.DataFrame({"mean": by_cell["accuracy"].mean()})
    ends = {"least noise": by_cell["noise"].transform("min"), "most noise": by_cell["noise"].transform("max")}
    for column, end in ends.items():
        summary[column] = clients[clients["noise"] == end].groupby(axes, observed=True)["accuracy"].mean()
    printed = summary.map(f"{{:.{data.table.decimals}f}}".format).assign(clients=by_cell.size().map("{:,}".format))
    figure = draw_panels(clients, "noise of the client (std)", ACCURACY, _draw_points, {"linestyle": ":"})
    means, alt = summary["mean"], f"Accuracy against noise, {pluralize(clients['series'].nunique(), 'method')}"
    picture = Picture(figure, f"{alt}: mean accuracies from {means.min():.2f} to {means.max():.2f} percent.")
    lines = clients.sort_values(axes, kind="stable")[[*axes, "run", "client", "noise", "accuracy"]]
    table = PlainTable.of(printed.reset_index(), axes)
    return Section(_NOISE + left_out(clients, "noise"), picture, table, lines)


def _draw_points(axes: Axes, clients: pd.DataFrame, style: Style) -> None:
    style = {**style, "markersize": 4.0}
    hollow = {"markerfacecolor": "none", "linestyle": "none"}  # so that overlapping points can be seen
    axes.plot(clients["noise"], clients["accuracy"], **{**style, **hollow})
    ends, mean = [clients["noise"].min(), clients["noise"].max()], clients["accuracy"].mean()
    axes.plot(ends, [mean] * 2, **{**style, "linestyle": ":", "linewidth": 1.3})


def draw_protocols(data: TableData) -> Section:
    """Draw ranks under each protocol; only a sentence if nothing is measured. CSV: protocol, mean, std, rank, tied."""
    if data.table.quantities:
        return MIXED_QUANTITIES
    if data.quantity and data.quantity.definition:
        return Section("Its numbers are costs, which are under no protocol.")
    metric, view = data.table.metric_of(data.quantity), data.quantity.view.words if data.quantity else ""
    score = metric.partition(".")[2]  # only protocols of the table's score and view are compared
    names = {name.partition(" ") for run in data.results.runs.values() for name in run.values()}
    measured = {name for name, _, words in names if name.partition(".")[2] == score and words == view} - {"validation"}
    protocols = [f"{name}.{score}".rstrip(".") for name in PROTOCOL_NAMES]
    ordered = dict.fromkeys((metric, *protocols, *sorted(measured)))
    by_protocol = {name: data.results.with_metric(name) for name in ordered if name in measured}
    frames = dict[str, pd.DataFrame]()
    for name, results in by_protocol.items():
        cells = TableData(results).cells
        cells = cells[cells["complete"] & cells["mean"].notna()].assign(protocol=name)
        window = frames.get("last_rounds") if name == "last_position" else None  # these are equal for images
        if len(cells) and (window is None or not cells["mean"].equals(window["mean"])):
            frames[name] = cells
    if not frames:
        return Section("No run of this table has been measured yet.")
    titles = [PROTOCOL_NAMES.get(name.split(".")[0], name.replace("_", " ")) for name in frames]
    frame = pd.concat(frames.values(), ignore_index=True)
    frame["protocol"] = pd.Categorical(frame["protocol"], list(frames), ordered=True)
    scores = data.sign * frame["mean"].round(data.table.decimals)
    frame["rank"] = scores.groupby([frame["panel"], frame["protocol"]], observed=True).rank(ascending=False)
    frame = frame.sort_values(["panel", "series", "protocol"])
    figure = draw_panels(frame, "", "rank", _draw_rank_curve, lines=True)
    for panel in figure.axes:
        panel.set_xticks(range(len(titles)), titles, rotation=35, ha="right", rotation_mode="anchor")
        panel.yaxis.set_major_locator(MaxNLocator(integer=True))
        panel.invert_yaxis()
    name_lines(figure)
    judgements = [judge_claims(by_protocol[name]) for name in frames]
    verdicts = pd.DataFrame([{claim.claim.text: claim.obtained.verdict for claim in claims} for claims in judgements])
    text = " ".join([_PROTOCOLS, *_claims(verdicts.set_axis(titles))])
    rows, columns = pluralize(frame["series"].nunique(), "row"), pluralize(frame["panel"].nunique(), "column")
    picture = Picture(figure, f"Ranks of {rows} in {columns} under each protocol.")
    lines = frame[[*data.axes(frame), "protocol", "mean", "std", "rank", "tied"]]
    return Section(text + left_out(frame, "protocols"), picture, _by_protocol(data, frame, titles), lines)


def _draw_rank_curve(axes: Axes, cells: pd.DataFrame, style: Style) -> None:
    axes.plot(cells["protocol"].cat.codes, cells["rank"], linewidth=1.3, **{**style, "markersize": 4})


def _by_protocol(data: TableData, frame: pd.DataFrame, titles: list[str]) -> PlainTable:
    """Return a line per cell, column by column, with a mark if its rank differs from that under the first protocol. If
    there are several columns, the mean ranks of rows follow."""

    def printed(ranks: pd.DataFrame) -> pd.DataFrame:
        first = ranks.iloc[:, 0]
        marks = ranks.apply(lambda column: np.select([column < first, column > first], ["↑", "↓"], ""))
        return ranks.map(format_rank, na_action="ignore") + marks

    columns, texts = frame["panel"].nunique(), []
    for mean, std, tied in zip(frame["mean"], frame["std"].replace(np.nan, None), frame["tied"], strict=True):
        text = format_value(Value(mean, std), data.table.decimals)
        texts.append(f"{text}{TIED}" if tied is True else text)
    frame, keys = frame.assign(text=texts), ["panel", "series"]
    ranks, cells = (frame.pivot(index=keys, columns="protocol", values=name) for name in ("rank", "text"))
    lines = cells + " (" + printed(ranks) + ")"
    if columns > 1:
        by_row = ranks.groupby("series", observed=True)
        mean_ranks = printed(by_row.mean().where(by_row.count() == columns).dropna(how="all"))
        lines = pd.concat([lines, pd.concat({"mean rank": mean_ranks}, names=["panel"])])
    rows = [(*map(str, key), *row) for key, row in zip(lines.index, lines.fillna(NO_VALUE).to_numpy(), strict=True)]
    labels = (" · ".join(map(axis_title, axes)) for axes in (data.columns, data.rows))
    table = PlainTable((*labels, *titles), rows, labels=2)
    return table if columns > 1 else table.select(range(1, len(table.header)))


def _claims(verdicts: pd.DataFrame) -> list[str]:
    """Return a sentence per claim (a column) whose verdict depends on the protocol (a row), or one if none does."""
    sentences = []
    for claim, column in verdicts.items():
        parts = [f"{verdict} under {', '.join(group.index)}" for verdict, group in column.groupby(column, sort=False)]
        if len(parts) > 1:
            sentences.append(f"Claim “{claim}”: {'; '.join(parts)}.")
    if not sentences and len(verdicts.columns):
        sentences.append("Every claim has the same verdict under all protocols.")
    return sentences


def draw_ranks(data: TableData) -> Section:
    """Draw mean ranks of rows that have a number in every column, and connect those that do not differ by Nemenyi's
    test (Demšar, 2006, figure 1); only a sentence if there are too few. CSV: mean_rank."""
    if {*data.table.quantities} & {*data.table.rows}:
        return MIXED_QUANTITIES
    cells = data.cells
    scores = cells["sign"] * cells["mean"].where(cells["complete"]).round(data.table.decimals)
    pivot = cells.assign(score=scores).pivot(index="series", columns="panel", values="score")
    complete = pivot.dropna()
    rows, columns = complete.shape
    if columns < MIN_COLUMNS or rows < 2:
        needs = f"Mean ranks need {MIN_COLUMNS} columns and two rows that have numbers in all of them"
        return Section(f"{needs}; here: {pluralize(columns, 'column')} and {pluralize(rows, 'such row')}.")
    ranking = rank_methods(complete.to_numpy().T)
    order = [int(i) for i in np.argsort(ranking.mean_ranks, kind="stable")]
    names = [str(complete.index[i]) for i in order]
    groups = list(zip(ascii_lowercase, ranking.groups, strict=False))
    letters = ["".join(letter for letter, group in groups if i in group) for i in order]
    labels = cells.drop_duplicates("series").set_index("series").loc[names, data.rows].reset_index(drop=True)
    lines = labels.assign(mean_rank=ranking.mean_ranks[order])
    printed = labels.assign(rank=lines["mean_rank"].map("{:.2f}".format), group=letters)
    printed = printed.rename(columns={"rank": "mean rank"})
    text = (
        f"Ranks of the numbers as printed, 1 the best, ties sharing the mean of theirs; their mean over {columns} "
        f"columns, which count as independent. Friedman's test that all are alike: p = {ranking.p:.2g}. By Nemenyi's "
        f"test at 5 % two rows differ when their mean ranks are more than {ranking.critical:.2f} apart. Lines join and "
        f"letters name rows that do not differ significantly{'' if ranking.groups else '; here, all do'}."
    )
    if incomplete := [str(row) for row in pivot.index if row not in complete.index]:
        text += f" Left out, as they lack a number: {', '.join(incomplete)}."
    alt = f"Mean ranks of {pluralize(rows, 'row')}, from {names[0]} to {names[-1]}."
    return Section(text, Picture(_rank_diagram(ranking, order, names), alt), PlainTable.of(printed, data.rows), lines)


def _rank_diagram(ranking: Ranking, order: list[int], names: list[str]) -> Figure:
    count, groups = len(order), ranking.groups
    figure = Figure(figsize=(6.0, 1.1 + 0.28 * count), layout="constrained")
    axes, styles = figure.subplots(), styles_of(range(count))
    for y, method in enumerate(order):
        axes.plot(ranking.mean_ranks[method], y, **{**styles[method], "linestyle": "none", "markersize": 6})
    for i, group in enumerate(groups):
        ends = [order.index(group[0]), order.index(group[-1])]
        axes.plot([count + 0.4 + 0.25 * i] * 2, ends, color="#444444", linewidth=3, solid_capstyle="round")
    axes.set_yticks(range(count), names, parse_math=False)
    axes.set_xticks(range(1, count + 1))
    axes.set(xlim=(0.7, count + 0.7 + 0.25 * len(groups)), ylim=(count - 0.5, -0.5), xlabel="mean rank")
    return figure
