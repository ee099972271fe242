"""What the runs of a table left behind under ``artifacts/runs``: figures, facts, curves, or nothing yet."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcore.artifacts import read_meta
from pflcore.errors import UserError
from pipeline.workspace import metrics_path, run_path


@dataclass(frozen=True)
class Value:
    """A mean and, where one is defined, a standard deviation. Unit: percent and percentage points."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Measured:
    """One run as the report sees it.

    Attributes:
        values: By protocol; empty while the run has not been evaluated, and for a run that diverged.
        facts: Metadata of the run's artifact (device, hashes, sizes), empty while there is none.
    """

    id: str
    record: dict[str, Any]
    code: str
    values: dict[str, Value]
    facts: dict[str, Any]
    rounds_path: Path

    @property
    def diverged(self) -> bool:
        return self.facts.get("diverged") is not None


def measure(table: dict[str, Any], root: Path) -> dict[str, Measured]:
    """All runs of a resolved table by id, sorted. A run without artifacts is there, without values.

    Raises:
        UserError: An artifact exists and cannot be read.
    """
    return {run: _measure(run, table["runs"][run], root) for run in sorted(table["runs"])}


def _measure(run: str, entry: dict[str, Any], root: Path) -> Measured:
    rounds = root / run_path(run, "rounds.parquet")
    metrics = root / metrics_path(run)
    facts = read_meta(rounds, "rounds/2") if rounds.is_file() else {}
    values = {} if facts.get("diverged") is not None else _values(metrics)
    return Measured(run, entry["record"], entry["code"], values, facts, rounds)


def _values(path: Path) -> dict[str, Value]:
    if not path.is_file():
        return {}
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        return {
            # A deviation over one round or one client is none.
            protocol: Value(float(figures["mean"]), _finite(figures["std"]) if figures["n"] > 1 else None)
            for protocol, figures in metrics.items()
            if isinstance(figures, dict) and _finite(figures.get("mean")) is not None
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not the metrics of a run; delete it and run `dvc repro`") from None


def _finite(number: Any) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None
