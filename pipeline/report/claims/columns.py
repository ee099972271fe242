"""Claims as pages print them: the text, the verdict, and what is compared in columns of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report.claims.claims import Evidence, Judgement
from pipeline.report.claims.form import Form, Pair, in_words
from pipeline.report.drawing.sections import PlainTable, without_empty
from pipeline.report.table.measured import Value
from pipeline.report.table.printed import format_value, signed

MOST_PAIRS = 40

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


@dataclass(frozen=True)
class PrintedClaim:
    """One claim.

    Attributes:
        published: The verdict on the values of the paper; "" when it prints nothing to judge by.
        weakest: Of obtained and of published values the pair that speaks most against the claim.
        pairs: The pairs, at most :data:`MOST_PAIRS` of either, those first that speak most against it.
        more: How many there are beyond.
    """

    text: str
    verdict: str
    published: str
    contradicted: bool
    weakest: list[tuple[str, ...]]
    pairs: PlainTable
    more: int


def printed_claim(judgement: Judgement, decimals: int) -> PrintedClaim:
    """Return a claim as a template prints it."""
    found = {"obtained": judgement.obtained, **({"published": judgement.published} if judgement.published else {})}
    rows = [
        (name, pair.verdict, *_row(judgement.form, pair, decimals))
        for name, evidence in found.items()
        for pair in evidence.judged[:MOST_PAIRS]
    ]
    return PrintedClaim(
        text=judgement.text,
        verdict=judgement.obtained.verdict,
        published=judgement.published.verdict if judgement.published else "",
        contradicted=judgement.contradicted_by_paper,
        weakest=[_weakest(name, evidence, judgement.form, decimals) for name, evidence in found.items()],
        pairs=without_empty(PlainTable((*_LABELS, *_NUMBERS), rows, labels=len(_LABELS))),
        more=sum(max(0, len(evidence.judged) - MOST_PAIRS) for evidence in found.values()),
    )


def weakest_pairs(claims: Sequence[PrintedClaim]) -> PlainTable:
    """Return a table of the weakest pairs of all claims, which it numbers from 1."""
    rows = [(str(number), *row) for number, claim in enumerate(claims, start=1) for row in claim.weakest]
    values, verdict, *where = _LABELS
    header = ("claim", values, verdict, "pairs", *where, *_NUMBERS)
    return without_empty(PlainTable(header, rows, labels=len(_LABELS) + 2))


def _weakest(name: str, evidence: Evidence, form: Form, decimals: int) -> tuple[str, ...]:
    blank = ("",) * (len(_LABELS) - 2 + len(_NUMBERS))
    row = _row(form, evidence.worst, decimals) if evidence.worst else blank
    return name, evidence.verdict, f"{evidence.pairs - evidence.lacking} of {evidence.pairs}", *row


def _row(form: Form, pair: Pair, decimals: int) -> tuple[str, ...]:
    chance = pair.chance
    judged = bool(chance.seeds) and math.isfinite(chance.low)
    first, second = (_side(pair, side, decimals) for side in (0, 1))
    return (
        form.what(pair),
        in_words(pair.labels),
        first,
        second,
        signed(pair.difference, decimals, pair.values[0].unit),
        _interval(pair, decimals),
        f"{chance.p:.3f}" if judged else "",
        f"{pair.corrected:.3f}" if judged and pair.surplus < 0 else "",
        "" if math.isnan(chance.flipped) else f"{chance.flipped:.3f}",
        "" if chance.seeds is None else str(chance.seeds),
        f"{chance.least:.{decimals}f}" if judged and math.isfinite(chance.least) else "",
        f"{form.margin:g}" if form.margin else "",
        str(pair.cells) if form.over else "",
    )


def _side(pair: Pair, side: int, decimals: int) -> str:
    """Return a value, with the labels of the cells at the ends of a range."""
    value: Value = pair.values[side]
    ends = " to ".join(in_words(labels) for labels in reversed(pair.ends[side])) if pair.ends else ""
    return format_value(value, decimals) + (f" ({ends})" if ends else "")


def _interval(pair: Pair, decimals: int) -> str:
    """Return the interval of a difference: over seeds, of one seed over its clients, of printed values by their ±."""
    chance, over = pair.chance, ""
    low, high = chance.low, chance.high
    if chance.seeds == 1 and chance.clients:
        count, low, high = chance.clients
        over = f" ({count} clients)"
    elif chance.between_clients:
        over = " (between clients)"
    return f"{signed(low, decimals)} to {signed(high, decimals)}{over}" if math.isfinite(low) and low < high else ""
