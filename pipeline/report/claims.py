"""Checks of a paper's claims: does a claim hold on the obtained values, and does it hold on the published ones?

Two methods under one seed have the same partition, initial weights and order of batches, so most of the seed's effect
cancels in their difference. The sample is the seeds, whatever the table averages over: the runs of a cell under one
seed give one number, and so do cells that a claim combines `over` axes. Of published values only their ± is known; a
value without one is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.report import statistics
from pipeline.report.cells import SMOKE, WITHOUT_VALUE, Cell, Key
from pipeline.report.frame import Value
from pipeline.report.printed import join_labels
from pipeline.report.statistics import LEVEL, MIN_SEEDS, NO_VERDICT, WITHIN, Array, Effect, holm
from pipeline.report.table import Results
from pipeline.spec.schema import Claim

HOLDS, FAILS, ONE_SEED, NOT_YET = "holds", "fails", "one seed: undecided", "not yet"
CLAIM_VERDICTS = (HOLDS, FAILS, WITHIN, ONE_SEED, NOT_YET, NO_VERDICT)
"""All verdicts on a claim; pages, the index and counts use this order."""
CLAIM_LEGEND = (
    "Difference: how much better or narrower the first side is; of a range how wide it is. Interval and p: paired t "
    "test over the seeds; of published values the interval is their combined ±. p (Holm): against the claim, corrected "
    "for all of its pairs."
)
_SEVERITY = (FAILS, ONE_SEED, WITHIN, HOLDS)

Terms = list[tuple[Cell, float]]
"""Cells with their weights in a sum."""
Labels = dict[str, str]
Sides = tuple[list[Cell], list[Cell]]


@dataclass(frozen=True)
class Pair:
    """A comparison of a claim: two cells, the means or ranges of two groups, or the ends of one range.

    The labels of the sides are `better` and `than`, their common ones `labels`; `values` are means, widths of ranges,
    spreads or ends. The effect is how much better or narrower the first side is, or the width of the one range;
    `surplus` is by how much it meets the claim; `corrected` is p against the claim by Holm over its pairs.
    """

    better: Labels
    than: Labels
    labels: Labels
    values: tuple[Value, Value]
    effect: Effect
    surplus: float
    corrected: float = 1.0

    @property
    def sides(self) -> str:
        return " against ".join(join_labels(labels, labels.values()) for labels in (self.better, self.than))

    @property
    def place(self) -> str:
        return join_labels(self.labels, self.labels.values())

    @property
    def verdict(self) -> str:
        """The verdict. A claim holds if all pairs hold, which more pairs make no likelier. It fails if one pair fails,
        which more pairs make likelier, so failing requires the corrected p."""
        if self.effect.n in (0, 1):
            return ONE_SEED
        if self.surplus > 0 and self.effect.p <= LEVEL:
            return HOLDS
        return FAILS if self.surplus < 0 and self.corrected <= LEVEL else WITHIN


@dataclass(frozen=True)
class Evidence:
    """A verdict over a number of `pairs`; `judged` are the pairs with all values, the most adverse first."""

    verdict: str
    pairs: int
    judged: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """A claim with its evidence; `published` is None if the paper prints none of the values that it compares. Of the
    pairs with obtained values, of any number of seeds, `comparable` in number, `agreeing` agree, ignoring chance."""

    claim: Claim
    obtained: Evidence
    published: Evidence | None
    agreeing: int = 0
    comparable: int = 0

    @property
    def decided(self) -> bool:
        """Whether there is a verdict on obtained values, with at least three of our seeds in every pair."""
        seeds = [pair.effect.n for pair in self.obtained.judged]
        return self.obtained.verdict in (HOLDS, FAILS, WITHIN) and all(n is None or n >= MIN_SEEDS for n in seeds)

    @property
    def contradicted_by_paper(self) -> bool:
        return self.published is not None and self.published.verdict == FAILS

    @property
    def kinds(self) -> dict[str, Evidence]:
        """The evidence by the kind of its values."""
        return {"obtained": self.obtained, **({"published": self.published} if self.published else {})}


@dataclass(frozen=True)
class _Values:
    """The values of cells that claims compare, seed by seed if `paired`; otherwise only their ± is known, and values of
    several cells count as independent."""

    pick: Callable[[Cell], Value | None]
    paired: bool = False

    def value(self, cell: Cell) -> Value:
        """Return the value of a cell that has one."""
        value = self.pick(cell)
        assert value
        return value

    def total(self, terms: Terms) -> Value:
        """Return a weighted sum of cells, with its standard deviation if that is known."""
        first = self.value(terms[0][0])
        if len(terms) == 1:
            return first
        mean, std = math.fsum(weight * self.value(cell).mean for cell, weight in terms), None
        if self.paired:
            seeds = _by_seed(terms)
            std = float(seeds.std()) if len(seeds) > 1 else None
        elif any(self.value(cell).std is not None for cell, _ in terms):
            std = math.hypot(*(weight * (self.value(cell).std or 0.0) for cell, weight in terms))
        return Value(mean, std, unit=first.unit)

    def effect(self, terms: Terms, margin: float) -> Effect:
        """Return a weighted sum of cells, judged against the margin of the claim."""
        if not self.paired:
            total = self.total(terms)
            return statistics.compare_printed(total.mean, margin, total.std or 0.0)
        seeds = _by_seed(terms)
        if not len(seeds):
            return Effect(self.total(terms).mean, n=0)
        return statistics.compare(seeds, margin)

    def spreads(self, first: Cell, second: Cell, margin: float) -> tuple[float, float, Effect]:
        """Return the standard deviations of two cells and their difference, judged against the claim's margin: over the
        seeds that both share, if there are several, so without other averaged axes."""
        first_std, second_std = (self.value(cell).std or 0.0 for cell in (first, second))
        if not self.paired:
            return first_std, second_std, statistics.compare_printed(first_std - second_std, margin, 0.0)
        seeds = sorted(first.by_seed.keys() & second.by_seed.keys())
        values, other_values = (np.array([cell.by_seed[seed] for seed in seeds]) for cell in (first, second))
        if len(seeds) > 1:
            first_std, second_std = float(values.std()), float(other_values.std())
        effect = statistics.compare_spreads(values, other_values, margin)
        return first_std, second_std, replace(effect, difference=first_std - second_std)


def _by_seed(terms: Terms) -> Array:
    """Return a weighted sum of cells for each seed that all of them have, in ascending order of seeds."""
    seeds = sorted(set.intersection(*(set(cell.by_seed) for cell, _ in terms)))
    return np.array([math.fsum(weight * cell.by_seed[seed] for cell, weight in terms) for seed in seeds])


def judge_claims(results: Results) -> list[Judgement]:
    """Return the judgement of each claim of a table, on obtained and on published values.

    A claim fails if one of its pairs fails. Otherwise it is not yet decided while values are missing, undecided if a
    pair has one seed, and else has the worst verdict of its pairs. There is no verdict on obtained values of trials, or
    if a cell will never show a value, for example because a run diverged.
    """
    complete = _Values(lambda cell: cell.obtained if cell.complete else None, paired=not results.table.counted)
    available = _Values(lambda cell: None if cell.uneven else cell.obtained)
    printed = _Values(lambda cell: cell.published)
    planned, judgements = [cell for cell in results.cells if cell.runs], []
    for claim in results.table.claims:
        in_print = [cell for cell in results.cells if cell.published and _has_spread(claim, cell.published)]
        published = _collect_evidence(results, claim, in_print, printed)
        obtained = _collect_evidence(results, claim, planned, complete)
        pairs = _collect_evidence(results, claim, planned, available).judged
        if results.table.profile == SMOKE:
            obtained, pairs = Evidence(NO_VERDICT, obtained.pairs), ()
        agreeing = sum(pair.surplus > 0 for pair in pairs)
        judgements.append(Judgement(claim, obtained, published if published.pairs else None, agreeing, len(pairs)))
    return judgements


def _collect_evidence(results: Results, claim: Claim, cells: Sequence[Cell], values: _Values) -> Evidence:
    """Return the evidence on a claim from one kind of values of some cells."""
    pairs, pending, judged = _group_pairs(claim, results.table.axes, cells), False, []
    for first, second in pairs:
        pair_cells = [*first, *second]
        if all((value := values.pick(cell)) and _has_spread(claim, value) for cell in pair_cells):
            lower = results.table.lower(first[0].quantity)
            paired = values.paired and not all(cell.counted for cell in pair_cells)  # counts have no seeds
            judged.append(_compare_groups(claim, first, second, replace(values, paired=paired), lower=lower))
        elif not any(cell.verdict in WITHOUT_VALUE for cell in pair_cells):
            pending = True
    corrected = holm([pair.effect.p if pair.surplus < 0 else 1.0 for pair in judged])
    judged = [replace(pair, corrected=p) for pair, p in zip(judged, corrected, strict=True)]
    judged.sort(key=lambda pair: (_SEVERITY.index(pair.verdict), pair.surplus))
    worst = judged[0].verdict if judged else NOT_YET
    if worst != FAILS and len(judged) < len(pairs):
        worst = NOT_YET if pending else NO_VERDICT
    return Evidence(worst, len(pairs), tuple(judged))


def _has_spread(claim: Claim, value: Value) -> bool:
    """Return whether a value has the ± that claims on spreads of cells compare."""
    return claim.form != "steadier" or bool(claim.over) or value.std is not None


def _group_pairs(claim: Claim, axes: list[str], cells: Sequence[Cell]) -> list[Sides]:
    """Return the pairs of groups that a claim compares among cells of a table with these axes. Both have the same
    places, and cells at one place differ only in what is compared. The second is empty for claims on single groups."""
    min_size = 1 if claim.form == "better" or (claim.form == "steadier" and not claim.over) else 2
    compared = [axis for axis in axes if axis in claim.side]
    shared = [axis for axis in axes if axis not in compared and axis not in claim.over]

    def groups(condition: dict[str, list[str]]) -> dict[tuple[Key, Key], dict[Key, Cell]]:
        by_labels: dict[tuple[Key, Key], dict[Key, Cell]] = {}
        for cell in cells:
            if all(cell.labels[axis] in labels for axis, labels in (*claim.where.items(), *condition.items())):
                by_labels.setdefault((cell.key(shared), cell.key(compared)), {})[cell.key(claim.over)] = cell
        return by_labels

    if not claim.side:
        return [(list(group.values()), []) for group in groups({}).values() if len(group) >= min_size]
    pairs, second_groups = list[Sides](), groups(claim.than or {})
    for (first_place, first_labels), first in groups(claim.side).items():
        for (second_place, second_labels), second in second_groups.items():
            common = [key for key in first if key in second]
            if first_place == second_place and first_labels != second_labels and len(common) >= min_size:
                pairs.append(([first[key] for key in common], [second[key] for key in common]))
    return pairs


def _compare_groups(claim: Claim, first: list[Cell], second: list[Cell], values: _Values, *, lower: bool) -> Pair:
    """Return a comparison of a claim; all of its cells have a value."""
    better, than = (
        {axis: label for axis, label in side[0].labels.items() if axis in claim.side} if side else {}
        for side in (first, second)
    )
    labels = {axis: label for axis, label in first[0].labels.items() if axis not in (*claim.side, *claim.over)}
    if claim.form == "steadier" and not claim.over:
        second_std, first_std, effect = values.spreads(second[0], first[0], claim.limit)
        unit = values.value(first[0]).unit
        sides = Value(first_std, unit=unit), Value(second_std, unit=unit)
    elif claim.form == "within":
        high, low = _ends(first, values)
        sides, effect = _judge_range(first, high, low, values, claim.limit)
        better, than = ({axis: cell.labels[axis] for axis in claim.over} for cell in (high, low))
    else:
        terms, other_terms = (_terms(claim, side, values) for side in (first, second))
        sides = values.total(terms), values.total(other_terms)
        if lower or claim.form != "better":
            terms, other_terms = other_terms, terms
        # The ends of a range are chosen by noisy values. This hardly affects the difference of two ranges, so it is
        # judged like a difference of four cells that were known beforehand.
        effect = values.effect([*terms, *((cell, -weight) for cell, weight in other_terms)], claim.limit)
    surplus = claim.limit - effect.difference if claim.form == "within" else effect.difference - claim.limit
    return Pair(better, than, labels, sides, effect, round(surplus, 9))  # without float errors


def _judge_range(
    cells: list[Cell], high: Cell, low: Cell, values: _Values, margin: float
) -> tuple[tuple[Value, Value], Effect]:
    """Return the values at the ends of the range of some cells, and its width. A range is narrow if all pairs of cells
    are close, so the largest p counts. It is wide if any two cells are far apart; those at its ends are chosen after
    the fact, so their p is multiplied by the number of pairs."""
    effect = values.effect(_range(high, low), margin)
    pairs = list(itertools.permutations(cells, 2))
    if round(margin - effect.difference, 9) >= 0:
        p = max(values.effect(_range(first, second), margin).p for first, second in pairs)
    else:
        p = min(1.0, effect.p * len(pairs) / 2)
    return (values.value(high), values.value(low)), replace(effect, p=p)


def _ends(cells: list[Cell], values: _Values) -> tuple[Cell, Cell]:
    """Return the cells with the highest and the lowest value."""
    descending = sorted(cells, key=lambda cell: -values.value(cell).mean)
    return descending[0], descending[-1]


def _terms(claim: Claim, cells: list[Cell], values: _Values) -> Terms:
    """Return the mean of some cells, or the width of their range."""
    return [(cell, 1 / len(cells)) for cell in cells] if claim.form == "better" else _range(*_ends(cells, values))


def _range(high: Cell, low: Cell) -> Terms:
    return [(high, 1.0), (low, -1.0)]
