"""A paper's claims as checks: do they hold on the obtained values, and do they hold on the published ones?"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report.claims.form import FAILS, HOLDS, NOT_YET, WITHIN_NOISE, Form, Pair
from pipeline.report.claims.forms import FORMS
from pipeline.report.claims.noise import Clients, Pick, Yardstick
from pipeline.report.claims.sides import Match, matches
from pipeline.report.table.cells import Cell
from pipeline.report.table.results import Results
from pipeline.spec.table import TableClaim

_SEVERITY = {FAILS: 0, WITHIN_NOISE: 1, HOLDS: 2}


@dataclass(frozen=True)
class Evidence:
    """The verdict over all pairs, and the pair that speaks most against the claim.

    Attributes:
        pairs: How many there are.
        lacking: Of how many of them a value is missing.
        judged: The others, those first that speak most against the claim.
    """

    verdict: str
    worst: Pair | None
    pairs: int
    lacking: int
    judged: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """One claim with what was found. `published` is None where the paper prints nothing that the claim compares."""

    text: str
    form: Form
    obtained: Evidence
    published: Evidence | None

    @property
    def contradicted_by_paper(self) -> bool:
        return self.published is not None and self.published.verdict == FAILS


def judge_claims(results: Results) -> list[Judgement]:
    """All claims of a table, each on obtained and on published values.

    A pair holds when it is better by more than margin plus noise, fails when it falls short of the margin by more
    than the noise, and is within noise otherwise; what is better, :mod:`pipeline.report.claims.forms` measures. A claim
    fails with its first failing pair; short of that it is not yet decided while obtained values are missing, then
    within noise if any pair is, and else it holds.
    """
    clients = Clients(results.runs)
    return [_judge(results, claim, clients) for claim in results.table.claims]


def _judge(results: Results, claim: TableClaim, clients: Clients) -> Judgement:
    table = results.table
    form = FORMS[claim.form](tuple(claim.over), claim.margin, table.better == "lower")

    def weigh(cells: list[Cell], pick: Pick, clients: Clients | None = None) -> Evidence:
        scale = Yardstick(pick, table.metric == "clients", clients)
        return _weigh(form, matches(claim, table.axes, cells, form.least), scale)

    planned = [cell for cell in results.cells if cell.runs]
    printed = [cell for cell in results.cells if cell.published and form.tells(cell.published)]
    obtained = weigh(planned, lambda cell: cell.obtained if cell.complete else None, clients)
    published = weigh(printed, lambda cell: cell.published)
    return Judgement(claim.text, form, obtained, published if published.pairs else None)


def _weigh(form: Form, pairs: list[Match], scale: Yardstick) -> Evidence:
    judged = [form.measure(match, scale) for match in pairs if form.can_tell(match, scale)]
    judged.sort(key=lambda pair: (_SEVERITY[pair.verdict], pair.surplus))
    worst = judged[0] if judged else None
    lacking = len(pairs) - len(judged)
    undecided = worst is None or (lacking > 0 and worst.verdict != FAILS)
    verdict = NOT_YET if worst is None or undecided else worst.verdict
    return Evidence(verdict, worst, len(pairs), lacking, tuple(judged))
