"""The train stage: it trains one run and writes its measurements. It can be killed and resumed at any time."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save_file

from pflcore.analyses import ANALYSES
from pflcore.artifacts import write_table
from pflcore.backbones import BACKBONES
from pflcore.conditions import CONDITIONS
from pflcore.data.assignment_files import read_assignment
from pflcore.data.federation import FederatedData
from pflcore.data.sample_files import read_samples
from pflcore.engine import Progress, Result, device_name, select_device, train, use_threads
from pflcore.engine.result import write_findings
from pflcore.files import atomic_path, digest_of, write_text
from pflcore.methods import METHODS
from pipeline.spec.run import Run, read_chosen
from pipeline.stages.identity import checkpoint_folder, describe_machine


def run(
    requested: Run,
    *,
    dataset: Path,
    partition: Path,
    selection: Path | None = None,
    weights: Path | None = None,
    code: str,
    out: Path,
    private: Path,
    device: str = "auto",
    executor: str = "auto",
    checkpoint_every: float = 60.0,
    on_round: Callable[[Progress], None] | None = None,
    confirm: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = print,
) -> None:
    """Train a run and write ``rounds.parquet`` into the folder `out`.

    If the run asks for them, write ``weights.safetensors`` and ``analysis.parquet`` too. The latter has no rows if the
    run diverged.

    Args:
        requested: The run without the settings that `selection` chose for it.
        code: The seal of the code that this process has imported; part of a checkpoint's identity.
        private: The machine's private folder, for checkpoints, last states and timings.
        checkpoint_every: Least number of seconds between checkpoints.
        confirm: Called after the computation; if it raises, only a checkpoint is written.
    """
    chosen = read_chosen(selection) if selection else {}
    run_id, resolved = requested.id, requested.with_chosen(chosen)
    place = select_device(device)
    samples, assignment = read_samples(dataset, private / "decoded"), read_assignment(partition)
    data = FederatedData.from_samples(samples, assignment, place)
    use_threads(place, data.shape)
    coarse = samples.attributes.get("coarse")  # a client's kind is the one of most of its training samples
    hashes = {"dataset_hash": digest_of(dataset), "partition_hash": digest_of(partition)}
    started, cpu_before = time.monotonic(), _cpu_seconds()
    reset_peak_memory(place)
    pretrained = {"pretrained": str(weights)} if weights else {}
    condition = CONDITIONS.create(resolved.condition, **resolved.options("condition")) if resolved.condition else None
    analyses = {name: ANALYSES.create(name, **options) for name, options in resolved.analyses.items()}
    with checkpoint_folder(resolved, run_id, private, code, hashes, place, say) as checkpoints:
        result = train(
            data=data,
            backbone=BACKBONES.create(resolved.backbone, **resolved.options("backbone"), **pretrained),
            method=METHODS.create(resolved.method, **resolved.options("method")),
            training=resolved.training,
            evaluation=resolved.evaluation,
            seed=resolved.seed,
            analyses=analyses,
            executor=executor,
            checkpoints=checkpoints,
            checkpoint_every=checkpoint_every,
            on_round=on_round,
            confirm=confirm,
            kinds=[int(np.bincount(coarse.values[rows]).argmax()) for rows in assignment.train] if coarse else None,
            condition=condition,
        )
        facts: dict[str, Any] = {"run": run_id, "device": device_name(place), "torch": torch.__version__, **hashes}
        if chosen:
            facts["chosen"] = chosen
        for line in _remarks(result, resolved.training.rounds, chosen):
            say(f"{run_id}: {line}")
        if resolved.training.save_weights:
            with atomic_path(out / "weights.safetensors") as temporary:
                save_file({name: tensor.cpu().contiguous() for name, tensor in result.weights.items()}, temporary)
        if analyses:
            write_findings(out / "analysis.parquet", result.findings, **facts)
        write_rounds(out / "rounds.parquet", result, data.novel, code=code, **facts)
        if result.diverged:
            checkpoints.clear()
        else:
            checkpoints.archive()
    rounds = (result.diverged.round if result.diverged else result.rounds) - result.resumed_from
    timing: dict[str, Any] = {"seconds": time.monotonic() - started, "device": device_name(place), "rounds": rounds}
    timing |= {"machine": describe_machine(place), "peak_mb": peak_memory(place)}
    if place.type == "cpu":
        timing["core_seconds"] = _cpu_seconds() - cpu_before
    write_text(private / "timings" / f"{run_id}.json", json.dumps(timing) + "\n")


def reset_peak_memory(device: torch.device) -> None:
    """Let the next :func:`peak_memory` begin here, because a process can train several runs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # other systems than Linux cannot
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory(device: torch.device) -> float:
    """Return the most memory at once in MiB: PyTorch's on a GPU, else that of this process, without its workers."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**20
    # Bytes on macOS, kibibytes elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its child processes that have ended."""
    return sum(os.times()[:4])


def _remarks(result: Result, rounds: int, chosen: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about a run of `rounds` rounds: its tuned options, its end if it was early, where it resumed."""
    if chosen:
        yield f"tuned, with {', '.join(f'{name} {value}' for name, value in chosen.items())}"
    yield from result.notes
    if result.diverged:
        yield str(result.diverged)
    elif result.rounds < rounds:
        yield f"stopped after {result.rounds} of {rounds} rounds, validation is no better"
    if result.inherited:
        yield f"continued from {result.resumed_from} rounds of an earlier run"
    elif result.resumed_from:
        yield f"continued from the checkpoint after round {result.resumed_from}"


def write_rounds(path: Path, result: Result, novel: frozenset[int], **facts: Any) -> None:
    """Write the artifact ``rounds/2``: the measurements of a run, and in the header `facts` of how they were made."""
    is_novel = np.isin(result.client, sorted(novel))
    is_attacker = np.isin(result.client, sorted(result.attackers))
    populations = ["test", "novel"]
    if result.validation.any():
        populations.append("validation")
    kinds = np.where(result.validation, 2, is_novel).astype(np.int8)
    if result.attackers:
        populations.append("attacker")
        kinds[is_attacker & ~result.validation] = len(populations) - 1
    columns = {
        "round": pa.array(result.round, pa.int32()),
        "client": pa.array(result.client, pa.int32()),
        "population": pa.DictionaryArray.from_arrays(kinds, populations),
        "moment": _view_column(result, "moment"),
        "correct": pa.array(result.correct, pa.int64()),
        "total": pa.array(result.total, pa.int64()),
        "loss": pa.array(result.loss, pa.float64()),
        "train_loss": pa.array(result.train_loss, pa.float64(), from_pandas=True),
        "last_correct": pa.array(result.last, pa.int64()),
    }
    columns |= {name: pa.array(values, pa.float64()) for name, values in result.further.items()}
    if "precision" in result.further:
        facts["figure"] = "mAP"
    for name in ("model", "on"):
        if len({getattr(view, name) for view in result.views}) > 1:
            columns[name] = _view_column(result, name)
    table = pa.table(columns)
    if result.validation.any():  # validation samples of novel and attacking clients choose nothing
        table = table.filter(pa.array(~(result.validation & (is_novel | is_attacker))))
    cost = asdict(result.cost)
    facts |= {"communicated_up": cost.pop("sent_up"), "communicated_down": cost.pop("sent_down"), **cost}
    if result.epsilon is not None:
        facts["epsilon"] = result.epsilon
    diverged = {"round": result.diverged.round, "client": result.diverged.client} if result.diverged else None
    facts |= {"parameters": result.parameters, "positions": result.positions, "diverged": diverged}
    write_table(path, table, "rounds/2", **facts)


def _view_column(result: Result, name: str) -> pa.DictionaryArray:
    """Return the column with one field of each row's view: ``model``, ``moment`` or ``on``."""
    values = [getattr(view, name) for view in result.views]
    kinds = list(dict.fromkeys(values))
    codes = np.array([kinds.index(kind) for kind in values], np.int8)
    return pa.DictionaryArray.from_arrays(codes[result.view], kinds)
