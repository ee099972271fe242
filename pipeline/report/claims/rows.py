"""Claims as a table of numbers: a row per comparison and side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from pipeline.report.claims.claims import Judgement
from pipeline.report.claims.form import Pair, in_words
from pipeline.report.formats import csv_text

_COLUMNS = (
    *("claim", "values", "claim_verdict", "compared", "at", "first", "second", "difference"),
    *("low", "high", "p", "p_corrected", "p_flipped", "seeds", "least", "verdict"),
)


def claims_csv(judgements: Iterable[Judgement]) -> str:
    """CSV with a row per pair of each claim, those first that speak most against it; a claim without any has one row.

    `values` is ``obtained`` or ``published``. What is not known or not finite is empty; of published values `low` and
    `high` are how far their ± reaches, and there are no seeds.
    """
    rows: list[dict[str, Any]] = []
    for judgement in judgements:
        for values, found in (("obtained", judgement.obtained), ("published", judgement.published)):
            if found:
                about = {"claim": judgement.text, "values": values, "claim_verdict": found.verdict}
                rows += [about | _row(judgement, pair) for pair in found.judged] or [about]
    frame = pd.DataFrame(rows, columns=list(_COLUMNS)).replace([float("inf"), -float("inf")], float("nan"))
    frame["seeds"] = frame["seeds"].astype("Int64")
    return csv_text(frame)


def _row(judgement: Judgement, pair: Pair) -> dict[str, Any]:
    chance = pair.chance
    row: dict[str, Any] = {
        "compared": judgement.form.what(pair),
        "at": in_words(pair.labels),
        "first": pair.values[0].mean,
        "second": pair.values[1].mean,
        "difference": pair.difference,
        "low": chance.low,
        "high": chance.high,
        "verdict": pair.verdict,
    }
    if chance.seeds is not None:
        row |= {"p": chance.p, "p_corrected": pair.corrected, "p_flipped": chance.flipped}
        row |= {"seeds": chance.seeds, "least": chance.least}
    return row
