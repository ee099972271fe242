"""A paper's claims as checks: do they hold on the obtained values, and do they hold on the published ones?

Randomness is derived from the seed, so two methods under one seed have the same partition, the same initial weights and
the same order of batches; most of what a seed does to one it does to the other, and their difference is free of it.
What is counted are seeds, whatever the table averages over: the runs of a cell under one seed are one number, and so is
what a claim takes together `over` some axes. Of published values all that is known is their ±; one without is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.report.cells import SMOKE, Cell, Key
from pipeline.report.frame import Value
from pipeline.report.printed import titled
from pipeline.report.statistics import (
    FEWEST_SEEDS,
    LEVEL,
    NO_VERDICT,
    WITHIN,
    Array,
    Effect,
    compare,
    compare_printed,
    compare_spreads,
    holm,
)
from pipeline.report.table import Results
from pipeline.spec.table import TableClaim

HOLDS, FAILS, ONE_SEED, NOT_YET = "holds", "fails", "one seed: undecided", "not yet"
CLAIM_VERDICTS = (HOLDS, FAILS, WITHIN, ONE_SEED, NOT_YET, NO_VERDICT)
"""What may be said of a claim; pages, the index and counts all go by this order."""
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
    """What a claim compares once: two cells, the means or ranges of two groups, or the ends of one range.

    The labels of either side are `better` and `than`, those shared `labels`. `values` are how wide ranges are, or the
    spreads, where those are compared; the effect is how much better or narrower the first is, of one range how wide it
    is, and `surplus` how much more than the claim asks for; `corrected` is p against the claim by Holm over its pairs.
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
        return " against ".join(titled(labels, labels.values()) for labels in (self.better, self.than))

    @property
    def at(self) -> str:
        return titled(self.labels, self.labels.values())

    @property
    def verdict(self) -> str:
        """It holds or fails where chance is no explanation.

        A claim holds when all its pairs do, so each has to hold by itself, and more of them make that no likelier. One
        that fails is enough against it, and of many one will do so by chance, so there the corrected p counts.
        """
        if self.effect.n == 1:
            return ONE_SEED
        if self.surplus > 0 and self.effect.p <= LEVEL:
            return HOLDS
        return FAILS if self.surplus < 0 and self.corrected <= LEVEL else WITHIN


@dataclass(frozen=True)
class Evidence:
    """The verdict over so many pairs; `judged` are those of which no value is missing, the most adverse first."""

    verdict: str
    pairs: int
    judged: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """One claim with its evidence; `published` is None where the paper prints nothing that it compares.

    `so_far`: how many pairs come out as it says, whatever chance may explain, of how many with obtained values of any
    number of seeds.
    """

    claim: TableClaim
    obtained: Evidence
    published: Evidence | None
    so_far: tuple[int, int] = (0, 0)

    @property
    def decided(self) -> bool:
        """Whether it has a verdict on obtained values, with three seeds of ours or more in every pair."""
        seeds = [pair.effect.n for pair in self.obtained.judged]
        return self.obtained.verdict in (HOLDS, FAILS, WITHIN) and all(n is None or n >= FEWEST_SEEDS for n in seeds)

    @property
    def contradicted_by_paper(self) -> bool:
        return self.published is not None and self.published.verdict == FAILS

    @property
    def kinds(self) -> dict[str, Evidence]:
        """The evidence by which values it is on."""
        return {"obtained": self.obtained, **({"published": self.published} if self.published else {})}


@dataclass(frozen=True)
class _Values:
    """The values that cells are judged on, `paired` seed by seed; else all that is known is their ±, and those of
    several cells count as independent."""

    pick: Callable[[Cell], Value | None]
    paired: bool = False

    def of(self, cell: Cell) -> Value:
        """Return the value of a cell that has one."""
        value = self.pick(cell)
        assert value
        return value

    def total(self, terms: Terms) -> Value:
        """Return a weighted sum, with a deviation where it is known."""
        if len(terms) == 1:
            return self.of(terms[0][0])
        mean = math.fsum(weight * self.of(cell).mean for cell, weight in terms)
        if self.paired:
            seeds = _by_seed(terms)
            return Value(mean, float(seeds.std()) if len(seeds) > 1 else None)
        stds = [(self.of(cell).std, weight) for cell, weight in terms]
        known = any(std is not None for std, _ in stds)
        return Value(mean, math.hypot(*(weight * (std or 0.0) for std, weight in stds)) if known else None)

    def effect(self, terms: Terms, margin: float) -> Effect:
        """Return a weighted sum, judged against the margin of the claim."""
        if not self.paired:
            total = self.total(terms)
            return compare_printed(total.mean, margin, total.std or 0.0)
        seeds = _by_seed(terms)
        return compare(seeds, margin) if len(seeds) else Effect(self.total(terms).mean, n=0)  # where nothing pairs

    def spreads(self, one: Cell, other: Cell, margin: float) -> Effect:
        """Return the ± of a cell less that of another, judged against the margin of the claim."""
        difference = (self.of(one).std or 0.0) - (self.of(other).std or 0.0)
        if not self.paired:
            return compare_printed(difference, margin, 0.0)
        seeds = sorted(one.by_seed.keys() & other.by_seed.keys())
        first, second = (np.array([cell.by_seed[seed] for seed in seeds]) for cell in (one, other))
        return replace(compare_spreads(first, second, margin), difference=difference)


def _by_seed(terms: Terms) -> Array:
    """Return a weighted sum under each of the seeds that all cells have, in their order."""
    seeds = sorted(set.intersection(*(set(cell.by_seed) for cell, _ in terms)))
    return np.array([math.fsum(weight * cell.by_seed[seed] for cell, weight in terms) for seed in seeds])


def judge_claims(results: Results) -> list[Judgement]:
    """Judge all claims of a table, each on obtained and on published values.

    A claim fails with its first failing pair; short of that it is not yet decided while obtained values are missing,
    then undecided if any pair is, and else it holds. Trials on generated data have no verdict.
    """
    paired = not results.table.counted
    obtained = _Values(lambda cell: cell.obtained if cell.complete else None, paired)
    so_far, printed = _Values(lambda cell: cell.obtained), _Values(lambda cell: cell.published)
    planned, judgements = [cell for cell in results.cells if cell.runs], []
    for claim in results.table.claims:
        in_print = [cell for cell in results.cells if cell.published and _has_spread(claim, cell.published)]
        theirs = _weigh(results, claim, in_print, printed)
        ours, pointing = (_weigh(results, claim, planned, values) for values in (obtained, so_far))
        if results.table.profile == SMOKE:
            ours, pointing = Evidence(NO_VERDICT, ours.pairs), Evidence(NO_VERDICT, 0)
        agree = sum(pair.surplus > 0 for pair in pointing.judged)
        judgements.append(Judgement(claim, ours, theirs if theirs.pairs else None, (agree, len(pointing.judged))))
    return judgements


def _weigh(results: Results, claim: TableClaim, cells: Sequence[Cell], values: _Values) -> Evidence:
    """Judge a claim on some values of some cells."""
    pairs = _matches(claim, results.table.axes, cells)
    judged = [
        _measure(claim, *sides, values, lower=results.table.lower(sides[0][0].quantity))
        for sides in pairs
        if all((value := values.pick(cell)) and _has_spread(claim, value) for cell in (*sides[0], *sides[1]))
    ]
    corrected = holm([pair.effect.p if pair.surplus < 0 else 1.0 for pair in judged])
    judged = [replace(pair, corrected=p) for pair, p in zip(judged, corrected, strict=True)]
    judged.sort(key=lambda pair: (_SEVERITY.index(pair.verdict), pair.surplus))
    worst = judged[0].verdict if judged else NOT_YET
    return Evidence(worst if worst == FAILS or len(judged) == len(pairs) else NOT_YET, len(pairs), tuple(judged))


def _has_spread(claim: TableClaim, value: Value) -> bool:
    """Return whether a value has what the claim is about, which may be its ±."""
    return claim.form != "steadier" or bool(claim.over) or value.std is not None


def _matches(claim: TableClaim, axes: list[str], cells: Sequence[Cell]) -> list[Sides]:
    """Return all that a claim compares among cells of a table with these axes: two groups, cut to what both have, in
    which cells at the same place differ only in what is compared; the second is empty if it is about each by itself."""
    least = 1 if claim.form == "better" or (claim.form == "steadier" and not claim.over) else 2
    compared = [axis for axis in axes if axis in claim.side]
    shared = [axis for axis in axes if axis not in compared and axis not in claim.over]

    def groups(by: dict[str, list[str]]) -> dict[tuple[Key, Key], dict[Key, Cell]]:
        by_labels: dict[tuple[Key, Key], dict[Key, Cell]] = {}
        for cell in cells:
            if all(cell.labels[axis] in labels for axis, labels in (*claim.where.items(), *by.items())):
                by_labels.setdefault((cell.key(shared), cell.key(compared)), {})[cell.key(claim.over)] = cell
        return by_labels

    if not claim.side:
        return [(list(group.values()), []) for group in groups({}).values() if len(group) >= least]
    found, others = list[Sides](), groups(claim.than)
    for (where, own), group in groups(claim.side).items():
        for (there, theirs), other in others.items():
            common = [key for key in group if key in other]
            if where == there and own != theirs and len(common) >= least:
                found.append(([group[key] for key in common], [other[key] for key in common]))
    return found


def _measure(claim: TableClaim, one: list[Cell], other: list[Cell], values: _Values, *, lower: bool) -> Pair:
    """Compare what a claim compares once, all cells having a value."""
    better, than = (
        {axis: label for axis, label in side[0].labels.items() if axis in claim.side} if side else {}
        for side in (one, other)
    )
    labels = {axis: label for axis, label in one[0].labels.items() if axis not in (*claim.side, *claim.over)}
    if claim.form == "better":
        sides, effect = _compare_means(one, other, values, claim.margin, lower=lower)
    elif claim.form == "steadier" and claim.over:
        sides, effect = _compare_ranges(one, other, values, claim.margin)
    elif claim.form == "steadier":
        sides, effect = _compare_spreads(one[0], other[0], values, claim.margin)
    else:
        high, low = _ends(one, values)
        sides, effect = _one_range(one, high, low, values, claim.margin)
        better, than = ({axis: cell.labels[axis] for axis in claim.over} for cell in (high, low))
    surplus = round((effect.difference - claim.margin) * (-1.0 if claim.form == "within" else 1.0), 9)  # of a float
    return Pair(better, than, labels, sides, effect, surplus)


def _compare_means(
    one: list[Cell], other: list[Cell], values: _Values, margin: float, *, lower: bool
) -> tuple[tuple[Value, Value], Effect]:
    """Return the means of two groups, and by how much the first is better."""
    first, second = ([(cell, 1 / len(one)) for cell in side] for side in (one, other))
    more, less = (second, first) if lower else (first, second)
    return (values.total(first), values.total(second)), values.effect(_difference(more, less), margin)


def _compare_ranges(
    one: list[Cell], other: list[Cell], values: _Values, margin: float
) -> tuple[tuple[Value, Value], Effect]:
    """Return the ranges of two groups, and by how much the first is narrower.

    Which cells are the ends of a range is itself seen from noisy values. The difference of two ranges is hardly moved
    by that, and is judged as that of four cells that were known beforehand.
    """
    first, second = (_range(*_ends(side, values)) for side in (one, other))
    return (values.total(first), values.total(second)), values.effect(_difference(second, first), margin)


def _compare_spreads(one: Cell, other: Cell, values: _Values, margin: float) -> tuple[tuple[Value, Value], Effect]:
    """Return the ± of two cells, and by how much the first is less."""
    first, second = (Value(values.of(cell).std or 0.0) for cell in (one, other))
    return (first, second), values.spreads(other, one, margin)


def _one_range(
    cells: list[Cell], high: Cell, low: Cell, values: _Values, margin: float
) -> tuple[tuple[Value, Value], Effect]:
    """Return the values at the ends of the range of some cells, and how wide it is.

    It is narrow when any two cells are close, so of all pairs of cells the least certain counts; it is wider when any
    two are farther apart, of which the widest apart are picked after the fact, so their p is multiplied by the number
    of pairs.
    """
    effect = values.effect(_range(high, low), margin)
    pairs = list(itertools.permutations(cells, 2))
    if round(margin - effect.difference, 9) >= 0:
        p = max(values.effect(_range(first, second), margin).p for first, second in pairs)
    else:
        p = min(1.0, effect.p * len(pairs) / 2)
    return (values.of(high), values.of(low)), replace(effect, p=p)


def _ends(cells: list[Cell], values: _Values) -> tuple[Cell, Cell]:
    """Return the cells with the highest and the lowest value."""
    by_value = sorted(cells, key=lambda cell: -values.of(cell).mean)
    return by_value[0], by_value[-1]


def _range(high: Cell, low: Cell) -> Terms:
    return [(high, 1.0), (low, -1.0)]


def _difference(more: Terms, less: Terms) -> Terms:
    return [*more, *((cell, -weight) for cell, weight in less)]
