"""Checks of a paper's claims: does a claim hold on the obtained values, and does it hold on the published ones?

Randomness is derived from the seed, so two methods under one seed have the same partition, the same initial weights and
the same order of batches. Most of a seed's effect is the same on both, and their difference is free of it. The sample
is the seeds, whatever the table averages over: the runs of a cell under one seed give one number, and so do cells that
a claim combines `over` axes. Of published values only their ± is known; a value without one is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.report.cells import SMOKE, WITHOUT_VALUE, Cell, Key
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
    """One comparison of a claim: two cells, the means or ranges of two groups, or the ends of one range.

    The labels of the sides are `better` and `than`, their common ones `labels`. `values` are those of the sides: means,
    widths of ranges, spreads or ends. The effect is how much better or narrower the first side is, or how wide the one
    range is; `surplus` is by how much it meets the claim; `corrected` is p against the claim by Holm over its pairs.
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
        """The verdict: the pair holds or fails only if chance does not explain it.

        A claim holds if all its pairs hold; each has to do so by itself, and more pairs make this no likelier. One
        failing pair is enough against a claim, and of many pairs one fails by chance, so the corrected p counts there.
        """
        if self.effect.n in (0, 1):
            return ONE_SEED
        if self.surplus > 0 and self.effect.p <= LEVEL:
            return HOLDS
        return FAILS if self.surplus < 0 and self.corrected <= LEVEL else WITHIN


@dataclass(frozen=True)
class Evidence:
    """The verdict over a number of `pairs`; `judged` are the pairs with all values, the most adverse first."""

    verdict: str
    pairs: int
    judged: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """One claim with its evidence; `published` is None if the paper prints none of the values that it compares.

    `so_far` is how many pairs agree with the claim, ignoring chance, and how many pairs have obtained values, of any
    number of seeds.
    """

    claim: Claim
    obtained: Evidence
    published: Evidence | None
    so_far: tuple[int, int] = (0, 0)

    @property
    def decided(self) -> bool:
        """Whether there is a verdict on obtained values, with at least three of our seeds in every pair."""
        seeds = [pair.effect.n for pair in self.obtained.judged]
        return self.obtained.verdict in (HOLDS, FAILS, WITHIN) and all(n is None or n >= FEWEST_SEEDS for n in seeds)

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

    def of(self, cell: Cell) -> Value:
        """Return the value of a cell that has one."""
        value = self.pick(cell)
        assert value
        return value

    def total(self, terms: Terms) -> Value:
        """Return a weighted sum of cells, with its standard deviation if that is known."""
        if len(terms) == 1:
            return self.of(terms[0][0])
        mean, unit = math.fsum(weight * self.of(cell).mean for cell, weight in terms), self.of(terms[0][0]).unit
        if self.paired:
            seeds = _by_seed(terms)
            return Value(mean, float(seeds.std()) if len(seeds) > 1 else None, unit=unit)
        stds = [(self.of(cell).std, weight) for cell, weight in terms]
        known = any(std is not None for std, _ in stds)
        return Value(mean, math.hypot(*(weight * (std or 0.0) for std, weight in stds)) if known else None, unit=unit)

    def effect(self, terms: Terms, margin: float) -> Effect:
        """Return a weighted sum of cells, judged against the margin of the claim."""
        if not self.paired:
            total = self.total(terms)
            return compare_printed(total.mean, margin, total.std or 0.0)
        seeds = _by_seed(terms)
        return compare(seeds, margin) if len(seeds) else Effect(self.total(terms).mean, n=0)  # no seed is shared

    def spreads(self, one: Cell, other: Cell, margin: float) -> tuple[float, float, Effect]:
        """Return the spread of two cells, and how much more the first one spreads, judged against the claim's margin.
        The spread is that of the seeds that both share, if there are several, so it leaves out other averaged axes."""
        ours, theirs = (self.of(cell).std or 0.0 for cell in (one, other))
        if not self.paired:
            return ours, theirs, compare_printed(ours - theirs, margin, 0.0)
        seeds = sorted(one.by_seed.keys() & other.by_seed.keys())
        first, second = (np.array([cell.by_seed[seed] for seed in seeds]) for cell in (one, other))
        if len(seeds) > 1:
            ours, theirs = float(first.std()), float(second.std())
        return ours, theirs, replace(compare_spreads(first, second, margin), difference=ours - theirs)


def _by_seed(terms: Terms) -> Array:
    """Return a weighted sum of cells for each seed that all of them have, in ascending order of seeds."""
    seeds = sorted(set.intersection(*(set(cell.by_seed) for cell, _ in terms)))
    return np.array([math.fsum(weight * cell.by_seed[seed] for cell, weight in terms) for seed in seeds])


def judge_claims(results: Results) -> list[Judgement]:
    """Return the judgement of each claim of a table, on obtained and on published values.

    A claim fails if one of its pairs fails. Otherwise it is not yet decided while values are missing, undecided if a
    pair has one seed, and else has the worst verdict of its pairs. Trials have no verdict on obtained values, nor has a
    claim of which a cell shows no value when all is done, since a run diverged for example.
    """
    paired = not results.table.counted
    obtained = _Values(lambda cell: cell.obtained if cell.complete else None, paired)
    so_far = _Values(lambda cell: None if cell.uneven else cell.obtained)
    printed = _Values(lambda cell: cell.published)
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


def _weigh(results: Results, claim: Claim, cells: Sequence[Cell], values: _Values) -> Evidence:
    """Return the evidence on a claim from one kind of values of some cells."""
    pairs, pending = _matches(claim, results.table.axes, cells), False
    judged = []
    for sides in pairs:
        both = [*sides[0], *sides[1]]
        if all((value := values.pick(cell)) and _has_spread(claim, value) for cell in both):
            lower = results.table.lower(both[0].quantity)
            paired = values.paired and not all(cell.counted for cell in both)  # counts have no seeds
            judged.append(_measure(claim, *sides, replace(values, paired=paired), lower=lower))
        elif not any(cell.verdict in WITHOUT_VALUE for cell in both):
            pending = True
    corrected = holm([pair.effect.p if pair.surplus < 0 else 1.0 for pair in judged])
    judged = [replace(pair, corrected=p) for pair, p in zip(judged, corrected, strict=True)]
    judged.sort(key=lambda pair: (_SEVERITY.index(pair.verdict), pair.surplus))
    worst = judged[0].verdict if judged else NOT_YET
    if worst != FAILS and len(judged) < len(pairs):
        worst = NOT_YET if pending else NO_VERDICT
    return Evidence(worst, len(pairs), tuple(judged))


def _has_spread(claim: Claim, value: Value) -> bool:
    """Return whether a value has what the claim compares, which is the ± in claims on spreads of cells."""
    return claim.form != "steadier" or bool(claim.over) or value.std is not None


def _matches(claim: Claim, axes: list[str], cells: Sequence[Cell]) -> list[Sides]:
    """Return the pairs of groups that a claim compares among cells of a table with these axes. Both have the same
    places, and cells at one place differ only in what is compared. The second is empty for claims on single groups."""
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
    found, others = list[Sides](), groups(claim.than or {})
    for (where, own), group in groups(claim.side).items():
        for (there, theirs), other in others.items():
            common = [key for key in group if key in other]
            if where == there and own != theirs and len(common) >= least:
                found.append(([group[key] for key in common], [other[key] for key in common]))
    return found


def _measure(claim: Claim, one: list[Cell], other: list[Cell], values: _Values, *, lower: bool) -> Pair:
    """Return one comparison of a claim; all of its cells have a value."""
    better, than = (
        {axis: label for axis, label in side[0].labels.items() if axis in claim.side} if side else {}
        for side in (one, other)
    )
    labels = {axis: label for axis, label in one[0].labels.items() if axis not in (*claim.side, *claim.over)}
    if claim.form == "steadier" and not claim.over:
        theirs, ours, effect = values.spreads(other[0], one[0], claim.limit)
        unit = values.of(one[0]).unit
        sides = Value(ours, unit=unit), Value(theirs, unit=unit)
    elif claim.form == "within":
        high, low = _ends(one, values)
        sides, effect = _one_range(one, high, low, values, claim.limit)
        better, than = ({axis: cell.labels[axis] for axis in claim.over} for cell in (high, low))
    else:
        first, second = (
            _mean(side) if claim.form == "better" else _range(*_ends(side, values)) for side in (one, other)
        )
        more, less = (first, second) if claim.form == "better" and not lower else (second, first)
        sides = values.total(first), values.total(second)
        # The ends of a range are chosen by noisy values. This hardly affects the difference of two ranges, so it is
        # judged like a difference of four cells that were known beforehand.
        effect = values.effect([*more, *((cell, -weight) for cell, weight in less)], claim.limit)
    surplus = round((effect.difference - claim.limit) * (-1.0 if claim.form == "within" else 1.0), 9)  # float errors
    return Pair(better, than, labels, sides, effect, surplus)


def _one_range(
    cells: list[Cell], high: Cell, low: Cell, values: _Values, margin: float
) -> tuple[tuple[Value, Value], Effect]:
    """Return the values at the ends of the range of some cells, and how wide it is.

    A range is narrow if every two of its cells are close, so the largest p of all pairs counts. It is wide if any two
    cells are far apart. The two at its ends are chosen after the fact, so their p is multiplied by the number of pairs.
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


def _mean(cells: list[Cell]) -> Terms:
    return [(cell, 1 / len(cells)) for cell in cells]


def _range(high: Cell, low: Cell) -> Terms:
    return [(high, 1.0), (low, -1.0)]
