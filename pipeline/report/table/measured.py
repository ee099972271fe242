"""What the runs of a table left behind under ``artifacts/runs``: figures, facts, curves, or nothing yet."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pflcore.artifacts import read_meta, read_table
from pflcore.errors import UserError
from pflcore.protocols import Figures, curve, rounds_trained, summarise
from pipeline.spec.metrics import PERCENT
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import RECALLED, run_path

LAST_TEN, LAST = "last_ten", 10
"""Measurements at the end of a run that ``last_ten`` is the mean of; of a run with fewer all that it has."""


@dataclass(frozen=True)
class Value:
    """A mean and, where one is defined, a standard deviation. Unit: percent and percentage points, by default.

    Attributes:
        n: Of a run's value: how many measurements, or clients, both are taken over.
        unit: One of those of :mod:`pipeline.spec.metrics`.
        printed: What is written in its place: a published quantity as the paper has it.
    """

    mean: float
    std: float | None = None
    n: int | None = field(default=None, compare=False)
    unit: str = field(default=PERCENT, compare=False)
    printed: str = field(default="", compare=False)


@dataclass(frozen=True)
class OneClient:
    """How one client of a run fared.

    Attributes:
        values: As those of its run, from the test samples of the client alone.
        curve: Its test accuracy in percent, indexed by round.
    """

    values: dict[str, Value]
    curve: pd.Series[float]


@dataclass(frozen=True)
class Measured:
    """One run as the report sees it.

    Attributes:
        resolved: What was asked for.
        values: By protocol; empty while the run has not been evaluated, and for a run that diverged.
        clients: Those that the table shows by themselves; empty while the run has not been made.
        facts: Metadata of the run's artifact (device, hashes, sizes), empty while there is none.
    """

    id: str
    resolved: Run
    values: dict[str, Value]
    facts: dict[str, Any]
    rounds_path: Path
    clients: dict[int, OneClient] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        return self.facts.get("diverged") is not None

    @property
    def kept(self) -> str:
        """The day on which it was obtained, if it comes from the ledger; else ""."""
        return str(self.facts.get("kept") or "")

    def values_of(self, client: int | None) -> dict[str, Value]:
        """By protocol: of one client, or of all for None."""
        if client is None:
            return self.values
        return self.clients[client].values if client in self.clients else {}


def measure(table: ResolvedTable, runs: Mapping[str, Run], root: Path) -> dict[str, Measured]:
    """All runs of a resolved table by id, sorted. A run without artifacts is there, without values.

    Args:
        runs: These and maybe more, by id.
        root: The workspace, under which ``artifacts/runs/<run id>`` lies; in its place may be what was recalled.

    Raises:
        UserError: An artifact exists and cannot be read.
    """
    alone: dict[str, dict[int, None]] = {}
    for cell in table.cells:
        if cell.client is not None:
            for run in cell.runs:
                alone.setdefault(run, {})[cell.client] = None
    if table.counted:
        return {
            run: Measured(run, runs[run], {}, {}, root / run_path(run, "rounds.parquet")) for run in sorted(table.runs)
        }
    return {run: _measure(run, runs[run], root, alone.get(run, {}), table.metric) for run in sorted(table.runs)}


def _measure(id_: str, run: Run, root: Path, alone: Collection[int], metric: str) -> Measured:
    rounds, recalled = root / run_path(id_, "rounds.parquet"), root / RECALLED / id_ / "rounds.parquet"
    if not rounds.is_file() and recalled.is_file():
        rounds = recalled
    facts = read_meta(rounds, "rounds/2") if rounds.is_file() else {}
    values = {} if facts.get("diverged") is not None else _values(rounds, run)
    if values and metric == LAST_TEN:  # which no other table needs
        values |= _known(last_ten(read_table(rounds, "rounds/2")[0]))
    clients = _clients(rounds, run, alone, metric) if alone and facts else {}
    return Measured(id_, run, values, facts, rounds, clients)


def _clients(path: Path, run: Run, alone: Collection[int], metric: str) -> dict[int, OneClient]:
    """The protocols are queries over rounds: of the rows of one client they tell about that client."""
    table, clients = read_table(path, "rounds/2")[0], {}
    for client in alone:
        # A round is chosen by the validation samples of all clients.
        mine = pc.equal(table["client"], client)
        own = table.filter(pc.or_(mine, pc.equal(table["population"].cast(pa.string()), "validation")))
        rounds, accuracy, _ = curve(own)
        if len(rounds):
            figures = summarise(own, run.evaluation, rounds_trained(table, run.training))
            figures |= last_ten(own) if metric == LAST_TEN else {}
            clients[client] = OneClient(_known(figures), pd.Series(accuracy, index=rounds))
    return clients


def last_ten(rounds_table: pa.Table) -> Figures:
    """Return the figures of the protocol of this name: pooled test accuracy over the last measurements of a run."""
    last = curve(rounds_table)[1][-LAST:]
    return {LAST_TEN: {"mean": float(last.mean()), "std": float(last.std()), "n": len(last)}}


def _values(rounds: Path, run: Run) -> dict[str, Value]:
    path = rounds.with_name("evaluation.parquet")
    if not path.is_file():
        if not rounds.is_file():
            return {}
        table, _ = read_table(rounds, "rounds/2")
        return _known(summarise(table, run.evaluation, rounds_trained(table, run.training)))
    try:
        return _known(read_meta(path, "evaluation/1")["protocols"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: damaged metadata, protocols; delete it and run again") from None


def _known(protocols: dict[str, Any]) -> dict[str, Value]:
    values = {}
    for protocol, figures in protocols.items():
        if isinstance(figures, dict) and (mean := _finite(figures.get("mean"))) is not None:
            # A deviation over one round or one client is none.
            std = _finite(figures["std"]) if figures["n"] > 1 else None
            values[protocol] = Value(mean, std, int(figures["n"]))
    return values


def _finite(number: Any) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None
