"""What a run's states belong to, and what the last bits of its numbers depend on beside its spec and its code."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pflcore.engine import CheckpointFolder, device_name
from pflcore.method import PROGRESS
from pflcore.methods import METHODS
from pipeline.spec.run import Run


def checkpoint_folder(
    run: Run,
    run_id: str,
    private: Path,
    code: str,
    hashes: Mapping[str, str],
    device: torch.device,
    say: Callable[[str], None],
) -> CheckpointFolder:
    """Return where a run keeps its checkpoints, and where it finds the last ones of shorter runs."""
    whole, lineage = run_hash(run, code, hashes, device), lineage_hash(run, code, hashes, device)
    folder = private / "checkpoints" / f"{run_id}-{whole[:8]}"
    return CheckpointFolder(folder, whole, say, lineage, private / "states" / lineage[:16])


def run_hash(run: Run, code: str, hashes: Mapping[str, str], device: torch.device) -> str:
    """Return the identity of a run's states: record, code, inputs, and the kind of device, as sums differ there."""
    return _hash(record=run.record, code=code, device=device.type, **hashes)


def lineage_hash(run: Run, code: str, hashes: Mapping[str, str], device: torch.device) -> str:
    """Return what the states of a run and of longer ones have in common.

    It is of all that `run_hash` is of, but the patience, whether weights are saved, why it has its settings, and the
    rounds, unless the method or the learning rate goes by them. As last states stay for long, it is of the very device
    and the version of PyTorch, too.
    """
    aside = {"rounds", "patience", "save_weights"}
    if PROGRESS in METHODS.get(run.method).facts or run.training.counts_rounds:
        aside.remove("rounds")
    record = {field: part for field, part in run.record.items() if field != "tuned"}
    record["training"] = {name: value for name, value in record["training"].items() if name not in aside}
    return _hash(record=record, code=code, device=f"{device_name(device)}, torch {torch.__version__}", **hashes)


def _hash(**facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def describe_machine(device: torch.device) -> str:
    """Return what the last bits of sums depend on, as one line.

    Of a CPU these are the processor, its instruction sets that matrix products are chosen by, PyTorch's threads and its
    libraries, and the variables that choose among instruction sets. Of a GPU, its model and the libraries.
    """
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    can = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    sets = [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if can.get(name)]
    libraries = re.findall(r"(Math Kernel Library|MKL-DNN) (?:Version )?v?([\d.]+)", torch.__config__.show())
    chosen = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if cpuinfo.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    processor = platform.processor() or platform.machine()
    if "vendor_id" in facts:  # as Linux names them
        processor = f"{facts['vendor_id']} family {facts.get('cpu family')} model {facts.get('model')}"
    parts = [
        processor,
        " ".join(sets) or torch.backends.cpu.get_cpu_capability(),
        f"{torch.get_num_threads()} threads",
        *(f"{'MKL' if 'Math' in name else 'oneDNN'} {version}" for name, version in libraries),
        *(f"{name}={os.environ[name]}" for name in chosen if name in os.environ),
    ]
    return ", ".join(parts)
