"""The artifact ``analysis/1``: what the analyses of a run found, a number per row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pflcore.artifacts import write_table
from pflcore.engine.analysis import Findings

SCHEMA = "analysis/1"


def write_findings(path: Path, findings: Findings, /, **meta: Any) -> None:
    """Write the artifact, in the order of the findings.

    Columns: the analysis; the client, -1 for none; the item, in the words of the analysis; the index of the value in
    its series, from 0; the value.

    Args:
        meta: Facts about the run.
    """
    all_ = [(analysis, finding) for analysis, series in findings.items() for finding in series]
    lengths = [len(finding.values) for _, finding in all_]
    table = pa.table(
        {
            "analysis": _repeated([analysis for analysis, _ in all_], lengths),
            "client": pa.array(np.repeat(np.array([one.client for _, one in all_], np.int32), lengths)),
            "item": _repeated([one.item for _, one in all_], lengths),
            "index": pa.array(
                np.concatenate([np.empty(0, np.int32), *(np.arange(n, dtype=np.int32) for n in lengths)])
            ),
            "value": pa.array(np.concatenate([np.empty(0), *(one.values for _, one in all_)]), pa.float64()),
        }
    )
    write_table(path, table, SCHEMA, **meta)


def _repeated(words: list[str], lengths: list[int]) -> pa.Array:
    """Each word as often as its series is long."""
    return pa.array(words, pa.string()).take(pa.array(np.repeat(np.arange(len(words)), lengths), pa.int64()))
