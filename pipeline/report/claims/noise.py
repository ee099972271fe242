"""How far apart values must be to be told apart: by what their ± says, or client by client where both have the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from pipeline.report.table.cells import Cell, noise
from pipeline.report.table.clients import client_accuracies
from pipeline.report.table.measured import Measured, Value

ERRORS = 2.0
"""Standard errors by which a mean over clients must differ: with many clients, some 95 % confidence."""

Pick = Callable[[Cell], Value | None]
"""A cell's value that claims are judged on: obtained or published."""


@dataclass(frozen=True)
class Uncertainty:
    """How much of a difference may be chance, and what says so.

    Attributes:
        paired: The clients whose differences it was taken from; 0: it is the combined deviation of the values.
        between_clients: Whether that deviation is the one between a run's clients.
    """

    size: float
    paired: int = 0
    between_clients: bool = False


class Clients:
    """The clients behind the cells of a table. Each run is read once, when it is asked for."""

    def __init__(self, runs: dict[str, Measured]) -> None:
        self._runs = runs
        self._read: dict[str, pd.Series[float]] = {}

    def of(self, cell: Cell) -> tuple[str, pd.Series[float]] | None:
        """A cell's federation, and its accuracy by client, the mean over its runs; None unless they share clients."""
        runs = [self._runs[run] for run in cell.runs]
        if cell.client is not None or not all(run.facts for run in runs):
            return None
        federations = {run.resolved.federation_id for run in runs}
        if len(federations) != 1:
            return None
        by_run = pd.concat([self._accuracies(run) for run in runs], axis=1)
        return federations.pop(), by_run.mean(axis=1, skipna=False)

    def _accuracies(self, run: Measured) -> pd.Series[float]:
        if run.id not in self._read:
            self._read[run.id] = client_accuracies(run)
        return self._read[run.id]


class Yardstick:
    """The noise of differences between cells.

    Where a ± is the spread between clients (the metric `clients`, one run in a cell), it says little about which of two
    methods is better, as both have the same easy and difficult clients. There obtained values are compared by client.
    """

    def __init__(self, pick: Pick, of_clients: bool, clients: Clients | None = None) -> None:
        """
        Args:
            pick: The values.
            of_clients: Whether the ± of a single run is the spread between clients.
            clients: Those behind obtained values; None for published ones.
        """
        self.pick = pick
        self._of_clients = of_clients
        self._clients = clients if of_clients else None

    def value(self, cell: Cell) -> Value:
        """A cell's value, which is known to be there."""
        value = self.pick(cell)
        assert value is not None
        return value

    def between(self, one: Cell, other: Cell) -> Uncertainty:
        """The noise of the difference of two cells."""
        return self.of_mean([(one, other)])

    def of_mean(self, pairs: Sequence[tuple[Cell, Cell]]) -> Uncertainty:
        """The noise of the mean of the differences of pairs, which count as independent where clients do not tell."""
        paired = self._paired(pairs)
        if paired is not None:
            return paired
        exact = Value(0.0)
        deviations = [noise(self.pick(one) or exact, self.pick(other) or exact) for one, other in pairs]
        size = math.hypot(*deviations) / len(pairs)
        single = all(len(cell.runs) <= 1 and cell.client is None for pair in pairs for cell in pair)
        return Uncertainty(size, between_clients=self._of_clients and single and size > 0)

    def _paired(self, pairs: Sequence[tuple[Cell, Cell]]) -> Uncertainty | None:
        """From the differences of each client, averaged over the pairs that it is in."""
        if self._clients is None:
            return None
        differences: dict[str, list[pd.Series[float]]] = {}
        for one, other in pairs:
            ours, theirs = self._clients.of(one), self._clients.of(other)
            if ours is None or theirs is None or ours[0] != theirs[0]:
                return None
            differences.setdefault(ours[0], []).append(ours[1] - theirs[1])
        variance, count = 0.0, 0
        for several in differences.values():
            by_client = pd.concat(several, axis=1).mean(axis=1, skipna=False)
            if len(by_client) < 2 or by_client.isna().any():  # a client was measured on one side only
                return None
            share = len(several) / len(pairs)
            variance += share**2 * float(by_client.var(ddof=1)) / len(by_client)
            count += len(by_client)
        return Uncertainty(ERRORS * math.sqrt(variance), paired=count)
