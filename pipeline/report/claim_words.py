"""Claims in words: the verdict, the pair of cells that speaks most against it, and all pairs behind it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pipeline.report.claims import Finding, Judgement, Pair
from pipeline.report.layout import headed
from pipeline.report.printed import format_value, signed

MOST_PAIRS = 40


@dataclass(frozen=True)
class Compared:
    """One pair of cells of a claim in words: what is compared, and per side the two values, by how much the first is
    better, and the verdict; all "" where there is nothing to compare."""

    what: str
    where: str
    obtained: tuple[str, str, str, str]
    published: tuple[str, str, str, str]


@dataclass(frozen=True)
class Claim:
    """One claim in words. `published` is "" when the paper prints nothing to judge by.

    Attributes:
        pairs: The pairs that can be compared, at most :data:`MOST_PAIRS`, those first that speak most against it.
        more: How many there are beyond.
    """

    text: str
    verdict: str
    detail: str
    published: str
    published_detail: str
    contradicted: bool
    pairs: list[Compared]
    more: int


def claim_in_words(judgement: Judgement, decimals: int) -> Claim:
    """The claim as a template prints it."""
    published = judgement.published
    pairs = _compared(judgement, decimals)
    return Claim(
        text=judgement.text,
        verdict=judgement.obtained.verdict,
        detail=_detail(judgement.obtained, judgement.margin, decimals),
        published=published.verdict if published else "",
        published_detail=_detail(published, judgement.margin, decimals) if published else "",
        contradicted=judgement.contradicted_by_paper,
        pairs=pairs[:MOST_PAIRS],
        more=max(0, len(pairs) - MOST_PAIRS),
    )


def _compared(judgement: Judgement, decimals: int) -> list[Compared]:
    """The pairs by what the obtained values say against the claim, then those of which only the paper has values."""

    def words(pair: Pair) -> tuple[str, str]:
        return f"{_headed(pair.better)} against {_headed(pair.than)}", _headed(pair.labels)

    def numbers(pair: Pair) -> tuple[str, str, str, str]:
        ours, theirs = (format_value(value, decimals) for value in pair.values)
        return ours, theirs, signed(pair.difference, decimals), pair.verdict

    obtained = {words(pair): numbers(pair) for pair in judgement.obtained.judged}
    published = {words(pair): numbers(pair) for pair in (judgement.published.judged if judgement.published else ())}
    nothing = ("", "", "", "")
    return [Compared(*at, obtained.get(at, nothing), published.get(at, nothing)) for at in {**obtained, **published}]


def _detail(finding: Finding, margin: float, decimals: int) -> str:
    done = finding.pairs - finding.lacking
    if finding.worst is None:
        return f"none of {finding.pairs} pairs can be compared" if finding.pairs else "no pair of cells is planned"
    pair = finding.worst
    ours, theirs = (format_value(value, decimals) for value in pair.values)
    sense = "better" if pair.difference >= 0 else "worse"
    where = f" at {_headed(pair.labels)}" if pair.labels else ""
    asked = f", margin {margin:g}" if margin else ""
    return (
        f"weakest of {done} pairs{f' ({finding.lacking} more without values)' if finding.lacking else ''}: "
        f"{_headed(pair.better)} {ours} against {_headed(pair.than)} {theirs}{where}, "
        f"{sense} by {abs(pair.difference):.{decimals}f} with noise {pair.noise:.{decimals}f}{asked}"
    )


def _headed(labels: dict[str, str]) -> str:
    return " · ".join(itertools.starmap(headed, labels.items()))
