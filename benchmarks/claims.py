"""Error rates and power of claims, from simulated runs whose true differences are known.

    python benchmarks/claims.py                   # 200 tables per number, a minute
    python benchmarks/claims.py --tables 1000

Every client has its own accuracy, the same under each method. Every training adds a random effect to all of its
clients, so clients of one seed are not independent. A client's test samples are drawn too. The drawn accuracies are
judged by the code that judges the claims of reports. With 200 tables a rate of 5 % is known to ±3 points, with 1,000
to ±1.4.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# The parent folder must come first: pipeline.py in this folder would hide the package of that name.
sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.report.claims import FAILS, HOLDS, Judgement, judge_claims
from pipeline.report.frame import ALL, Frame
from pipeline.report.statistics import significant
from pipeline.report.table import Results
from pipeline.spec.schema import Claim
from pipeline.spec.table import Published, ResolvedTable, TableCell

CLIENTS, SAMPLES = 20, (50, 301)
BASE, BETWEEN_CLIENTS = 80.0, 8.0  # percent, and points
SEEDS, SPREADS = (3, 5, 10), (0.5, 1.5)

Accuracies = NDArray[np.float64]


def draw(random: np.random.Generator, shifts: Sequence[float], seeds: int, spread: float) -> Accuracies:
    """Return accuracies in percent [methods, seeds, clients]; `shifts` has the true advantage of each method in points.

    `spread` is the standard deviation between trainings of one method, in points.
    """
    client = BASE + random.normal(0, BETWEEN_CLIENTS, (1, seeds, CLIENTS))
    training = random.normal(0, spread, (len(shifts), seeds, 1))
    chance = np.clip((client + training + np.array(shifts)[:, None, None]) / 100, 0.0, 1.0)
    samples = random.integers(*SAMPLES, (1, seeds, CLIENTS))
    return np.asarray(100.0 * random.binomial(samples, chance) / samples)


def judge(accuracies: Accuracies, settings: int = 1, **claim: Any) -> Judgement:
    """Return a report's judgement of a claim about methods A, B, … in the settings 0, 1, …

    `accuracies` [methods · settings, seeds, clients] also give the published values, with ± between seeds.
    """
    runs, values, cells = [], [], []
    for index, of_cell in enumerate(accuracies):
        labels = {"method": chr(ord("A") + index // settings), "setting": str(index % settings)}
        names = [f"{index}-{seed}" for seed in range(len(of_cell))]
        means = of_cell.mean(axis=1)
        for seed, name in enumerate(names):
            runs.append({"run": name, "seed": seed, "state": "measured", "settings": f'{{"seed": {seed}}}'})
            values.append({"run": name, "client": ALL, "metric": "clients", "mean": float(means[seed]), "n": CLIENTS})
        printed = Published(mean=float(means.mean()), std=float(means.std()), quoted=False, note="")
        cells.append(TableCell(labels=labels, runs=names, published=printed))
    facts = {"profile": "paper", "metric": "clients", "better": "higher", "decimals": 2, "clients": {}}
    table = ResolvedTable.model_construct(
        **facts,
        rows=["method"],
        columns=["setting"],
        cells=cells,
        claims=[Claim.model_validate({"text": "A claim.", **claim})],
        labels={axis: list(dict.fromkeys(cell.labels[axis] for cell in cells)) for axis in ("method", "setting")},
    )
    empty = pd.DataFrame(columns=["run", "client", "round", "accuracy"])
    frame = Frame(pd.DataFrame(runs).assign(figure=None), pd.DataFrame(values).assign(std=None), *[empty] * 4)
    (judgement,) = judge_claims(Results.from_frame(table, frame))
    return judgement


def rates(
    tables: int, shifts: Sequence[float], seeds: int, spread: float, settings: int = 1, **claim: Any
) -> tuple[Counter[str], Counter[str]]:
    """Return the number of tables with each verdict on a claim, by obtained and by published values."""
    random = np.random.default_rng([seeds, int(10 * spread), len(shifts)])
    obtained, published = Counter[str](), Counter[str]()
    for _ in range(tables):
        judgement = judge(draw(random, shifts, seeds, spread), settings, **claim)
        obtained[judgement.obtained.verdict] += 1
        if judgement.published:
            published[judgement.published.verdict] += 1
    return obtained, published


def unmarked(tables: int, shifts: Sequence[float], seeds: int, spreads: Sequence[float], row: int) -> float:
    """Return the share of tables in which a row differs significantly from the best one of its column.

    `spreads` is the standard deviation between trainings of each method, in points.
    """
    random, found = np.random.default_rng([seeds, len(shifts), row]), 0
    for _ in range(tables):
        means = BASE + random.normal(0, 1, seeds) + np.array(shifts)[:, None]
        means += random.normal(0, 1, means.shape) * np.array(spreads)[:, None]
        best = int(means.mean(axis=1).argmax())
        if row != best:
            others = [index for index in range(len(shifts)) if index != best]
            pairs = [(dict(enumerate(means[best])), dict(enumerate(means[index]))) for index in others]
            found += significant(pairs)[others.index(row)] is True
    return found / tables


AHEAD: dict[str, Any] = {"better": {"method": ["A"]}, "than": {"method": ["B"]}}
RIVALS: dict[str, Any] = {"better": {"method": ["A"]}, "than": {"method": list("BCDEF")}}
AMONG: dict[str, Any] = {"within": 0.0, "over": ["method"]}
STEADY: dict[str, Any] = {"steadier": {"method": ["A"]}, "than": {"method": ["B"]}}
NARROWER = STEADY | {"over": ["setting"]}
LINES: tuple[tuple[str, tuple[float, ...], int, dict[str, Any], tuple[str, ...]], ...] = (
    ("two equal methods, called different", (0, 0), 1, AHEAD, (HOLDS, FAILS)),
    ("equal to five rivals, said to be ahead of all", (0,) * 6, 1, RIVALS, (HOLDS,)),
    ("equal to five rivals, said to be behind any", (0,) * 6, 1, RIVALS, (FAILS,)),
    ("four equal methods, said to differ (within 0)", (0,) * 4, 1, AMONG, (FAILS,)),
    ("one of four a point ahead, said to be within it", (1, 0, 0, 0), 1, AMONG | {"within": 1.0}, (HOLDS,)),
    ("equal ranges of 3 points, one said to be narrower", (0, 1, 2, 3) * 2, 4, NARROWER, (HOLDS, FAILS)),
    ("equal ranges of 0 points, one said to be narrower", (0,) * 8, 4, NARROWER, (HOLDS, FAILS)),
    ("equal spreads, one said to be less", (0, 0), 1, STEADY, (HOLDS, FAILS)),
    ("a point ahead, found", (1, 0), 1, AHEAD, (HOLDS,)),
    ("three points ahead, found", (3, 0), 1, AHEAD, (HOLDS,)),
)
# Description of a column, true shifts of its rows in points, the row to look at, and its spread divided by that of the
# others.
MARKS: tuple[tuple[str, tuple[float, ...], int, float], ...] = (
    ("truly best, like five others, unmarked", (0,) * 6, 0, 1),
    ("truly best, like 23 others, unmarked", (0,) * 24, 0, 1),
    ("the same, three times as unsteady as the others", (0,) * 24, 0, 3),
    ("the same, a third as unsteady", (0,) * 24, 0, 1 / 3),
    ("three points behind one of 24, found", (0,) * 23 + (-3,), 23, 1),
    ("ten points behind one of 24, found", (0,) * 23 + (-10,), 23, 1),
)


def main() -> None:
    """Print a table of rates in percent, with a column for each number of seeds and spread between trainings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200, help="simulated tables per number")
    tables = parser.parse_args().tables
    began = time.monotonic()
    columns = [(seeds, spread) for spread in SPREADS for seeds in SEEDS]
    print("| % | " + " | ".join(f"{seeds} seeds, ±{spread:g}" for seeds, spread in columns) + " |")
    print("| :--- |" + " ---: |" * len(columns))

    def line(what: str, shares: Sequence[float]) -> None:
        print(f"| {what} | " + " | ".join(f"{100 * share:.1f}" for share in shares) + " |", flush=True)

    for what, shifts, settings, claim, wanted in LINES:
        found = [rates(tables, shifts, seeds, spread, settings, **claim) for seeds, spread in columns]
        line(what, [sum(obtained[verdict] for verdict in wanted) / tables for obtained, _ in found])
        if claim is AHEAD:
            line("— by their ± alone", [sum(p[v] for v in wanted) / tables for _, p in found])
    for what, shifts, row, ratio in MARKS:
        own = [[spread * (ratio if index == row else 1) for index in range(len(shifts))] for _, spread in columns]
        line(what, [unmarked(tables, shifts, seeds, own[i], row) for i, (seeds, _) in enumerate(columns)])
    print(f"\n{tables} tables per number, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
