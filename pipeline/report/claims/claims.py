"""A paper's claims as checks: do they hold on the obtained values, and do they hold on the published ones?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.report.claims.form import Form, Pair
from pipeline.report.claims.forms import FORMS
from pipeline.report.claims.obtained import Obtained
from pipeline.report.claims.printed import Counted, Printed, SoFar
from pipeline.report.claims.sides import Match, matches
from pipeline.report.claims.verdicts import FAILS, HOLDS, NOT_YET, ONE_SEED, TRIAL, WITHIN_NOISE
from pipeline.report.claims.yardstick import Yardstick
from pipeline.report.statistics.comparison import holm
from pipeline.report.statistics.noise import FEWEST_SEEDS
from pipeline.report.table.results import Results
from pipeline.spec.table import TableClaim

_SEVERITY = {FAILS: 0, ONE_SEED: 1, WITHIN_NOISE: 2, HOLDS: 3}

_SMOKE = "smoke"


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

    Attributes:
        so_far: How many pairs come out as the claim says, whatever chance may explain, of how many that have obtained
            values of however many seeds.
    """

    text: str
    form: Form
    obtained: Evidence
    published: Evidence | None
    so_far: tuple[int, int] = (0, 0)

    @property
    def decided(self) -> bool:
        """Whether it has a verdict on obtained values, with three seeds of ours or more in every pair."""
        seeds = [pair.chance.seeds for pair in self.obtained.judged]
        return self.obtained.verdict in (HOLDS, FAILS, WITHIN_NOISE) and all(
            n is None or n >= FEWEST_SEEDS for n in seeds
        )

    @property
    def contradicted_by_paper(self) -> bool:
        return self.published is not None and self.published.verdict == FAILS


def judge_claims(results: Results) -> list[Judgement]:
    """All claims of a table, each on obtained and on published values.

    A pair holds when chance is no explanation for its being better by more than the margin, fails when it is none for
    its falling short of it, and is undecided otherwise: within noise, or because there is one seed. What is better,
    :mod:`pipeline.report.claims.forms` measures; what chance explains, :mod:`.obtained` and :mod:`.printed`. A claim
    fails with its first failing pair; short of that it is not yet decided while obtained values are missing, then
    undecided if any pair is, and else it holds. Trials on generated data have no verdict.
    """
    metric = results.table.metric
    scale = Counted(metric) if results.table.counted else Obtained(results.runs, metric)
    return [_judge(results, claim, scale) for claim in results.table.claims]


def _judge(results: Results, claim: TableClaim, scale: Yardstick) -> Judgement:
    table = results.table
    form = FORMS[claim.form](tuple(claim.over), claim.margin, table.better == "lower")
    planned = [cell for cell in results.cells if cell.runs]
    printed = [cell for cell in results.cells if cell.published and form.tells(cell.published)]
    pairs = matches(claim, table.axes, planned, form.least)
    obtained = Evidence(TRIAL, None, len(pairs), 0) if table.profile == _SMOKE else _weigh(form, pairs, scale)
    published = _weigh(form, matches(claim, table.axes, printed, form.least), Printed(table.metric))
    told = () if table.profile == _SMOKE else _weigh(form, pairs, SoFar(table.metric)).judged
    so_far = sum(pair.surplus > 0 for pair in told), len(told)
    return Judgement(claim.text, form, obtained, published if published.pairs else None, so_far)


def _weigh(form: Form, pairs: list[Match], scale: Yardstick) -> Evidence:
    judged = [form.measure(match, scale) for match in pairs if form.can_tell(match, scale)]
    corrected = holm([pair.against for pair in judged])
    judged = [replace(pair, corrected=p) for pair, p in zip(judged, corrected, strict=True)]
    judged.sort(key=lambda pair: (_SEVERITY[pair.verdict], pair.surplus))
    worst = judged[0] if judged else None
    lacking = len(pairs) - len(judged)
    undecided = worst is None or (lacking > 0 and worst.verdict != FAILS)
    verdict = NOT_YET if worst is None or undecided else worst.verdict
    return Evidence(verdict, worst, len(pairs), lacking, tuple(judged))
