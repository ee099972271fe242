"""What a click on a cell of an HTML page opens: the cell's numbers, and all that its runs are and come from.

The data are inlined as JSON. A run occurs once, however many cells it is in, and so does a part that runs share.
"""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from pipeline.report.pages.study import Study
from pipeline.report.pages.view import Text
from pipeline.report.table.cells import Cell
from pipeline.report.table.layout import Key
from pipeline.report.table.measured import Measured
from pipeline.report.table.results import Results
from pipeline.spec.run import COMPONENTS, SETTINGS
from pipeline.workspace import KEPT_STAGES, PAPER, shard_path

_FACTS = {
    "device": "device",
    "torch": "torch",
    "dataset_hash": "data (SHA-256)",
    "partition_hash": "partition (SHA-256)",
    "parameters": "parameters",
    "communicated_up": "bytes sent per client and round",
    "communicated_down": "bytes received per client and round",
    "stored": "numbers a client keeps",
    "macs": "multiply-adds per sample and step",
    "code": "code",
}


class Details:
    """Collects the data of one page."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._where: dict[str, int] = {}
        self._runs: dict[str, dict[str, Any]] = {}
        self._tables: dict[str, dict[str, Any]] = {}

    def add(self, key: str, study: Study) -> None:
        """Add the cells and runs of a study, which the page calls `key`."""
        results, table = study.results, study.results.table
        option = "" if table.profile == PAPER else f" --profile {table.profile}"
        for run in results.runs.values():
            self._runs.setdefault(run.id, self._run(run))
        self._tables[key] = {
            "metric": table.metric,
            "decimals": table.decimals,
            "command": f"pfl run {study.spec}{option}",
            # A profile has a workspace of its own, in which people do not work.
            "dvc": table.profile == PAPER,
            "cells": [
                [
                    self._cell(results, at, column, text)
                    for column, text in zip(results.layout.columns, row.cells, strict=True)
                ]
                for at, row in zip(results.layout.rows, study.page.rows, strict=True)
            ],
        }

    def script(self) -> Markup:
        """The data as an expression for a script, in which nothing can end the script."""
        data = {"parts": self._parts, "runs": self._runs, "tables": self._tables}
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for char in "<>&\u2028\u2029":
            text = text.replace(char, f"\\u{ord(char):04x}")
        return Markup(text)

    @staticmethod
    def _cell(results: Results, row: Key, column: Key, text: Text) -> dict[str, Any] | None:
        cell = results.layout.cell(row, column)
        if cell is None or not (text.obtained or text.published or text.dagger):
            return None
        facts = {
            "title": " · ".join(filter(None, (*row, results.layout.column_title(column)))),
            "runs": list(cell.runs),
            "client": "" if cell.client is None else str(cell.client),
            "alone": Details._alone(results, cell),
            "obtained": text.obtained,
            "partial": text.partial,
            "published": text.published,
            "quoted": text.quoted,
            "note": cell.note,
            "dagger": text.dagger,
            "last": text.last,
            "difference": text.compared if text.difference else "",
        }
        return {key: value for key, value in facts.items() if value}

    @staticmethod
    def _alone(results: Results, cell: Cell) -> dict[str, list[float | None]]:
        """Run → its number, of a cell that is about one client or another quantity than the table's metric."""
        numbers: dict[str, list[float | None]] = {}
        key = cell.quantity.key if cell.quantity else results.table.metric
        for run in cell.runs if cell.quantity or cell.client is not None else ():
            value = results.runs[run].values_of(cell.client).get(key)
            if value:
                numbers[run] = [value.mean, value.std]
        return numbers

    def _run(self, run: Measured) -> dict[str, Any]:
        resolved = run.resolved
        return {
            "seed": resolved.seed,
            "clients": resolved.clients,
            "parts": {name: self._part(resolved.record[name]) for name in (*COMPONENTS, *SETTINGS)},
            "facts": {name: run.facts[key] for key, name in _FACTS.items() if run.facts.get(key) is not None},
            "values": {metric: [value.mean, value.std] for metric, value in run.values.items()},
            "diverged": run.facts.get("diverged"),
            "train": KEPT_STAGES if run.facts.get("kept") else f"{shard_path(resolved.federation_id)}:train-{run.id}",
        }

    def _part(self, part: dict[str, Any]) -> int:
        key = json.dumps(part, sort_keys=True)
        if key not in self._where:
            self._where[key] = len(self._parts)
            self._parts.append(part)
        return self._where[key]
