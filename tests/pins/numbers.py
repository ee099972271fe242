"""Small runs as numbers: what they leave behind, as text that can be recorded and compared."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from pflcore.artifacts import read_table
from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_samples
from pflcore.data.samples import Samples
from pipeline.study.small_run import SmallRun, perform

Numbers = dict[str, str]  # quantity → its values, with spaces between; those with a point are of floating point
_FLOOR = 1e-6  # numbers that are all smaller are compared as if one were as large as this
_COUNTED = "parameters communicated_up communicated_down stored received server macs positions diverged"


def numbers_of_run(small: SmallRun, way: str, folder: Path) -> Numbers:
    """Carry out a small run, in one of four ways, and return its numbers."""
    place = perform(small, way, folder)
    numbers = {"data": of_samples(read_samples(folder / f"{small.run.data_id}-{small.size}"))}
    numbers |= _of_partition(place / "partition") if small.partition else {}
    return numbers | (_of_run(place) if small.method else {})


def shown(values: Iterable[float]) -> str:
    """Format numbers that were computed in floating point, to seven digits."""
    return " ".join(f"{value:#.7g}" for value in values)


def deviation(quantity: str, one: str, other: str) -> float:
    """Return by how much `other` deviates, relative to the largest number in `one`; infinity where nothing may.

    Counts of correct predictions may differ by one in all, as a sample may lie between two classes.
    """
    pairs = list(zip(one.split(), other.split(), strict=False))
    if len(one.split()) != len(other.split()):
        return math.inf
    if quantity.startswith("correct"):
        return math.inf if sum(abs(int(a) - int(b)) for a, b in pairs) > 1 else 0.0
    computed = [(float(a), float(b)) for a, b in pairs if "." in a and "." in b]
    if any(a != b for a, b in pairs if not ("." in a and "." in b)):
        return math.inf
    scale = max([_FLOOR, *(abs(a) for a, _ in computed)])
    return max((abs(a - b) for a, b in computed), default=0.0) / scale


def differences(recorded: Numbers, found: Numbers, tolerance: float) -> dict[str, float]:
    """Return quantity → deviation of those that do not agree or that only one side has; the largest first."""
    quantities = {**recorded, **found}
    by = {name: deviation(name, recorded.get(name, ""), found.get(name, "")) for name in quantities}
    return dict(sorted(((name, size) for name, size in by.items() if size > tolerance), key=lambda item: -item[1]))


def of_samples(samples: Samples) -> str:
    """Return the number of samples, of classes, the size, a digest of all arrays, and the normalisation."""
    attributes = [attribute.values for attribute in samples.attributes.values()]
    boxes = samples.boxes
    objects: list[np.ndarray] = [boxes.counts, boxes.labels, boxes.corners, boxes.difficult] if boxes else []
    digest = _digest(samples.inputs, samples.labels, samples.train, *attributes, *objects)
    normalisation = shown([*samples.mean, *samples.std])
    return f"{len(samples)} {samples.classes} {samples.size} {digest} {normalisation}"


def _of_partition(path: Path) -> Numbers:
    owners = read_assignment(path)
    sizes = " ".join(f"{len(mine)}+{len(tested)}" for mine, tested in zip(owners.train, owners.test, strict=True))
    numbers = {"samples": f"{sizes} {_digest(*owners.train, *owners.test)}"}
    held, noise = owners.validation, owners.noise
    numbers |= {"validation": f"{' '.join(map(str, map(len, held)))} {_digest(*held)}"} if held else {}
    numbers |= {"novel": " ".join(map(str, owners.novel))} if owners.novel else {}
    return numbers | ({"noise": f"{noise.released} {noise.seed} {shown(noise.std)}"} if noise else {})


def _of_run(folder: Path) -> Numbers:
    table, meta = read_table(folder / "rounds.parquet", "rounds/2")
    rows = table.to_pylist()
    numbers = {"cost": " ".join(f"{name}={meta[name]}".replace(" ", "") for name in _COUNTED.split())}
    numbers["measured rounds"] = " ".join(map(str, sorted({row["round"] for row in rows})))
    held = sorted({(row["client"], row["population"], row["total"]) for row in rows})
    numbers["predictions"] = " ".join(f"{population}={total}" for _, population, total in held)
    for number in sorted({row["round"] for row in rows}):
        measured = [row for row in rows if row["round"] == number]
        counts, last = ([row[name] for row in measured] for name in ("correct", "last_correct"))
        numbers[f"correct, round {number}"] = " ".join(map(str, counts))
        if counts != last:
            numbers[f"correct at the end, round {number}"] = " ".join(map(str, last))
        numbers[f"loss, round {number}"] = shown(row["loss"] for row in measured)
    parts: dict[str, list[np.ndarray]] = {}
    for name, tensor in sorted(load_file(folder / "weights.safetensors").items()):
        parts.setdefault(_part(name), []).append(tensor.astype(np.float64).ravel())
    for name, tensors in parts.items():
        numbers[f"state, {name}"] = shown(_statistics(name, np.concatenate(tensors)))
    if (folder / "analysis.parquet").exists():
        found, _ = read_table(folder / "analysis.parquet", "analysis/1")
        value = found["value"].to_numpy()
        numbers["analysis"] = f"{len(value)} {shown(_statistics('analysis', value))}"
    return numbers


def _part(name: str) -> str:
    """What an entry of the final state is shown with: all of a client's own; a module of the model; of the server's."""
    owner, _, rest = name.partition(".")
    if owner == "client":
        return f"client {rest.partition('.')[0]}"
    return f"server {rest.partition('/')[0]}" if owner == "server" else owner.replace("/", " ")


def _statistics(name: str, values: np.ndarray) -> list[float]:
    """The norm, and the projection on a random direction, which notices signs and order."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    direction = np.random.default_rng(seed).standard_normal(len(values))
    return [float(np.linalg.norm(values)), float(values @ direction)]


def _digest(*arrays: np.ndarray) -> str:
    """Twelve hex digits that stand for arrays."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:12]
