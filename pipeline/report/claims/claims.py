"""A paper's claims as checks: do they hold on the obtained values, and do they hold on the published ones?"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report.claims.forms import FAILS, HOLDS, NOT_YET, WITHIN_NOISE, Form, Pair
from pipeline.report.claims.noise import Clients, Pick, Yardstick
from pipeline.report.claims.pace import rounds_to_reach
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
    """One claim with what was found. `published` is None where the paper prints nothing that the claim compares.

    `form`, `over` and `margin` are those of :class:`pipeline.report.claims.forms.Form`.
    """

    text: str
    form: str
    over: tuple[str, ...]
    margin: float
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
    table, over, sooner = results.table, tuple(claim.over), claim.form == "sooner"
    lower = sooner or table.better == "lower"
    of_clients = table.metric == "clients" and not sooner

    def weigh(cells: list[Cell], pick: Pick, clients: Clients | None = None) -> Evidence:
        form = Form(claim.form, over, claim.margin, lower, pick, Yardstick(pick, of_clients, clients))
        return _weigh(form, matches(claim, table.axes, cells))

    planned = [cell for cell in results.cells if cell.runs]
    printed = [cell for cell in results.cells if cell.published]
    if claim.reach is not None:
        obtained, printed = weigh(planned, rounds_to_reach(claim.reach, results.runs)), []
    else:
        obtained = weigh(planned, lambda cell: cell.obtained if cell.complete else None, clients)
    if claim.form == "spread":
        printed = [cell for cell in printed if cell.published and cell.published.std is not None]
    published = weigh(printed, lambda cell: cell.published)
    return Judgement(claim.text, claim.form, over, claim.margin, obtained, published if published.pairs else None)


def _weigh(form: Form, pairs: list[Match]) -> Evidence:
    judged = [form.apply(match) for match in pairs if form.can_tell(match)]
    judged.sort(key=lambda pair: (_SEVERITY[pair.verdict], pair.surplus))
    worst = judged[0] if judged else None
    lacking = len(pairs) - len(judged)
    undecided = worst is None or (lacking > 0 and worst.verdict != FAILS)
    verdict = NOT_YET if worst is None or undecided else worst.verdict
    return Evidence(verdict, worst, len(pairs), lacking, tuple(judged))
