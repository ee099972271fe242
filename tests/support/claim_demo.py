"""Tables for the tests of claims: cells by the value of each of their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.report.claims import Judgement, judge_claims, weakest_pairs
from pipeline.spec.table import ResolvedTable, TableClaim
from support.report_demo import RECORD, cell, claim, results_of, table, with_records, write_metrics

Rows = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Method → setting → value by seed, from 0 on; None: not run yet."""


def a_and_b(form: str = "better", **changes: Any) -> TableClaim:
    """A claim for A and against B."""
    return claim({"method": ["A"]}, {"method": ["B"]}, form, **changes)


def judge(resolved: ResolvedTable, root: Path) -> tuple[Judgement, list[dict[str, str]]]:
    """What becomes of a table's only claim, and its weakest pairs as pages print them, without empty columns."""
    (judgement,) = judge_claims(results_of(resolved, root))
    pairs = weakest_pairs([judgement], resolved.decimals)
    return judgement, [dict(zip(pairs.header, row, strict=True)) for row in pairs.rows]


def by_seed(root: Path, rows: Rows, *claims: TableClaim, first: int = 0, **changes: Any) -> ResolvedTable:
    """A table of methods and settings, of which each run's figures are written."""
    cells, records = [], {}
    for method, settings in rows.items():
        for setting, values in settings.items():
            runs = [f"{method}-{setting}-{seed}" for seed in range(first, first + len(values))]
            cells.append(cell({"method": method, "setting": setting}, runs))
            for seed, (run, value) in enumerate(zip(runs, values, strict=True), start=first):
                records[run] = RECORD | {"seed": seed}
                if value is not None:
                    write_metrics(root, run, value)
    return with_records(root, table(cells, ["method"], ["setting"], claims=list(claims), **changes), records)
