"""Carrying out a probe: its data, partition and training by the functions of the stages, in a folder for the time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import yaml
from safetensors.numpy import load_file

from pflcore.artifacts import read_table
from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.engine import Progress
from pipeline.probe.cases import RESUMED, SEQUENTIAL, Probe
from pipeline.probe.numbers import Numbers, shown
from pipeline.stages import data, partition, train

# What decides how training is carried out, as no setting of the machine may.
_ENVIRONMENT = {"PFL_WORKERS": "2", "PFL_STACK": "3", "PFL_THREADS": "1"}
_COUNTED = (
    *("parameters", "communicated_up", "communicated_down", "stored", "received", "server", "macs", "positions"),
    "diverged",
)


@contextmanager
def same_everywhere(threads: int = 1) -> Iterator[None]:
    """Settings of this machine put aside; two workers, stacks of three."""
    before = torch.get_num_threads()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PFL_")}
    try:
        with patch.dict(os.environ, {**kept, **_ENVIRONMENT, "PFL_THREADS": str(threads)}, clear=True):
            yield
    finally:
        torch.set_num_threads(before)


def perform(probe: Probe, way: str, folder: Path) -> Numbers:
    """What a probe gives, trained in one of :data:`~pipeline.probe.cases.WAYS`. Datasets in `folder` are used again."""
    run, place = probe.run, folder / probe.name / way
    federation, dataset, owners = place / "federation.yaml", folder / f"{run.data_id}-{probe.size}", place / "partition"
    place.mkdir(parents=True)
    if not dataset.exists():
        record = place / "data.yaml"
        record.write_text(yaml.safe_dump(run.record["dataset"]), encoding="utf-8")
        data.run(record, dataset, folder / "raw")
        if probe.size:
            write_samples(dataset, replace(read_samples(dataset), size=probe.size))
    numbers = {"data": _of_data(dataset)}
    if not probe.divides:
        return numbers
    federation.write_text(yaml.safe_dump(run.federation), encoding="utf-8")
    partition.run(federation, dataset, owners)
    numbers |= _of_partition(owners)
    if not probe.trains:
        return numbers
    record = place / f"{run.id}.yaml"
    record.write_text(yaml.safe_dump(run.record), encoding="utf-8")
    said: list[str] = []

    def execute(on_round: Callable[[Progress], None] | None = None) -> None:
        train.run(
            record,
            dataset=dataset,
            partition=owners,
            code={},
            out=place,
            private=place,
            device="cpu",
            executor=SEQUENTIAL if way == RESUMED else way,
            checkpoint_every=-1.0 if way == RESUMED else 1e9,
            on_round=on_round,
            say=said.append,
        )

    if way == RESUMED:
        with patch.dict(os.environ, PFL_MEMORY="0"):  # nothing fits: data and personal models are mapped files
            with suppress(KeyboardInterrupt):
                execute(_interrupt)
            execute()
        if not any("continued from the checkpoint" in line for line in said):
            raise RuntimeError(f"it did not continue from its checkpoint: {said}")
    else:
        execute()
    return numbers | _of_run(place)


def _interrupt(progress: Progress) -> None:
    """Kill a run after its last round, which is then repeated from the checkpoint before it."""
    if progress.round == progress.rounds:
        raise KeyboardInterrupt


def _of_data(path: Path) -> str:
    samples = read_samples(path)
    attributes = [attribute.values for attribute in samples.attributes.values()]
    digest = _digest(samples.inputs, samples.labels, samples.train, *attributes)
    normalisation = shown([*samples.mean, *samples.std])
    return f"{len(samples)} {samples.classes} {samples.size} {digest} {normalisation}"


def _of_partition(path: Path) -> Numbers:
    owners = read_assignment(path)
    sizes = " ".join(f"{len(mine)}+{len(tested)}" for mine, tested in zip(owners.train, owners.test, strict=True))
    numbers = {"samples": f"{sizes} {_digest(*owners.train, *owners.test)}"}
    if owners.validation:
        numbers["validation"] = f"{' '.join(map(str, map(len, owners.validation)))} {_digest(*owners.validation)}"
    if owners.novel:
        numbers["novel"] = " ".join(map(str, owners.novel))
    if owners.noise:
        numbers["noise"] = f"{owners.noise.released} {owners.noise.seed} {shown(owners.noise.std)}"
    return numbers


def _of_run(folder: Path) -> Numbers:
    table, meta = read_table(folder / "rounds.parquet", "rounds/2")
    rows = table.to_pylist()
    numbers = {"cost": " ".join(f"{name}={meta[name]}".replace(" ", "") for name in _COUNTED)}
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
    inner = rest if owner == "server" else name
    return f"server {inner.partition('/')[0]}" if owner == "server" else inner.partition(".")[0].replace("/", " ")


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
