"""A paper's claims as checks: do they hold on the obtained values, and do they hold on the published ones?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.report.claims.forms import FAILS, HOLDS, NOT_YET, WITHIN_NOISE, Form, Pair, form_of
from pipeline.report.claims.noise import Clients, Pick, Yardstick
from pipeline.report.claims.pace import rounds_to_reach
from pipeline.report.claims.sides import matches
from pipeline.report.table.cells import Cell
from pipeline.report.table.measured import Measured

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


def judge_claims(table: dict[str, Any], cells: list[Cell], runs: dict[str, Measured]) -> list[Judgement]:
    """All claims of a resolved table, each on obtained and on published values.

    A pair holds when it is better by more than margin plus noise, fails when it falls short of the margin by more
    than the noise, and is within noise otherwise; what is better, :mod:`pipeline.report.claims.forms` measures. A claim
    fails with its first failing pair; short of that it is not yet decided while obtained values are missing, then
    within noise if any pair is, and else it holds.
    """
    clients = Clients(runs)
    return [_judge(table, claim, cells, runs, clients) for claim in table["claims"]]


def _judge(
    table: dict[str, Any], claim: dict[str, Any], cells: list[Cell], runs: dict[str, Measured], clients: Clients
) -> Judgement:
    over = tuple(claim.get("over", ()))
    name = form_of(claim)
    margin = claim["within"] if name == "within" else claim["margin"]
    lower = name == "sooner" or table["better"] == "lower"
    of_clients = table["metric"] == "clients" and name != "sooner"

    def find(cells: list[Cell], pick: Pick, clients: Clients | None = None) -> Evidence:
        form = Form(name, over, margin, lower, pick, Yardstick(pick, of_clients, clients))
        return _find(form, table, claim, cells)

    planned = [cell for cell in cells if cell.runs]
    if name == "sooner":
        obtained, printed = find(planned, rounds_to_reach(claim["reach"], runs)), []
    else:
        obtained = find(planned, lambda cell: cell.obtained if cell.complete else None, clients)
        printed = [cell for cell in cells if cell.published and (name != "spread" or cell.published.std is not None)]
    published = find(printed, lambda cell: cell.published)
    return Judgement(claim["text"], name, over, margin, obtained, published if published.pairs else None)


def _find(form: Form, table: dict[str, Any], claim: dict[str, Any], cells: list[Cell]) -> Evidence:
    found = matches(table, claim, cells)
    judged = [form.apply(match) for match in found if form.can_tell(match)]
    judged.sort(key=lambda pair: (_SEVERITY[pair.verdict], pair.surplus))
    worst = judged[0] if judged else None
    lacking = len(found) - len(judged)
    undecided = worst is None or (lacking > 0 and worst.verdict != FAILS)
    verdict = NOT_YET if worst is None or undecided else worst.verdict
    return Evidence(verdict, worst, len(found), lacking, tuple(judged))
