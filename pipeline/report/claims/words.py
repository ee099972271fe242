"""Claims in words: the verdict, the pair that speaks most against it with how it was measured, and all pairs."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report.claims.claims import Evidence, Judgement
from pipeline.report.claims.form import Form, Pair, in_words
from pipeline.report.claims.noise import ERRORS, Uncertainty
from pipeline.report.table.printed import format_value, signed

MOST_PAIRS = 40


@dataclass(frozen=True)
class Compared:
    """One pair of a claim in words: what is compared, and per side the two values, by how much the first is
    better, and the verdict; all "" where there is nothing to compare."""

    what: str
    where: str
    obtained: tuple[str, str, str, str]
    published: tuple[str, str, str, str]


@dataclass(frozen=True)
class ClaimText:
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


def claim_in_words(judgement: Judgement, decimals: int) -> ClaimText:
    """The claim as a template prints it."""
    published = judgement.published
    pairs = _compared(judgement, decimals)
    return ClaimText(
        text=judgement.text,
        verdict=judgement.obtained.verdict,
        detail=_detail(judgement.obtained, judgement.form, decimals),
        published=published.verdict if published else "",
        published_detail=_detail(published, judgement.form, decimals) if published else "",
        contradicted=judgement.contradicted_by_paper,
        pairs=pairs[:MOST_PAIRS],
        more=max(0, len(pairs) - MOST_PAIRS),
    )


def _compared(judgement: Judgement, decimals: int) -> list[Compared]:
    """The pairs by what the obtained values say against the claim, then those of which only the paper has values."""

    def words(pair: Pair) -> tuple[str, str]:
        return judgement.form.what(pair), in_words(pair.labels)

    def numbers(pair: Pair) -> tuple[str, str, str, str]:
        ours, theirs = (format_value(value, decimals) for value in pair.values)
        return ours, theirs, signed(pair.difference, decimals), pair.verdict

    obtained = {words(pair): numbers(pair) for pair in judgement.obtained.judged}
    published = {words(pair): numbers(pair) for pair in (judgement.published.judged if judgement.published else ())}
    nothing = ("", "", "", "")
    return [Compared(*at, obtained.get(at, nothing), published.get(at, nothing)) for at in {**obtained, **published}]


def _detail(finding: Evidence, form: Form, decimals: int) -> str:
    def counted(number: int) -> str:
        noun, more = form.things
        return f"{number} {noun}{'' if number == 1 else 's'}{more}"

    if finding.worst is None:
        return f"none of {counted(finding.pairs)} can be compared" if finding.pairs else "no pair of cells is planned"
    pair = finding.worst
    lacking = f" ({finding.lacking} more without values)" if finding.lacking else ""
    where = f" at {in_words(pair.labels)}" if pair.labels else ""
    return (
        f"weakest of {counted(finding.pairs - finding.lacking)}{lacking}: "
        f"{form.sides(pair, decimals)}{where}{form.size(pair)}, "
        f"{form.senses[pair.difference < 0]} by {abs(pair.difference):.{decimals}f}"
        f"{'' if form.exact else _noise(pair.noise, decimals)}{form.asked}"
    )


def _noise(noise: Uncertainty, decimals: int) -> str:
    words = f" with noise {noise.size:.{decimals}f}"
    if noise.paired:
        return f"{words} ({ERRORS:g} standard errors, paired over {noise.paired} clients)"
    return f"{words} (from the spread between clients)" if noise.between_clients else words
