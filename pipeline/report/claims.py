"""A paper's claims as checks: do they hold on the obtained values, and do they hold on the published ones?

Randomness is derived from the seed, so two methods under one seed have the same partition, the same initial weights and
the same order of batches; most of what a seed does to one it does to the other, and their difference is free of it.
What is counted are seeds, whatever the table averages over: the runs of a cell under one seed are one number, and so is
what a claim takes together `over` some axes. Of published values all that is known is their ±; one without is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pipeline.report.statistics import (
    FEWEST_SEEDS,
    LEVEL,
    NO_VERDICT,
    WITHIN,
    Array,
    Effect,
    bootstrap_interval,
    compare,
    compare_printed,
    compare_spreads,
    holm,
)
from pipeline.report.table.cells import SMOKE, Cell, Key, Value
from pipeline.report.table.results import Results
from pipeline.spec.table import TableClaim

HOLDS, FAILS, ONE_SEED, NOT_YET = "holds", "fails", "one seed: undecided", "not yet"
VERDICTS = (HOLDS, FAILS, WITHIN, ONE_SEED, NOT_YET, NO_VERDICT)
"""What may be said of a claim; pages, the index and counts all go by this order."""

_SEVERITY = {FAILS: 0, ONE_SEED: 1, WITHIN: 2, HOLDS: 3}

Terms = list[tuple[Cell, float]]
"""Cells with their weights in a sum."""


@dataclass(frozen=True)
class Match:
    """Two groups of cells, in which those at the same place differ only in what the claim compares.

    Attributes:
        first: The cells that the claim speaks for; they differ only on the axes that it is taken over.
        second: Those they are compared with, as many; none if the claim is about each group by itself.
        compared: The labels of either side that the claim compares.
        labels: What all cells share.
    """

    first: tuple[Cell, ...]
    second: tuple[Cell, ...]
    compared: tuple[dict[str, str], dict[str, str]]
    labels: dict[str, str]


@dataclass(frozen=True)
class Pair:
    """What a claim compares once: two cells, the means or the ranges of two groups, or the ends of one range.

    Attributes:
        better: The labels that the claim speaks for; of one range those of its highest cell.
        than: Those they are compared with; of one range those of its lowest cell.
        labels: The labels that are shared.
        values: Of either side; where ranges are compared, how wide they are, and where spreads are, the spreads.
        effect: How much better the first is, in percentage points (negative: it is worse), or how much narrower; of one
            range how wide it is.
        surplus: By how much that is more than what the claim asks for.
        cells: How many cells either side is made of.
        ends: Where ranges are compared, per side the labels of the highest and of the lowest cell; of one range its
            highest cell is one side, and its lowest the other.
        corrected: p where the pair speaks against the claim, by Holm over all of its pairs.
    """

    better: dict[str, str]
    than: dict[str, str]
    labels: dict[str, str]
    values: tuple[Value, Value]
    effect: Effect
    surplus: float
    cells: int = 1
    ends: tuple[tuple[dict[str, str], ...], ...] = ()
    corrected: float = 1.0

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
    """The verdict over all pairs.

    Attributes:
        pairs: How many there are.
        judged: Those of which no value is missing, those first that speak most against the claim.
    """

    verdict: str
    pairs: int
    judged: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """One claim with its evidence.

    Attributes:
        published: None where the paper prints nothing that the claim compares.
        so_far: How many pairs come out as the claim says, whatever chance may explain, of how many that have obtained
            values of however many seeds.
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


def judge_claims(results: Results) -> list[Judgement]:
    """Judge all claims of a table, each on obtained and on published values.

    A pair holds when chance is no explanation for its being better by more than the margin, fails when it is none for
    its falling short of it, and is undecided otherwise: within noise, or because there is one seed. A claim fails with
    its first failing pair; short of that it is not yet decided while obtained values are missing, then undecided if any
    pair is, and else it holds. Trials on generated data have no verdict.
    """
    table = results.table
    # Neither seeds nor chance have a part in counts.
    obtained = Values(results, lambda cell: cell.obtained if cell.complete else None, paired=not table.counted)
    printed, so_far = Values(results, lambda cell: cell.published), Values(results, lambda cell: cell.obtained)
    judgements = []
    for claim in table.claims:
        cells = [cell for cell in results.cells if cell.published and _has_spread(claim, cell.published)]
        in_print = _weigh(results, claim, cells, printed)
        ours, pointing = Evidence(NO_VERDICT, 0), Evidence(NO_VERDICT, 0)
        planned = [cell for cell in results.cells if cell.runs]
        if table.profile == SMOKE:
            ours = Evidence(NO_VERDICT, len(_matches(claim, table.axes, planned)))
        else:
            ours, pointing = (_weigh(results, claim, planned, values) for values in (obtained, so_far))
        agree = sum(pair.surplus > 0 for pair in pointing.judged)
        judgements.append(Judgement(claim, ours, in_print if in_print.pairs else None, (agree, len(pointing.judged))))
    return judgements


def _weigh(results: Results, claim: TableClaim, cells: Iterable[Cell], values: Values) -> Evidence:
    """Judge a claim on some values of some cells."""
    pairs = _matches(claim, results.table.axes, cells)
    judged = [
        _measure(claim, match, values, lower=results.table.better == "lower")
        for match in pairs
        if all(
            (value := values.pick(cell)) is not None and _has_spread(claim, value)
            for cell in (*match.first, *match.second)
        )
    ]
    corrected = holm([pair.effect.p if pair.surplus < 0 else 1.0 for pair in judged])
    judged = [replace(pair, corrected=p) for pair, p in zip(judged, corrected, strict=True)]
    judged.sort(key=lambda pair: (_SEVERITY[pair.verdict], pair.surplus))
    worst = judged[0].verdict if judged else NOT_YET
    return Evidence(worst if worst == FAILS or len(judged) == len(pairs) else NOT_YET, len(pairs), tuple(judged))


def _has_spread(claim: TableClaim, value: Value) -> bool:
    """Return whether a value has what the claim is about, which may be its ±."""
    return claim.form != "steadier" or bool(claim.over) or value.std is not None


def _matches(claim: TableClaim, axes: list[str], cells: Iterable[Cell]) -> list[Match]:
    """Return all that a claim compares among cells of a table with these axes; groups are cut to what both have."""
    least = 1 if claim.form == "better" or (claim.form == "steadier" and not claim.over) else 2
    compared = [axis for axis in axes if axis in claim.side]
    shared = [axis for axis in axes if axis not in compared and axis not in claim.over]
    chosen = [cell for cell in cells if _fits(cell, claim.where)]

    def groups(by: dict[str, list[str]]) -> dict[tuple[Key, Key], dict[Key, Cell]]:
        by_labels: dict[tuple[Key, Key], dict[Key, Cell]] = {}
        for cell in chosen:
            if _fits(cell, by):
                by_labels.setdefault((cell.key(shared), cell.key(compared)), {})[cell.key(claim.over)] = cell
        return by_labels

    def match(first: Sequence[Cell], second: Sequence[Cell]) -> Match:
        one, other = ({axis: side[0].labels[axis] for axis in compared} if side else {} for side in (first, second))
        return Match(tuple(first), tuple(second), (one, other), {axis: first[0].labels[axis] for axis in shared})

    if not claim.side:
        return [match(list(group.values()), []) for group in groups({}).values() if len(group) >= least]
    found, others = [], groups(claim.than)
    for (where, own), group in groups(claim.side).items():
        for (there, theirs), other in others.items():
            common = [key for key in group if key in other]
            if where == there and own != theirs and len(common) >= least:
                found.append(match([group[key] for key in common], [other[key] for key in common]))
    return found


def _fits(cell: Cell, by: dict[str, list[str]]) -> bool:
    return all(cell.labels[axis] in labels for axis, labels in by.items())


def _measure(claim: TableClaim, match: Match, values: Values, *, lower: bool) -> Pair:
    """Compare what a claim compares once, all cells having a value.

    Which cells are the ends of a range is itself seen from noisy values, and makes any range too wide. The difference
    of two ranges is hardly moved by that, and is judged as that of four cells that were known beforehand; where all
    cells of a side are alike that is too careful (``benchmarks/claims.py``). One range is narrow when any two cells are
    close, so of all pairs of cells the least certain counts; it is wider when any two are farther apart, of which the
    widest apart are picked after the fact, so their p is multiplied by the number of pairs.
    """
    better, than = match.compared
    ends: list[tuple[Cell, Cell]] = [
        (by_value[0], by_value[-1])
        for side in (match.first, match.second)
        if (by_value := sorted(side, key=lambda cell: -values.mean(cell)))
    ]
    named = tuple(tuple({axis: cell.labels[axis] for axis in claim.over} for cell in of) for of in ends)
    if claim.form == "better":
        share = 1 / len(match.first)
        first, second = ([(cell, share) for cell in side] for side in (match.first, match.second))
        sides, named = (values.total(first), values.total(second)), ()
        terms = [*(second if lower else first), *((cell, -share) for cell, _ in (first if lower else second))]
        effect = values.effect(terms, claim.margin)
    elif claim.form == "steadier" and not claim.over:
        (one,), (other,) = match.first, match.second
        sides, named = (Value(values.std(one)), Value(values.std(other))), ()
        effect = values.spreads(other, one, claim.margin)
    elif claim.form == "steadier":
        (high, low), (top, bottom) = ends
        ours, theirs = [(high, 1.0), (low, -1.0)], [(top, 1.0), (bottom, -1.0)]
        sides = values.total(ours), values.total(theirs)
        effect = values.effect([*theirs, *((cell, -weight) for cell, weight in ours)], claim.margin)
    else:
        ((high, low),) = ends
        sides = values.total([(high, 1.0)]), values.total([(low, 1.0)])
        (better, than), named = named[0], tuple((one,) for one in named[0])
        effect = values.effect([(high, 1.0), (low, -1.0)], claim.margin)
        pairs = list(itertools.permutations(match.first, 2))
        close = round(claim.margin - effect.difference, 9) >= 0
        p = max(values.effect([(one, 1.0), (other, -1.0)], claim.margin).p for one, other in pairs) if close else 0.0
        effect = replace(effect, p=p if close else min(1.0, effect.p * len(pairs) / 2))
    sign = -1.0 if claim.form == "within" else 1.0
    surplus = round(sign * (effect.difference - claim.margin), 9)  # so that the last digit of a float decides nothing
    return Pair(better, than, match.labels, sides, effect, surplus, len(match.first), named)


@dataclass(frozen=True)
class Values:
    """Values of cells that claims are judged on, and what their differences are worth.

    Attributes:
        pick: The value that a cell is judged on; None while there is none.
        paired: Whether they are compared seed by seed; else all that is known is their ±, and those of several cells
            count as independent.
    """

    results: Results
    pick: Callable[[Cell], Value | None]
    paired: bool = False

    def mean(self, cell: Cell) -> float:
        """Return the mean of a cell that has a value."""
        value = self.pick(cell)
        return value.mean if value else math.nan

    def std(self, cell: Cell) -> float:
        """Return the deviation of a cell that has a value; 0 where it has none."""
        value = self.pick(cell)
        return (value.std if value else None) or 0.0

    def total(self, terms: Terms) -> Value:
        """Return a weighted sum, with a deviation where it is known."""
        values = [value for cell, _ in terms if (value := self.pick(cell))]
        if len(values) == 1:
            return values[0]
        seeds = _by_seed(terms) if self.paired else np.array([])
        std = float(seeds.std()) if len(seeds) > 1 else None
        if not self.paired and any(value.std is not None for value in values):
            std = self._deviation(terms)
        return Value(self._sum(terms), std)

    def effect(self, terms: Terms, asked: float) -> Effect:
        """Return a weighted sum, judged against what is asked for."""
        by_clients = self.results.table.metric == "clients" and all(cell.client is None for cell, _ in terms)
        if not self.paired:  # under `clients` the ± of a single run is the spread between its clients
            deviation = self._deviation(terms)
            between = by_clients and deviation > 0 and all(len(cell.runs) <= 1 for cell, _ in terms)
            return compare_printed(self._sum(terms), asked, deviation, between_clients=between)
        seeds = _by_seed(terms)
        if not len(seeds):  # nothing pairs
            return Effect(self._sum(terms), n=0)
        found = compare(seeds - asked)
        clients = self._over_clients(terms) if found.n == 1 and by_clients else None
        low, high = found.low + asked, found.high + asked
        return replace(found, difference=found.difference + asked, low=low, high=high, clients=clients)

    def spreads(self, one: Cell, other: Cell, asked: float) -> Effect:
        """Return the ± of a cell less that of another, judged against what is asked for."""
        difference = self.std(one) - self.std(other)
        if not self.paired:
            return compare_printed(difference, asked, 0.0)
        seeds = sorted(one.by_seed.keys() & other.by_seed.keys())
        first, second = (np.array([cell.by_seed[seed] for seed in seeds]) for cell in (one, other))
        return replace(compare_spreads(first, second, asked), difference=difference)

    def _sum(self, terms: Terms) -> float:
        return math.fsum(weight * self.mean(cell) for cell, weight in terms)

    def _deviation(self, terms: Terms) -> float:
        return math.hypot(*(weight * self.std(cell) for cell, weight in terms))

    def _over_clients(self, terms: Terms) -> tuple[int, float, float] | None:
        """Return how many clients a single seed has and the interval over them; None unless all have the same ones."""
        runs = {run: self.results.runs[run] for cell, _ in terms for run in cell.runs}
        if len({run.resolved.federation_id for run in runs.values()}) > 1:
            return None
        sides = [
            weight * pd.concat([runs[run].clients for run in cell.runs], axis=1).mean(axis=1, skipna=False)
            for cell, weight in terms
        ]
        differences = pd.concat(sides, axis=1).sum(axis=1, skipna=False).dropna().sort_index().to_numpy()
        return (len(differences), *bootstrap_interval(differences)) if len(differences) > 1 else None


def _by_seed(terms: Terms) -> Array:
    """Return a weighted sum under each of the seeds that all cells have, in their order."""
    seeds = sorted(set.intersection(*(set(cell.by_seed) for cell, _ in terms)))
    return np.array([math.fsum(weight * cell.by_seed[seed] for cell, weight in terms) for seed in seeds])
