"""Who holds what under every scheme, as a table of digests: ``python -m support.assignments`` writes it anew."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pflcore.data.samples import Samples
from pflcore.partitions import PARTITIONS, partition
from support.toy_samples import make_samples

FILE = Path(__file__).parents[1] / "pflcore" / "partitions" / "assignments.csv"
COLUMNS = ("scheme", "options", "clients", "seed", "sizes", "digest")
SEED = 3
SCHEMES: list[tuple[str, dict[str, Any], int]] = [
    ("coarse_classes", {}, 10),
    ("coarse_classes", {"fine": "single"}, 10),
    ("dirichlet", {"alpha": 0.3}, 7),
    ("dirichlet", {"alpha": 0.3, "sizes": "free", "min_samples": 3}, 7),
    ("dirichlet", {"alpha": 0.3, "sizes": "equal", "min_samples": 3}, 7),
    ("domain_dirichlet", {"alpha": 0.7, "min_samples": 5}, 15),
    ("domains", {}, 15),
    ("iid", {}, 7),
    ("natural", {}, 9),
    ("natural", {"attribute": "domain", "min_samples": 2}, 4),
    ("noise", {"sigma_max": 12.0}, 4),
    ("noise", {"sigma_max": 12.0, "variant": "as_released"}, 4),
    ("pachinko", {}, 7),
    ("pathological", {}, 10),
    ("pathological", {"classes_per_client": 3, "variant": "as_released"}, 10),
    ("pathological", {"classes_per_client": 3, "variant": "as_released_pfedhn"}, 10),
    ("quantity", {"alpha": 0.8}, 7),
]
COMMON: list[dict[str, Any]] = [
    {"test_share": 0.3},
    {"test_share": 0.3, "test_draw": "stratified"},
    {"validation_share": 0.2},
    {"train_limit": 30},
    {"train_share": 0.35},
    {"train_share": 0.35, "train_limit": 60, "validation_share": 0.1, "test_share": 0.2, "novel_share": 0.3},
    {"novel_share": 0.4},
]
CASES = [*SCHEMES, *(("dirichlet", {"alpha": 0.5, **one}, 6) for one in COMMON)]


def samples() -> Samples:
    """1,100 samples, few of some classes and domains."""
    made = make_samples(900, 200)
    kept = np.flatnonzero((made.labels != 7) | (np.arange(len(made)) % 3 == 0))
    values = {name: dataclasses.replace(one, values=one.values[kept]) for name, one in made.attributes.items()}
    parts = {name: getattr(made, name)[kept] for name in ("inputs", "labels", "train")}
    return dataclasses.replace(made, **parts, attributes=values)


def rows() -> Iterator[tuple[str, ...]]:
    """A row per case."""
    held = samples()
    for name, options, clients in CASES:
        made = partition(PARTITIONS.create(name, **options), held, clients, SEED)
        parts = [[own.tolist() for own in side] for side in (made.train, made.test, made.validation)]
        noise = made.noise and dataclasses.asdict(made.noise)
        facts = json.dumps([made.scheme, made.seed, made.own_split, made.novel, noise, parts])
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        yield name, json.dumps(options), str(clients), str(SEED), " ".join(str(len(own)) for own in made.train), digest


def recorded() -> list[tuple[str, ...]]:
    """The table without its head."""
    return [tuple(row) for row in csv.reader(FILE.read_text(encoding="utf-8").splitlines())][1:]


if __name__ == "__main__":
    with FILE.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *rows()])
