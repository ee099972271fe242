"""Sections of gpu.py that check whether a GPU computes what a CPU does, with every executor."""

import dataclasses
import os
import platform
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gpu_section import Bench, compare, difference, federation, small, start, trained, watched
from safetensors.torch import load_file, save_file
from torch import Tensor

from pflcore.backbones import BACKBONES
from pflcore.client_view import ClientView
from pflcore.engine import CheckpointFolder, Result, device_name, select_device
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import Batch
from pflcore.methods import METHODS
from pflcore.methods.simple import FedAvg

PAIRS = {"fedavg": "convnet", "fedtp": "tiny_vit"}
# Largest changes that another order of float32 sums causes in a few rounds; CPU and GPU also differ in functions.
LIMIT, ACROSS = 2e-4, 1e-3


def machine(bench: Bench) -> None:
    """Write the device and the versions that the numbers were obtained with."""
    device = select_device(bench.device)
    facts = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if device.type == "cuda":
        facts["memory_gb"] = torch.cuda.get_device_properties(device).total_memory / 2**30
    bench.write(device=device_name(device), **facts)


def agree(bench: Bench) -> None:
    """Compare executors with the CPU, recorded steps with launched ones, stacked with sequential, and equal runs."""
    device = bench.place()
    for name, net in PAIRS.items():
        model, data = bench.network(net), bench.uneven(device)
        # Without dropout, since a GPU draws other numbers than a CPU from the same seed.
        still = bench.network(net, dropout=0.0)
        on_cpu = trained(bench.uneven(torch.device("cpu")), name, still, "sequential")
        for executor in ("sequential", "stacked"):
            line = compare(trained(data, name, still, executor), on_cpu, ACROSS)
            bench.write(method=name, check=f"{executor} = CPU, no dropout", **line)
        alone = trained(data, name, model, "sequential")
        os.environ["PFL_GRAPHS"] = "0"
        launched = trained(data, name, model)
        del os.environ["PFL_GRAPHS"]
        bench.write(method=name, check="stacked, not recorded = sequential", **compare(launched, alone, LIMIT))
        with watched() as seen:
            recorded = trained(data, name, model)
        line = compare(recorded, launched, LIMIT)
        line["ok"] &= (seen.replays > 0) == (device.type == "cuda")
        bench.write(method=name, check="recorded = not", **line, replays=seen.replays, warnings=seen.warnings)
        bench.write(method=name, check="the same twice", **compare(trained(data, name, model), recorded, 0.0))
        for precision in ("tf32", "bf16"):
            with bench.tried(method=name, check=precision):
                pair = (trained(data, name, model, one, precision=precision) for one in ("stacked", "sequential"))
                bench.write(method=name, check=f"{precision}: stacked = sequential", **compare(*pair, 5e-2))


def methods(bench: Bench) -> None:
    """Compare two rounds of every method: stacked with recorded steps, and sequential."""
    data = federation(bench.place(), (6, 4, 3, 6) if bench.quick else (48, 37, 20, 48))
    every: dict[str, Any] = {"rounds": 2, "sample_rate": 1.0}

    def both(name: str, net: str, lr: float) -> tuple[Result, Result]:
        backbone = small(BACKBONES, net)
        alone = trained(data, name, backbone, "sequential", lr=lr, **every)
        return trained(data, name, backbone, lr=lr, **every), alone

    for name in METHODS.names()[:: 7 if bench.quick else 1]:
        if bench.left < 3:
            return bench.write(method=name, error="no time for it and what follows")
        with bench.tried(method=name), watched() as seen:
            # The ViT is smooth: rounding moves no ReLU to its other side, which some methods amplify by up to 1e6.
            try:
                net, pair = "tiny_vit", both(name, "tiny_vit", 0.02)
            except UserError:  # a method of filters
                net, pair = "convnet", both(name, "convnet", 0.001)
            bench.write(method=name, backbone=net, **compare(*pair, LIMIT), replays=seen.replays)
        if aside := [one for one in seen.warnings if "not recorded" in one]:
            bench.write(method=name, warnings=aside)


def resume(bench: Bench) -> None:
    """Check that a process that is killed and started again ends with the same bytes as an undisturbed one."""
    for name, net in PAIRS.items():
        with bench.tried(method=name), TemporaryDirectory() as scratch:
            whole, killed = Path(scratch, "undisturbed"), Path(scratch, "killed")
            start(resumable, bench, name, net, whole).join()
            process = start(resumable, bench, name, net, killed)
            while process.is_alive() and not list(killed.glob("round-000003-*")):
                time.sleep(0.002)
            process.kill()
            process.join()
            start(resumable, bench, name, net, killed).join()
            one, other = (folder / "weights.safetensors" for folder in (whole, killed))
            gap = difference(load_file(one), load_file(other))
            bench.write(method=name, difference=gap, ok=one.read_bytes() == other.read_bytes())


def resumable(bench: Bench, name: str, net: str, folder: Path) -> None:
    bench.limit()
    data = bench.uneven(bench.place())
    with CheckpointFolder(folder, "the same", print) as checkpoints:
        result = trained(data, name, bench.network(net), rounds=6, checkpoints=checkpoints, checkpoint_every=0.0)
    if folder.name == "killed" and not result.resumed_from:
        raise RuntimeError("the run began anew")
    weights = {key: tensor.cpu().contiguous() for key, tensor in result.weights.items()}
    save_file(weights, folder / "weights.safetensors")


def resident(bench: Bench) -> None:
    """Compare runs with images on the host, prefetched through pinned memory, and with images on the device."""
    here = bench.uneven(bench.place())
    there = dataclasses.replace(here, inputs=here.inputs.cpu())
    for name, net in PAIRS.items():
        with watched() as seen:
            runs = [trained(data, name, bench.network(net)) for data in (there, here)]
        facts = {"on_host": not there.resident, "replays": seen.replays, "warnings": seen.warnings}
        bench.write(method=name, **compare(*runs, 0.0), **facts)


class Looks(FedAvg):
    """A method that reads a number from the device in each step, which cannot be recorded."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        one = torch.ones((), device=batch.labels.device).item()
        return super().loss(local, params, batch) * one


def uncapturable(bench: Bench) -> None:
    """Check that steps which cannot be recorded are launched with a warning, and those of the next run recorded."""
    device = bench.place()
    data, model = bench.uneven(device), bench.network("convnet")
    expected = trained(data, "fedavg", model, "sequential")
    for method in (Looks(), "fedavg"):
        with watched() as seen:
            line = compare(trained(data, method, model), expected, LIMIT)
        launched = any("not recorded" in one for one in seen.warnings)
        line["ok"] &= (launched if method != "fedavg" else seen.replays > 0) == (device.type == "cuda")
        bench.write(**line, launched=launched, replays=seen.replays, warnings=seen.warnings)
