"""Claims in words: the verdict, the pair that speaks most against it with how it was measured, and all pairs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pipeline.report.claims.claims import Evidence, Judgement
from pipeline.report.claims.forms import Pair
from pipeline.report.claims.noise import ERRORS, Uncertainty
from pipeline.report.table.layout import headed, short
from pipeline.report.table.printed import format_value, signed

MOST_PAIRS = 40

_SENSES = {
    "better": ("better", "worse"),
    "sooner": ("sooner", "later"),
    "steadier": ("narrower", "wider"),
    "spread": ("narrower", "wider"),
    "within": ("apart", "apart"),
}
"""How the first side of a claim's form is said to be where it speaks for the claim, and where against."""


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
    decimals = 0 if judgement.form == "sooner" else decimals
    pairs = _compared(judgement, decimals)
    return ClaimText(
        text=judgement.text,
        verdict=judgement.obtained.verdict,
        detail=_detail(judgement.obtained, judgement, decimals),
        published=published.verdict if published else "",
        published_detail=_detail(published, judgement, decimals) if published else "",
        contradicted=judgement.contradicted_by_paper,
        pairs=pairs[:MOST_PAIRS],
        more=max(0, len(pairs) - MOST_PAIRS),
    )


def _compared(judgement: Judgement, decimals: int) -> list[Compared]:
    """The pairs by what the obtained values say against the claim, then those of which only the paper has values."""

    def words(pair: Pair) -> tuple[str, str]:
        if judgement.form == "within":  # its ends need not be the same cells in print
            return f"highest and lowest over {_named(judgement.over)}", _headed(pair.labels)
        return f"{_headed(pair.better)} against {_headed(pair.than)}", _headed(pair.labels)

    def numbers(pair: Pair) -> tuple[str, str, str, str]:
        ours, theirs = (format_value(value, decimals) for value in pair.values)
        return ours, theirs, signed(pair.difference, decimals), pair.verdict

    obtained = {words(pair): numbers(pair) for pair in judgement.obtained.judged}
    published = {words(pair): numbers(pair) for pair in (judgement.published.judged if judgement.published else ())}
    nothing = ("", "", "", "")
    return [Compared(*at, obtained.get(at, nothing), published.get(at, nothing)) for at in {**obtained, **published}]


def _detail(finding: Evidence, judgement: Judgement, decimals: int) -> str:
    done = finding.pairs - finding.lacking
    if finding.worst is None:
        none = f"none of {finding.pairs} {_things(judgement, finding.pairs)} can be compared"
        return none if finding.pairs else "no pair of cells is planned"
    pair = finding.worst
    lacking = f" ({finding.lacking} more without values)" if finding.lacking else ""
    where = f" at {_headed(pair.labels)}" if pair.labels else ""
    cells = f", {pair.cells} cells {'each' if judgement.form != 'within' else 'in all'}" if judgement.over else ""
    sense = _SENSES[judgement.form][pair.difference < 0]
    rounds = " rounds" if judgement.form == "sooner" else ""
    return (
        f"weakest of {done} {_things(judgement, done)}{lacking}: "
        f"{_sides(pair, judgement.form, decimals)}{where}{cells}, "
        f"{sense} by {abs(pair.difference):.{decimals}f}{rounds}{_noise(pair.noise, judgement.form, decimals)}"
        f"{_asked(judgement)}"
    )


def _things(judgement: Judgement, count: int) -> str:
    one = "" if count == 1 else "s"
    over = f" over {_named(judgement.over)}" if judgement.over else ""
    if judgement.form == "within":
        return f"range{one}{over}"
    kind = {"spread": " of spreads", "steadier": f" of ranges{over}", "sooner": " of rounds to convergence"}
    return f"pair{one}{kind.get(judgement.form, f' of means{over}' if over else '')}"


def _sides(pair: Pair, form: str, decimals: int) -> str:
    ours, theirs = (format_value(value, decimals) for value in pair.values)
    if form == "within":
        return f"from {theirs} ({_headed(pair.than)}) to {ours} ({_headed(pair.better)})"
    ends = [f" ({_headed(low)} to {_headed(high)})" for high, low in pair.ends] or ["", ""]
    return f"{_headed(pair.better)} {ours}{ends[0]} against {_headed(pair.than)} {theirs}{ends[1]}"


def _noise(noise: Uncertainty, form: str, decimals: int) -> str:
    if form == "spread":
        return ""
    words = f" with noise {noise.size:.{decimals}f}"
    if noise.paired:
        return f"{words} ({ERRORS:g} standard errors, paired over {noise.paired} clients)"
    return f"{words} (from the spread between clients)" if noise.between_clients else words


def _asked(judgement: Judgement) -> str:
    if judgement.form == "within":
        return f", at most {judgement.margin:g}"
    return f", margin {judgement.margin:g}" if judgement.margin else ""


def _named(axes: tuple[str, ...]) -> str:
    """Axes as prose: ``dataset, partition and clients``."""
    *most, last = map(short, axes)
    return f"{', '.join(most)} and {last}" if most else last


def _headed(labels: dict[str, str]) -> str:
    return " · ".join(itertools.starmap(headed, labels.items()))
