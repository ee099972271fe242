"""What the last bits of a run's numbers depend on, beside its spec and its code."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch

_INSTRUCTION_SETS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")


def describe_machine(device: torch.device) -> str:
    """Return what the last bits of sums depend on, as one line.

    Of a CPU these are the processor, its instruction sets that matrix products are chosen by, PyTorch's threads and its
    libraries, and the variables that choose among instruction sets. Of a GPU, its model and the libraries.
    """
    if device.type == "cuda":
        return (
            f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]
        )
    can = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    sets = [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if can.get(name)]
    libraries = re.findall(r"(Math Kernel Library|MKL-DNN) (?:Version )?v?([\d.]+)", torch.__config__.show())
    names = {"Math Kernel Library": "MKL", "MKL-DNN": "oneDNN"}
    chosen = [f"{name}={os.environ[name]}" for name in _INSTRUCTION_SETS if name in os.environ]
    return ", ".join(
        [
            _processor(),
            " ".join(sets) or torch.backends.cpu.get_cpu_capability(),
            f"{torch.get_num_threads()} threads",
            *(f"{names[name]} {version}" for name, version in libraries),
            *chosen,
        ]
    )


def _processor() -> str:
    """Return vendor, family and model as Linux names them, or else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "vendor_id" in facts:
        return f"{facts['vendor_id']} family {facts.get('cpu family')} model {facts.get('model')}"
    return platform.processor() or platform.machine()
