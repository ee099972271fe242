"""Differences of obtained values, seed by seed.

Randomness is derived from the seed, so two methods under one seed have the same partition, the same initial weights and
the same order of batches; most of what a seed does to one it does to the other, and their difference is free of it.
What is counted are seeds, whatever the table averages over: the runs of a cell under one seed are one number, and so is
what a claim takes together `over` some axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.report.claims.chance import Chance, over_seeds
from pipeline.report.claims.yardstick import Yardstick
from pipeline.report.statistics.comparison import compare, paired_differences
from pipeline.report.statistics.resampling import bootstrap_interval
from pipeline.report.statistics.spreads import compare_spreads
from pipeline.report.table.cells import Cell
from pipeline.report.table.clients import client_accuracies
from pipeline.report.table.measured import Measured, Value

Series = NDArray[np.float64]


class Obtained(Yardstick):
    """Values of runs. Each run's clients are read once, when they are asked for."""

    def __init__(self, runs: Mapping[str, Measured], metric: str) -> None:
        """
        Args:
            runs: By id.
            metric: That of the table.
        """
        self._runs, self._metric = runs, metric
        self._clients: dict[str, pd.Series[float]] = {}

    def pick(self, cell: Cell) -> Value | None:
        return cell.obtained if cell.complete else None

    def mean(self, cells: Sequence[Cell]) -> Value:
        if len(cells) == 1:
            return self.value(cells[0])
        mean = math.fsum(self.value(cell).mean for cell in cells) / len(cells)
        (series,) = self._series(cells, len(cells))
        return Value(mean, _deviation(series))

    def width(self, high: Cell, low: Cell) -> Value:
        ours, theirs = self._series([high], 1, [low])
        return Value(self.value(high).mean - self.value(low).mean, _deviation(ours - theirs))

    def contrast(self, plus: Sequence[Cell], minus: Sequence[Cell], asked: float, parts: int = 1) -> Chance:
        ours, theirs = self._series(plus, parts, minus)
        if not len(ours):  # nothing pairs
            one, other = (math.fsum(self.value(cell).mean for cell in side) / parts for side in (plus, minus))
            return Chance(one - other, -math.inf, math.inf, 1.0, seeds=0)
        chance = over_seeds(compare(ours - asked, theirs), asked)
        return replace(chance, clients=self._over_clients(plus, minus, parts)) if chance.seeds == 1 else chance

    def spreads(self, plus: Cell, minus: Cell, asked: float) -> Chance:
        ours, theirs = self._series([plus], 1, [minus])
        found = compare_spreads(ours, theirs, asked)
        one, other = (self.value(cell).std or 0.0 for cell in (plus, minus))
        return Chance(one - other, found.low, found.high, found.p, found.n)

    def _series(self, first: Sequence[Cell], parts: int, *others: Sequence[Cell]) -> list[Series]:
        """The sums of each group of cells by seed, in parts, in the order of the seeds that all cells have."""
        by_cell = [[cell.by_seed for cell in group] for group in (first, *others)]
        seeds = sorted(set.intersection(*(set(values) for group in by_cell for values in group)))
        return [np.array([math.fsum(v[seed] for v in group) / parts for seed in seeds]) for group in by_cell]

    def _over_clients(self, plus: Sequence[Cell], minus: Sequence[Cell], parts: int) -> tuple[int, float, float] | None:
        """How many clients a single seed has and the interval over them; None unless the metric is their mean, and
        all cells have the same ones.
        """
        cells = [*plus, *minus]
        runs = [self._runs[run] for cell in cells for run in cell.runs]
        federations = {run.resolved.federation_id for run in runs}
        if self._metric != "clients" or len(federations) > 1 or any(cell.client is not None for cell in cells):
            return None
        ours, theirs = (pd.concat([self._accuracies(cell) for cell in side], axis=1) for side in (plus, minus))
        both = pd.concat([side.sum(axis=1, skipna=False) / parts for side in (ours, theirs)], axis=1).sort_index()
        differences = paired_differences(*(both[[side]].to_numpy().T for side in both.columns))
        count = int((~np.isnan(differences)).sum())
        return (count, *bootstrap_interval(differences)) if count > 1 else None

    def _accuracies(self, cell: Cell) -> pd.Series[float]:
        for run in cell.runs:
            if run not in self._clients:
                self._clients[run] = client_accuracies(self._runs[run])
        return pd.concat([self._clients[run] for run in cell.runs], axis=1).mean(axis=1, skipna=False)


def _deviation(by_seed: Series) -> float | None:
    """That over the seeds, as cells have it; one seed has none."""
    return float(by_seed.std()) if len(by_seed) > 1 else None
