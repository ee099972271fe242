"""Claims in print: their verdicts, and what is compared, as columns of a table on pages and as CSV."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from pipeline.report.claims import Evidence, Judgement, Pair
from pipeline.report.drawing.sections import PlainTable, without_empty
from pipeline.report.formats import csv_text
from pipeline.report.table.layout import headed, short
from pipeline.report.table.printed import format_value, signed
from pipeline.spec.table import TableClaim

MOST_PAIRS = 40
"""Of either kind of values on a page, those first that speak most against a claim."""

LEGEND = (
    "Difference: how much better or narrower the first side is; of a range how wide it is. Interval and p: paired t "
    "test over the seeds; of one seed the interval is over its clients, of published values it is their combined ±. "
    "p (Holm): against the claim, corrected for all of its pairs; p (signs): by flipped signs. Detectable: the "
    "difference that so many seeds find in four of five cases."
)
_LABELS = ("values", "verdict", "compared", "at")
_NUMBERS = (
    *("first", "second", "difference", "95 % interval", "p", "p (Holm)", "p (signs)", "seeds", "detectable"),
    *("margin", "cells"),
)
_CSV = (
    *("claim", "values", "claim_verdict", "compared", "at", "first", "second", "difference"),
    *("low", "high", "p", "p_corrected", "p_flipped", "seeds", "least", "verdict"),
)


@dataclass(frozen=True)
class PrintedClaim:
    """One claim.

    Attributes:
        published: The verdict on the values of the paper; "" when it prints nothing to judge by.
        weakest: Of obtained and of published values how many pairs are judged, and the one that speaks most against
            the claim.
        pairs: The pairs, at most :data:`MOST_PAIRS` of either.
        more: How many there are beyond.
    """

    text: str
    verdict: str
    published: str
    contradicted: bool
    weakest: list[tuple[str, ...]]
    pairs: PlainTable
    more: int


def print_claim(judgement: Judgement, decimals: int) -> PrintedClaim:
    """Return a claim as a template prints it."""
    claim, kinds, rows, weakest = judgement.claim, _kinds(judgement), list[tuple[str, ...]](), list[tuple[str, ...]]()
    for name, evidence in kinds.items():
        printed = [_printed(claim, pair, decimals) for pair in evidence.judged[:MOST_PAIRS]]
        rows += [(name, pair.verdict, *row) for pair, row in zip(evidence.judged, printed, strict=False)]
        first = printed[0] if printed else ("",) * (len(_LABELS) - 2 + len(_NUMBERS))
        weakest.append((name, evidence.verdict, f"{len(evidence.judged)} of {evidence.pairs}", *first))
    return PrintedClaim(
        text=claim.text,
        verdict=judgement.obtained.verdict,
        published=judgement.published.verdict if judgement.published else "",
        contradicted=judgement.contradicted_by_paper,
        weakest=weakest,
        pairs=without_empty(PlainTable((*_LABELS, *_NUMBERS), rows, labels=len(_LABELS))),
        more=sum(max(0, len(evidence.judged) - MOST_PAIRS) for evidence in kinds.values()),
    )


def weakest_pairs(claims: Sequence[PrintedClaim]) -> PlainTable:
    """Return a table of the weakest pairs of all claims, which it numbers from 1."""
    rows = [(str(number), *row) for number, claim in enumerate(claims, start=1) for row in claim.weakest]
    values, verdict, *where = _LABELS
    header = ("claim", values, verdict, "pairs", *where, *_NUMBERS)
    return without_empty(PlainTable(header, rows, labels=len(_LABELS) + 2))


def claims_csv(judgements: Iterable[Judgement]) -> str:
    """Return CSV with a row per pair of each claim, those first that speak most against it; one row without any.

    `values` is ``obtained`` or ``published``. What is not known or not finite is empty; of published values `low` and
    `high` are how far their ± reaches, and there are no seeds.
    """
    rows = []
    for judgement in judgements:
        for name, evidence in _kinds(judgement).items():
            about: dict[str, object] = {
                "claim": judgement.claim.text,
                "values": name,
                "claim_verdict": evidence.verdict,
            }
            rows += [about | _numbers(judgement.claim, pair) for pair in evidence.judged] or [about]
    frame = pd.DataFrame(rows, columns=list(_CSV)).replace([math.inf, -math.inf], math.nan)
    return csv_text(frame.astype({"seeds": "Int64"}))


def _kinds(judgement: Judgement) -> dict[str, Evidence]:
    return {"obtained": judgement.obtained, **({"published": judgement.published} if judgement.published else {})}


def _numbers(claim: TableClaim, pair: Pair) -> dict[str, object]:
    effect = pair.effect
    tests = {"p": effect.p, "p_corrected": pair.corrected, "p_flipped": effect.flipped, "least": effect.least}
    return {
        "compared": _compared(claim, pair),
        "at": _words(pair.labels),
        "first": pair.values[0].mean,
        "second": pair.values[1].mean,
        "difference": effect.difference,
        "low": effect.low,
        "high": effect.high,
        "verdict": pair.verdict,
        **({} if effect.n is None else {**tests, "seeds": effect.n}),
    }


def _printed(claim: TableClaim, pair: Pair, decimals: int) -> tuple[str, ...]:
    effect = pair.effect
    judged = bool(effect.n) and math.isfinite(effect.low)
    sides = []
    for at, value in enumerate(pair.values):
        ends = " to ".join(_words(labels) for labels in reversed(pair.ends[at])) if pair.ends else ""
        sides.append(format_value(value, decimals) + (f" ({ends})" if ends else ""))
    return (
        _compared(claim, pair),
        _words(pair.labels),
        *sides,
        signed(effect.difference, decimals, pair.values[0].unit),
        _interval(pair, decimals),
        f"{effect.p:.3f}" if judged else "",
        f"{pair.corrected:.3f}" if judged and pair.surplus < 0 else "",
        "" if math.isnan(effect.flipped) else f"{effect.flipped:.3f}",
        "" if effect.n is None else str(effect.n),
        f"{effect.least:.{decimals}f}" if judged and math.isfinite(effect.least) else "",
        f"{claim.margin:g}" if claim.margin else "",
        str(pair.cells) if claim.over else "",
    )


def _compared(claim: TableClaim, pair: Pair) -> str:
    if claim.form == "within":  # whose cells may be others in print
        return f"highest and lowest over {' and '.join(map(short, claim.over))}"
    return f"{_words(pair.better)} against {_words(pair.than)}"


def _words(labels: dict[str, str]) -> str:
    """Return labels in one line."""
    return " · ".join(itertools.starmap(headed, labels.items()))


def _interval(pair: Pair, decimals: int) -> str:
    """Return the interval of a difference: over seeds, of one seed over its clients, of printed values by their ±."""
    effect, over = pair.effect, ""
    low, high = effect.low, effect.high
    if effect.n == 1 and effect.clients:
        count, low, high = effect.clients
        over = f" ({count} clients)"
    elif effect.between_clients:
        over = " (between clients)"
    return f"{signed(low, decimals)} to {signed(high, decimals)}{over}" if math.isfinite(low) and low < high else ""
