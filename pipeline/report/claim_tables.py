"""Tables of claims: the most adverse pair of each claim, and all pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from pipeline.report.claims import Judgement, Pair
from pipeline.report.drawing.sections import PlainTable
from pipeline.report.printed import format_difference, format_value


def weakest_pairs(judgements: Sequence[Judgement], decimals: int) -> PlainTable:
    """Return a table of the most adverse pair of each numbered claim, for obtained and for published values."""
    numbers = ("first", "second", "difference", "95 % interval", "p", "p (Holm)", "seeds", "margin")
    header = ("claim", "values", "verdict", "pairs", "compared", "at", *numbers)
    rows = []
    for number, judgement in enumerate(judgements, start=1):
        for kind, evidence in judgement.kinds.items():
            if not evidence.judged:
                continue
            row = [str(number), kind, evidence.verdict, f"{len(evidence.judged)} of {evidence.pairs}"]
            pair, margin = evidence.judged[0], judgement.claim.limit
            effect = pair.effect
            row += [pair.sides, pair.place, *(format_value(value, decimals) for value in pair.values)]
            ends = [effect.low, effect.high] if effect.low < effect.high < math.inf else []
            difference, *interval = (
                format_difference(number, decimals, pair.values[0].unit) for number in (effect.difference, *ends)
            )
            has_p = bool(effect.n) and math.isfinite(effect.low)
            row += [difference, " to ".join(interval), f"{effect.p:.3f}" if has_p else ""]
            row += [f"{pair.corrected:.3f}" if has_p and pair.surplus < 0 else ""]
            row += ["" if effect.n is None else str(effect.n), f"{margin:g}" if margin else ""]
            rows.append(tuple(row))
    filled = [i for i in range(len(header)) if any(row[i] for row in rows)]
    return PlainTable(header, rows, labels=6).select(filled)


def all_pairs(judgements: Iterable[Judgement]) -> pd.DataFrame:
    """Return a row per pair of each claim, the most adverse pairs first; a claim without pairs has one row. Unknown and
    infinite values are empty. For `p_sign_flip` and `detectable` see :class:`~pipeline.report.statistics.Effect`."""
    rows = list[dict[str, Any]]()
    for judgement in judgements:
        for kind, evidence in judgement.kinds.items():
            constants = {"claim": judgement.claim.text, "values": kind, "claim_verdict": evidence.verdict}
            rows += [constants | _numbers(pair) for pair in evidence.judged] or [constants]
    columns = "claim values claim_verdict compared at first second difference low high p p_corrected seeds verdict"
    frame = pd.DataFrame(rows, columns=[*columns.split(), "p_sign_flip", "detectable"])
    return frame.replace([math.inf, -math.inf], math.nan).astype({"seeds": "Int64"})


def _numbers(pair: Pair) -> dict[str, Any]:
    effect, (first, second) = pair.effect, pair.values
    numbers = {
        "compared": pair.sides,
        "at": pair.place,
        "verdict": pair.verdict,
        "first": first.mean,
        "second": second.mean,
        "difference": effect.difference,
        "low": effect.low,
        "high": effect.high,
        "p_sign_flip": effect.sign_flip_p,
        "detectable": effect.detectable,
    }
    if effect.n is not None:
        numbers |= {"p": effect.p, "p_corrected": pair.corrected, "seeds": effect.n}
    return numbers
