"""What claims compare, in print: as columns of a table on pages, and as CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from pipeline.report.claims import Judgement, Pair
from pipeline.report.drawing.sections import PlainTable, without_empty
from pipeline.report.formats import csv_text
from pipeline.report.table.layout import titled
from pipeline.report.table.printed import format_value, signed
from pipeline.spec.table import TableClaim

LEGEND = (
    "Difference: how much better or narrower the first side is; of a range how wide it is. Interval and p: paired t "
    "test over the seeds; of published values the interval is their combined ±. p (Holm): against the claim, corrected "
    "for all of its pairs."
)


def weakest_pairs(judgements: Sequence[Judgement], decimals: int) -> PlainTable:
    """Return a table of the pair that speaks most against each claim, of either kind of values; claims by number."""
    numbers = ("first", "second", "difference", "95 % interval", "p", "p (Holm)", "seeds", "margin")
    header = ("claim", "values", "verdict", "pairs", "compared", "at", *numbers)
    rows = []
    for number, judgement in enumerate(judgements, start=1):
        for kind, evidence in judgement.kinds.items():
            pairs = f"{len(evidence.judged)} of {evidence.pairs}"
            printed = [_printed(judgement.claim, pair, decimals) for pair in evidence.judged[:1]] or [("",) * 10]
            rows.append((str(number), kind, evidence.verdict, pairs, *printed[0]))
    return without_empty(PlainTable(header, rows, labels=6))


def claims_csv(judgements: Iterable[Judgement]) -> str:
    """Return CSV with a row per pair of each claim, those first that speak most against it; one row without any.

    `values` is ``obtained`` or ``published``. What is not known or not finite is empty; of published values `low` and
    `high` are how far their ± reaches, and there are no seeds.
    """
    rows = list[dict[str, object]]()
    for judgement in judgements:
        for kind, evidence in judgement.kinds.items():
            verdict: dict[str, object] = {"claim_verdict": evidence.verdict}
            about = {"claim": judgement.claim.text, "values": kind} | verdict
            rows += [about | _numbers(pair) for pair in evidence.judged] or [about]
    columns = "claim values claim_verdict compared at first second difference low high p p_corrected seeds verdict"
    frame = pd.DataFrame(rows, columns=columns.split()).replace([math.inf, -math.inf], math.nan)
    return csv_text(frame.astype({"seeds": "Int64"}))


def _numbers(pair: Pair) -> dict[str, object]:
    effect, (first, second) = pair.effect, pair.values
    p, corrected = (None, None) if effect.n is None else (effect.p, pair.corrected)
    return {
        **{"compared": pair.compared, "at": _words(pair.labels), "first": first.mean, "second": second.mean},
        **{"difference": effect.difference, "low": effect.low, "high": effect.high, "verdict": pair.verdict},
        **{"p": p, "p_corrected": corrected, "seeds": effect.n},
    }


def _printed(claim: TableClaim, pair: Pair, decimals: int) -> tuple[str, ...]:
    effect, known = pair.effect, bool(pair.effect.n) and math.isfinite(pair.effect.low)
    low, high = effect.low, effect.high
    interval = f"{signed(low, decimals)} to {signed(high, decimals)}" if math.isfinite(low) and low < high else ""
    return (
        pair.compared,
        _words(pair.labels),
        *(format_value(value, decimals) for value in pair.values),
        signed(effect.difference, decimals, pair.values[0].unit),
        interval,
        f"{effect.p:.3f}" if known else "",
        f"{pair.corrected:.3f}" if known and pair.surplus < 0 else "",
        "" if effect.n is None else str(effect.n),
        f"{claim.margin:g}" if claim.margin else "",
    )


def _words(labels: dict[str, str]) -> str:
    return titled(labels.keys(), labels.values())
