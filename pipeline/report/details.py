"""What a click on a cell of an HTML page opens: the cell's numbers, and all that its runs are and come from.

The data are inlined as JSON. A run occurs once, however many cells it is in, and so does a part that runs share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from pipeline.report.settings import text_of
from pipeline.report.study import Study, Text
from pipeline.report.table.cells import Cell
from pipeline.report.table.printed import NO_VALUE, format_value
from pipeline.report.table.results import Measured
from pipeline.spec.run import COMPONENTS, SETTINGS
from pipeline.spec.table import train_stage
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
Facts = list[tuple[str, str]]


def details(studies: Iterable[Study]) -> Markup:
    """Return the data of a page as an expression for a script, in which nothing can end the script.

    These are ``parts``, heading and facts of what runs consist of; ``runs`` by id: facts, places of parts, and the
    command that makes it; ``tables`` by the study's key: the command that makes it, and its cells in rows.
    """
    parts: dict[str, int] = {}
    runs: dict[str, dict[str, Any]] = {}
    tables = {}
    for study in studies:
        table, layout, decimals = study.table, study.results.layout, study.table.decimals
        option = "" if table.profile == PAPER else f" --profile {table.profile}"
        for run in study.results.runs.values():
            if run.id not in runs:
                own = [json.dumps(_part(run, name), ensure_ascii=False) for name in (*COMPONENTS, *SETTINGS)]
                places = [parts.setdefault(part, len(parts)) for part in own]
                runs[run.id] = {"facts": _facts(run, decimals), "parts": places}
                if table.profile == PAPER:  # other profiles have a workspace of their own, where nobody works
                    runs[run.id]["command"] = f"dvc repro {_stage(run)}"
        tables[study.key] = {
            "command": f"pfl run {table.spec}{option}",
            "cells": [
                [
                    _cell(study, layout.cell(at, column), text)
                    for column, text in zip(layout.columns, row.cells, strict=True)
                ]
                for at, row in zip(layout.rows, study.rows, strict=True)
            ],
        }
    data = {"parts": [json.loads(part) for part in parts], "runs": runs, "tables": tables}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _cell(study: Study, cell: Cell | None, text: Text) -> dict[str, Any] | None:
    if cell is None or not (text.obtained or text.published or text.dagger):
        return None
    layout, runs = study.results.layout, study.results.runs
    key = cell.quantity.key if cell.quantity else study.table.metric
    numbers = {run: format_value(runs[run].values_of(cell.client).get(key), study.table.decimals) for run in cell.runs}
    partial = f" ({text.partial} runs)" if text.partial else ""
    quoted = " (quoted by the paper from an earlier one)" if cell.quoted else ""
    facts = {
        "client": "" if cell.client is None else f"{cell.client}, counted from 0",
        "obtained": "not run yet" if text.obtained == NO_VALUE else text.obtained and text.obtained + partial,
        "after the last round": text.last,
        "published": text.published and text.published + quoted,
        "difference": text.compared if text.sort[2] else "",
        "note": cell.note,
        "no run": "none is planned" if text.dagger else "",
    }
    row, column = cell.key(layout.row_axes), layout.column_title(cell.key(layout.column_axes))
    return {
        "title": " · ".join(filter(None, (*row, column))),
        "facts": [(name, value) for name, value in facts.items() if value],
        "runs": [(run, f"seed {runs[run].resolved.seed}: {_outcome(runs[run], numbers[run])}") for run in cell.runs],
    }


def _outcome(run: Measured, number: str) -> str:
    where = run.facts.get("diverged") or {}
    return f"diverged in round {where.get('round', '?')}" if run.diverged else number or "not run yet"


def _facts(run: Measured, decimals: int) -> Facts:
    known = [(name, text_of(run.facts[fact])) for fact, name in _FACTS.items() if fact in run.facts]
    return [*known, *((f"metric {name}", format_value(value, decimals)) for name, value in run.values.items())]


def _part(run: Measured, name: str) -> tuple[str, Facts]:
    """Return the heading of a part of a run, and its options."""
    options = dict(run.resolved.record[name])
    chosen = options.pop("name", None)
    pairs = [(option.replace("_", " "), text_of(value)) for option, value in options.items()]
    clients = [("clients", str(run.resolved.clients))] if name == "partition" else []
    return f"{name}: {chosen}" if chosen else name, [*clients, *pairs]


def _stage(run: Measured) -> str:
    """Return the stage that makes a run."""
    return KEPT_STAGES if run.kept else f"{shard_path(run.resolved.federation_id)}:{train_stage(run.resolved)}"
