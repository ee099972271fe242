"""Whether a GPU computes what a CPU does, and whether what only a GPU has works: recording and prefetch.

Every line has `ok`; differences are the largest ones between parameters, and between clients' accuracies.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from card.section import Bench
from card.training import federation, place, small, trained, watched
from safetensors.torch import load_file, save_file
from torch import Tensor

from pflcore.backbones import BACKBONES, Backbone
from pflcore.client_view import ClientView
from pflcore.data.federation import FederatedData
from pflcore.engine import CheckpointFolder, Result
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import Batch
from pflcore.methods import METHODS
from pflcore.methods.simple import FedAvg

# Clients of several sizes, so that batches of several sizes occur; the last is smaller than a batch.
UNEVEN = (150, 96, 131, 64, 20)
FEW = (19, 12, 17, 8, 3)
PAIRS = {"fedavg": "convnet", "fedtp": "tiny_vit"}
# What another order of float32 sums may change in a few rounds; CPU and GPU also differ in their functions.
LIMIT, ACROSS = 2e-4, 1e-3


def uneven(bench: Bench, device: torch.device) -> FederatedData:
    return federation(device, FEW if bench.quick else UNEVEN)


def network(name: str, quick: bool, **options: float) -> Backbone:
    if name != "tiny_vit":
        return BACKBONES.create(name)
    return small(BACKBONES, name, depth=2, **options) if quick else BACKBONES.create(name, depth=2, **options)


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest between tensors of the same names; NaN where names differ or there is one already."""
    if one.keys() != other.keys():
        return float("nan")
    gaps = [(one[name].detach().cpu().double() - other[name].detach().cpu().double()).abs().max() for name in one]
    return float(torch.stack(gaps).max()) if gaps else 0.0


def compare(one: Result, other: Result, limit: float) -> dict[str, Any]:
    """The columns of a line that tells two runs apart."""
    gap = difference(one.weights, other.weights)
    accuracy = float(np.abs(one.correct / one.total - other.correct / other.total).max())
    return {"difference": gap, "accuracy": accuracy, "limit": limit, "ok": gap <= limit}


@contextmanager
def graphs(on: bool) -> Iterator[None]:
    """Whether steps are recorded."""
    os.environ["PFL_GRAPHS"] = "1" if on else "0"
    try:
        yield
    finally:
        del os.environ["PFL_GRAPHS"]


def agree(bench: Bench) -> None:
    """Stacked against sequential, recorded against not, the same twice, each against the CPU."""
    device = place(bench.device)
    for name, net in PAIRS.items():
        model = network(net, bench.quick)
        data = uneven(bench, device)
        # A GPU draws other numbers than a CPU from the same seed.
        still = network(net, bench.quick, dropout=0.0)
        on_cpu = trained(uneven(bench, torch.device("cpu")), name, still, "sequential")
        for executor in ("sequential", "stacked"):
            line = compare(trained(data, name, still, executor), on_cpu, ACROSS)
            bench.write(method=name, check=f"{executor} = CPU, no dropout", **line)
        alone = trained(data, name, model, "sequential")
        with graphs(False):
            launched = trained(data, name, model)
        bench.write(method=name, check="stacked, not recorded = sequential", **compare(launched, alone, LIMIT))
        with watched() as seen:
            recorded = trained(data, name, model)
        line = compare(recorded, launched, LIMIT)
        line["ok"] &= (seen.replays > 0) == (device.type == "cuda")
        bench.write(method=name, check="recorded = not", **line, replays=seen.replays, warnings=seen.warnings)
        bench.write(method=name, check="the same twice", **compare(trained(data, name, model), recorded, 0.0))
        for precision in ("tf32", "bf16"):
            with bench.tried(method=name, check=precision):
                rounded = {"training": {"precision": precision}}
                pair = trained(data, name, model, **rounded), trained(data, name, model, "sequential", **rounded)
                bench.write(method=name, check=f"{precision}: stacked = sequential", **compare(*pair, 5e-2))


def methods(bench: Bench) -> None:
    """Two rounds of every method, stacked and recorded, against one client at a time."""
    device = place(bench.device)
    data = federation(device, (6, 4, 3, 6) if bench.quick else (48, 37, 20, 48))
    for name in METHODS.names()[:: 7 if bench.quick else 1]:
        if bench.left < 3:
            bench.write(method=name, error="no time for it and what follows")
            return
        with bench.tried(method=name), watched() as seen:
            net, alone = _alone(data, name)
            line = compare(trained(data, name, small(BACKBONES, net), rounds=2, sample_rate=1.0), alone, LIMIT)
            bench.write(method=name, backbone=net, **line, replays=seen.replays)
        if aside := [one for one in seen.warnings if "not recorded" in one]:
            bench.write(method=name, warnings=aside)


def _alone(data: FederatedData, name: str) -> tuple[str, Result]:
    """On the first network that has the groups that the method needs."""
    for net in ("convnet", "tiny_vit"):
        try:
            return net, trained(data, name, small(BACKBONES, net), "sequential", rounds=2, sample_rate=1.0)
        except UserError as error:
            refused = error
    raise refused


def resume(bench: Bench) -> None:
    """A process that is killed and started again ends with the bytes of one that is not."""
    for name, net in PAIRS.items():
        with bench.tried(method=name), TemporaryDirectory() as scratch:
            whole, killed = Path(scratch, "undisturbed"), Path(scratch, "killed")
            _start(bench, name, net, whole).join()
            process = _start(bench, name, net, killed)
            while process.is_alive() and not list(killed.glob("round-000003-*")):
                time.sleep(0.002)
            process.kill()
            process.join()
            _start(bench, name, net, killed).join()
            one, other = (folder / "weights.safetensors" for folder in (whole, killed))
            gap = difference(load_file(one), load_file(other))
            bench.write(method=name, difference=gap, ok=one.read_bytes() == other.read_bytes())


def _start(bench: Bench, name: str, net: str, folder: Path) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_resumable, args=(bench, name, net, folder))
    process.start()
    return process


def _resumable(bench: Bench, name: str, net: str, folder: Path) -> None:
    bench.limit()
    data = uneven(bench, place(bench.device))
    with CheckpointFolder(folder, "the same", print) as checkpoints:
        result = trained(data, name, network(net, bench.quick), rounds=6, checkpoints=checkpoints, checkpoint_every=0.0)
    if folder.name == "killed" and not result.resumed_from:
        raise RuntimeError("the run began anew")
    weights = {key: tensor.cpu().contiguous() for key, tensor in result.weights.items()}
    save_file(weights, folder / "weights.safetensors")


def resident(bench: Bench) -> None:
    """Images on the host, fetched ahead through pinned memory, against images on the device."""
    device = place(bench.device)
    here = uneven(bench, device)
    there = dataclasses.replace(here, inputs=here.inputs.cpu())
    for name, net in PAIRS.items():
        model = network(net, bench.quick)
        with watched() as seen:
            line = compare(trained(there, name, model), trained(here, name, model), 0.0)
        bench.write(method=name, on_host=not there.resident, **line, replays=seen.replays, warnings=seen.warnings)


class _Looks(FedAvg):
    """A method that asks the device for a number in each step, which cannot be recorded."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        one = torch.ones((), device=batch.labels.device).item()
        return super().loss(local, params, batch) * one


def uncapturable(bench: Bench) -> None:
    """Steps that cannot be recorded are launched one by one, and a line says so."""
    device = place(bench.device)
    data, model = uneven(bench, device), network("convnet", bench.quick)
    with watched() as seen:
        line = compare(trained(data, _Looks(), model), trained(data, "fedavg", model, "sequential"), LIMIT)
    told = any("not recorded" in one for one in seen.warnings)
    line["ok"] &= told == (device.type == "cuda")
    bench.write(**line, told=told, replays=seen.replays, warnings=seen.warnings)
    with watched() as seen:
        line = compare(trained(data, "fedavg", model), trained(data, "fedavg", model, "sequential"), LIMIT)
    line["ok"] &= (seen.replays > 0) == (device.type == "cuda")
    bench.write(after="another run is recorded", **line, replays=seen.replays)
