"""How many ticks a stacked round of uneven clients takes, and how many shapes of steps there are to record.

Counted, not timed: labels are dealt by this project's partitions, cohorts are drawn at random, and nothing is trained.
*Larger first* and *smaller first* let the largest and the smallest of the sizes that clients have next go first; *by
size* is what the executor does where batches must be of one size, *filled up* what it does where small ones are filled
up. *Computed* is how many samples it then computes for one that is trained on.

    python benchmarks/ticks.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pflcore.data.samples import Samples
from pflcore.engine.executors.ticks import Tick, by_size, side_by_side
from pflcore.partitions import PARTITIONS, partition
from pflcore.seeds import generator

EPOCHS, BATCH = 5, 64
CASES = (
    ("pathological", {}, 100, 10),
    ("pathological", {}, 50, 5),
    ("pathological", {}, 50, 50),
    ("dirichlet", {"alpha": 0.3}, 50, 50),
)
WAYS: dict[str, Callable[[Sequence[Sequence[int]]], Iterable[Tick]]] = {
    "larger first": lambda sizes: first_of(sizes, max),
    "smaller first": lambda sizes: first_of(sizes, min),
    "by size": by_size,
    "filled up": side_by_side,
}


def first_of(sizes: Sequence[Sequence[int]], which: Callable[[Iterable[int]], int]) -> Iterable[Tick]:
    """At each tick the largest, or the smallest, size that any client has next."""
    at = [0] * len(sizes)
    while upcoming := {one: own[at[one]] for one, own in enumerate(sizes) if at[one] < len(own)}:
        size = which(upcoming.values())
        tick = [(one, at[one]) for one, its in upcoming.items() if its == size]
        for one, _ in tick:
            at[one] += 1
        yield tick


def labels() -> Samples:
    """As many labels as CIFAR-10 has, under images of one pixel."""
    held = np.tile(np.arange(10), 6_000)
    return Samples(
        inputs=np.zeros((60_000, 1, 1, 1), np.uint8),
        labels=held,
        train=np.arange(60_000) < 50_000,
        name="labels",
        class_names=tuple("0123456789"),
        mean=(0.0,),
        std=(1.0,),
        source="generated",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="cohorts of each case, half of them of another seed")
    rounds = parser.parse_args().rounds
    print(f"| partition, clients, cohort | {' | '.join(WAYS)} | shapes by size | shapes filled up | computed |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, options, clients, cohort in CASES:
        ticks: dict[str, list[int]] = {way: [] for way in WAYS}
        shapes: dict[str, set[tuple[int, int]]] = {way: set() for way in WAYS}
        trained = computed = 0
        for round_ in range(rounds):
            seed = round_ % 2
            train = partition(PARTITIONS.create(name, **options), labels(), clients, seed).train
            sampled = generator(seed, "cohort", round_).permutation(clients)[:cohort]
            epochs = [[BATCH] * (len(train[one]) // BATCH) + [len(train[one]) % BATCH] for one in sampled]
            sizes = [EPOCHS * [size for size in epoch if size] for epoch in epochs]
            for way, order in WAYS.items():
                made = list(order(sizes))
                seen = [(len(tick), max(sizes[one][step] for one, step in tick)) for tick in made]
                ticks[way].append(len(made))
                shapes[way].update(seen if not seed else ())
            trained += sum(map(sum, sizes))
            computed += sum(count * size for count, size in seen)
        means = " | ".join(f"{statistics.mean(counts):.0f}" for counts in ticks.values())
        print(
            f"| {name}{''.join(f'({value})' for value in options.values())}, {clients}, {cohort} | {means} "
            f"| {len(shapes['by size'])} | {len(shapes['filled up'])} | {computed / trained:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
