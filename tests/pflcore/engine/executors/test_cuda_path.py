"""The path for CUDA, on a GPU that is pretended: what it gives, and that mistakes which only show there are found."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cohorts import PAIRS, amplified, assert_close, uneven_run
from support.pretend_device import CheckedReplay, Events, Stale, pretend_cuda
from support.pretend_device.runs import draw_as_gpus_do, on_gpu, on_host
from support.tiny import backbone, federation, method, result_bytes, run, training
from torch import Tensor

from pflcore.engine import CheckpointFolder, Progress, Result
from pflcore.engine.device import device_name, select_device
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.executors import graphs, stacked
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView, Method
from pflcore.methods.simple import FedAvg

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")]

SHORT = {"local_epochs": 1, "sample_rate": 0.4}


@contextmanager
def all_recorded() -> Iterator[Events]:
    """Every step is recorded at its first occurrence, and each replay is held against a call."""
    with pytest.MonkeyPatch.context() as patch, pretend_cuda() as events:
        patch.setattr(graphs, "_CALLS_BEFORE", 0)
        patch.setattr(graphs, "_WARM_UP", 1)
        patch.setattr(stacked, "Replay", CheckedReplay)
        yield events


@pytest.mark.parametrize(("name", "net"), PAIRS)
def test_recorded_steps_of_stacked_clients_agree_with_single_ones(
    name: str, net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with all_recorded() as events:
        found = on_host(uneven_run(name, net, "stacked", on_gpu, training=SHORT))
    assert events["replays"] > 0
    monkeypatch.setattr(DropoutBits, "draw", draw_as_gpus_do)
    assert_close(found, uneven_run(name, net, "sequential", training=SHORT), amplified(name))


def test_a_gpu_is_found_and_used() -> None:
    with pretend_cuda() as events:
        device = select_device("auto")
        assert (device.type, device_name(device)) == ("cuda", "pretend GPU")
        run(method("fedavg"), backbone("convnet"), federation(device="cuda"), training=training(rounds=3))
    assert events["replays"] > 0


def test_samples_that_do_not_fit_are_fetched() -> None:
    expected = run(method("fedavg"), backbone("convnet"), executor="sequential")
    with pretend_cuda():
        resident = on_gpu(federation())
        data = on_gpu(federation())
        object.__setattr__(data, "inputs", federation().inputs)
        assert resident.resident and not data.resident
        found = on_host(run(method("fedavg"), backbone("convnet"), data, executor="stacked"))
    assert_close(found, expected)


class Stopped(Exception):
    """Stands for anything that ends a process between two rounds."""


@pytest.mark.parametrize(("name", "net"), [("fedper", "norm_net"), ("fedtp", "tiny_vit")])
def test_a_run_that_was_stopped_ends_alike(name: str, net: str, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise Stopped

    def attempt(**changes: Any) -> Result:
        with pretend_cuda():
            settings = {"rounds": 3, **SHORT}
            return on_host(uneven_run(name, net, "stacked", on_gpu, training=settings, **changes))

    lines: list[str] = []
    expected = attempt()
    for again in (False, True):
        with CheckpointFolder(tmp_path, "me", lines.append) as folder:
            if not again:
                with pytest.raises(Stopped):
                    attempt(checkpoints=folder, checkpoint_every=0.0, on_round=stop)
            else:
                found = attempt(checkpoints=folder)
    assert (found.resumed_from, lines) == (1, [])
    assert result_bytes(found) == result_bytes(expected)


# --- mistakes that a CPU forgives ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OnTheHost(FedAvg):
    """Its loss has a constant that lies on the host."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        weights = torch.ones(4)
        return super().loss(local, params, batch) + (local.forward(params, batch.inputs) * weights).sum()  # here


@dataclass(frozen=True, kw_only=True)
class Uploaded(FedAvg):
    """Its loss copies a number to the device."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        scale = torch.tensor(2.0, device=batch.inputs.device)  # here
        return super().loss(local, params, batch) * scale


COUNT = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Counted(FedAvg):
    """Its loss has a number that changes from call to call, and that a graph keeps."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return super().loss(local, params, batch) * (1 + 0.01 * next(COUNT))  # here


FAULTS = [
    (OnTheHost, UserWarning, "same device, mul"),
    (Uploaded, UserWarning, "steps are not recorded .*a copy from the host"),
    (Counted, Stale, "a graph has .* where a call has"),
]


@pytest.mark.parametrize(("faulty", "error", "says"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_a_mistake_is_found_with_its_line(faulty: type[Method], error: type[Exception], says: str) -> None:
    lines, first = inspect.getsourcelines(faulty)
    (line,) = [first + index for index, text in enumerate(lines) if text.endswith("# here\n")]
    place = re.escape(f"tests/pflcore/engine/executors/{Path(__file__).name}:{line}")
    run(faulty(), backbone("convnet"), executor="sequential")  # nothing is wrong with it on a CPU
    with all_recorded(), pytest.raises(error, match=f"{says}.* at {place}"):
        run(faulty(), backbone("convnet"), on_gpu(federation()), executor="stacked")


# --- the device itself --------------------------------------------------------------------------------------------


def test_outputs_of_a_graph_are_what_a_call_would_give() -> None:
    with pretend_cuda():
        scale = torch.full((3,), 2.0, device="cuda")
        x = torch.zeros(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x * scale).view(3, 1).expand(3, 2).clone()
            y[0] += 1
        x.copy_(torch.tensor([1.0, 2.0, 3.0]))
        graph.replay()
        assert y.tolist() == [[3.0, 3.0], [4.0, 4.0], [6.0, 6.0]]
        del scale
        with pytest.raises(Stale, match="memory that has been given back"):
            graph.replay()
