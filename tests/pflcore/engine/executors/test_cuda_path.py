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
from support.pretend_device import CheckedReplay, Events, MixedDevices, Stale, pretend_cuda
from support.pretend_device.runs import draw_as_gpus_do, on_gpu, on_host
from support.tiny import assert_states_close, backbone, federation, method, result_bytes, run, training
from torch import Tensor

from pflcore.engine import CheckpointFolder, Progress, Result
from pflcore.engine.device import device_name, select_device
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.executors import replay, stacked
from pflcore.groups import Roles, Tensors
from pflcore.method import Batch, ClientView, LocalState, Method, Server, Update
from pflcore.methods.fedavg import FedAvg

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")

QUICK = [("fedavg", "convnet"), ("fedper", "norm_net"), ("fedtp", "tiny_vit")]
CASES = [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.matrix]) for pair in PAIRS]
SHORT = {"local_epochs": 1, "sample_rate": 0.4}


@contextmanager
def all_recorded() -> Iterator[Events]:
    """Every step is recorded at its first occurrence, and each replay is held against a call."""
    with pytest.MonkeyPatch.context() as patch, pretend_cuda() as events:
        patch.setattr(replay, "_PATIENCE", 0)
        patch.setattr(replay, "_WARM_UP", 1)
        patch.setattr(stacked, "Replay", CheckedReplay)
        yield events


@pytest.mark.parametrize(("name", "net"), CASES)
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


def test_workers_can_still_be_forked() -> None:
    with pretend_cuda():
        run(method("fedavg"), backbone("convnet"), on_gpu(federation()), executor="stacked")
    assert run(method("fedavg"), backbone("convnet"), executor="pooled").rounds == 2


class Stopped(Exception):
    """Stands for anything that ends a process between two rounds."""


@pytest.mark.parametrize(
    ("name", "net"), [("fedper", "norm_net"), pytest.param("fedtp", "tiny_vit", marks=pytest.mark.matrix)]
)
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


@dataclass(frozen=True, kw_only=True)
class Looked(FedAvg):
    """Its steps depend on where a value is not zero."""

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        state, loss = super().step(local, state, batch)
        chosen = torch.tensor([0, 1])
        return state, loss + 0 * state["model"]["head.bias"][chosen].sum()  # here


@dataclass(frozen=True, kw_only=True)
class AsArrays(FedAvg):
    """Its server computes with NumPy."""

    def update_server(self, server: Server, roles: Roles, updates: list[Update]) -> Server:
        mean = sum(update.returned["head.bias"].numpy() for update in updates)  # here
        return Server({**server.shared, "head.bias": torch.from_numpy(mean)})


COUNT = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Counted(FedAvg):
    """Its loss has a number that changes from call to call, and that a graph keeps."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        return super().loss(local, params, batch) * (1 + 0.01 * next(COUNT))  # here


@dataclass(frozen=True, kw_only=True)
class Halfway(FedAvg):
    """Its server averages into tensors on the host."""

    def update_server(self, server: Server, roles: Roles, updates: list[Update]) -> Server:
        whole = {name: torch.zeros(tensor.shape) for name, tensor in server.shared.items()}
        for update in updates:
            for name, tensor in whole.items():
                tensor.add_(update.returned[name])  # here
        return Server(whole)


FAULTS = [
    (OnTheHost, MixedDevices, "same device, mul"),
    (Uploaded, UserWarning, "steps are not recorded .*a copy from the host"),
    (Looked, UserWarning, "steps are not recorded .*an index on the host"),
    (AsArrays, TypeError, "can't convert cuda:0 device type tensor to numpy"),
    (Counted, Stale, "a graph has .* where a call has"),
    (Halfway, MixedDevices, "same device, add_"),
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


def test_events_are_counted() -> None:
    with pretend_cuda() as events:
        x = torch.ones(4).to("cuda")
        y = (x + 1).view(2, 2).t() @ torch.ones(2, 2, device="cuda")
        y.cpu()
        assert float(y.sum()) == 16.0
    assert events == {"kernels": 4, "uploads": 1, "downloads": 1, "waits": 1}


def test_gradients_agree_with_the_hosts() -> None:
    def slopes(device: str) -> Tensors:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU()).to(device)
        net(torch.linspace(0, 1, 6).view(2, 3).to(device)).square().sum().backward()
        return {name: parameter.grad.cpu() for name, parameter in net.named_parameters() if parameter.grad is not None}

    with pretend_cuda():
        found = slopes("cuda")
    assert_states_close(found, slopes("cpu"))
