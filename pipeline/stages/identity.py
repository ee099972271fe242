"""Hashes that identify the states of a run, and a description of the machine that affects the last bits of numbers."""

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
    """Return the folder of a run's checkpoints, which also finds the last states of shorter runs."""
    state_hash, lineage = run_hash(run, code, hashes, device), lineage_hash(run, code, hashes, device)
    folder = private / "checkpoints" / f"{run_id}-{state_hash[:8]}"
    return CheckpointFolder(folder, state_hash, say, lineage, private / "states" / lineage[:16])


def run_hash(run: Run, code: str, hashes: Mapping[str, str], device: torch.device) -> str:
    """Return the hash of a run's states: of record, code, inputs, and kind of device, as sums differ between kinds."""
    return _hash(record=run.record, code=code, device=device.type, **hashes)


def lineage_hash(run: Run, code: str, hashes: Mapping[str, str], device: torch.device) -> str:
    """Return the hash that the states of a run share with those of longer runs.

    It covers what `run_hash` covers, except `patience`, `save_weights`, `tuned`, and the number of rounds unless the
    method or the learning rate depends on it. Last states are kept for long, so the model of the device and PyTorch's
    version are included too.
    """
    ignored = {"rounds", "patience", "save_weights"}
    if PROGRESS in METHODS.get(run.method).facts or run.training.counts_rounds:
        ignored.remove("rounds")
    record = {field: part for field, part in run.record.items() if field != "tuned"}
    record["training"] = {name: value for name, value in record["training"].items() if name not in ignored}
    return _hash(record=record, code=code, device=f"{device_name(device)}, torch {torch.__version__}", **hashes)


def _hash(**facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def describe_machine(device: torch.device) -> str:
    """Return one line with everything on the machine that affects the last bits of sums.

    For a CPU: the processor, its instruction sets that decide which matrix products are used, PyTorch's threads and
    libraries, and the environment variables that choose instruction sets. For a GPU: its model and the libraries.
    """
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    instruction_sets = [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if capabilities.get(name)]
    libraries = re.findall(r"(Math Kernel Library|MKL-DNN) (?:Version )?v?([\d.]+)", torch.__config__.show())
    variables = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if cpuinfo.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    processor = platform.processor() or platform.machine()
    if "vendor_id" in facts:  # as Linux names them
        processor = f"{facts['vendor_id']} family {facts.get('cpu family')} model {facts.get('model')}"
    parts = [
        processor,
        " ".join(instruction_sets) or torch.backends.cpu.get_cpu_capability(),
        f"{torch.get_num_threads()} threads",
        *(f"{'MKL' if 'Math' in name else 'oneDNN'} {version}" for name, version in libraries),
        *(f"{name}={os.environ[name]}" for name in variables if name in os.environ),
    ]
    return ", ".join(parts)
