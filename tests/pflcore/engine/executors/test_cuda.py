"""The path for CUDA, on a GPU that is pretended: recorded steps give what single clients give, and wait for nothing."""

from contextlib import contextmanager

import pytest
import torch
from support import cohorts
from support.cohorts import FIRST, PAIRS, assert_close, on_gpu, on_host, trainer, uneven_run
from support.pretend_device import Refused, pretend_cuda
from support.tiers import SIX, few_of
from support.tiny import backbone, continued, federation, method, result_bytes, run, training

from pflcore.engine import device_name, select_device
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.executors import choose_executor, graphs
from pflcore.engine.executors.graphs import Replay, copy_tree
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.errors import UserError
from pflcore.methods.simple import FedAvg

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
SHORT = {"local_epochs": 1, "sample_rate": 0.4}
CONVNET = backbone("convnet")


@contextmanager
def all_recorded():
    """Every step is recorded at its first occurrence."""
    with pytest.MonkeyPatch.context() as patch, pretend_cuda() as events:
        patch.setattr(graphs, "CALLS_BEFORE", 0)
        patch.setattr(graphs, "WARM_UP", 1)
        yield events


@pytest.mark.parametrize("name, net", few_of(PAIRS, [pair for pair in FIRST if pair[0] in SIX]))
def test_recorded_steps_of_stacked_clients_agree_with_single_ones(name, net, monkeypatch):
    with all_recorded() as events:
        actual = on_host(uneven_run(name, net, "stacked", on_gpu, training=SHORT))
    assert events["replays"] > 0
    monkeypatch.setattr(DropoutBits, "draw", cohorts.draw_as_gpus_do)
    expected = uneven_run(name, net, "sequential", training=SHORT)
    assert_close(actual, expected, cohorts.AMPLIFIED.get(name, 1e-6))


def test_a_step_is_one_launch_and_the_host_waits_once_a_round():
    """More steps are as many replays, each with few copies of what it is given, and nothing else."""
    with all_recorded() as events:
        reference, state = trainer("fedavg", "convnet")
        reference.data, clients, seen = on_gpu(reference.data), (0, 2, 4), []
        jobs = [(client, {name: tensor.to("cuda") for name, tensor in state.items()}) for client in clients]
        stacked = Stacked(reference, 8)
        for round_ in (1, 2, 3):
            events.clear()
            list(stacked.train(round_, jobs))
            seen.append(dict(events))
    steps = max(reference.local.steps(1, client) for client in clients)
    assert seen[1] == seen[2] and seen[1]["replays"] == steps
    assert seen[1]["downloads"] == 1 and "waits" not in seen[1] and seen[1]["kernels"] < 60 + 12 * steps


def test_a_gpu_is_found_and_used_and_samples_that_do_not_fit_are_fetched():
    expected = run(method("fedavg"), CONVNET, executor="sequential")
    with pretend_cuda() as events:
        device = select_device("auto")
        assert (device.type, device_name(device)) == ("cuda", "pretend GPU")
        run(method("fedavg"), CONVNET, federation(device="cuda"), training=training(rounds=3))
        assert events["replays"] > 0
        reference, state = trainer()
        reference.data = on_gpu(reference.data)
        assert type(choose_executor("auto", reference, state)) is Stacked
        assert type(choose_executor("sequential", reference, state)) is Sequential
        with pytest.raises(UserError, match="the pooled executor runs on the CPU, the data lies on cuda"):
            choose_executor("pooled", reference, state)
        data = on_gpu(federation())
        object.__setattr__(data, "inputs", federation().inputs)
        assert on_gpu(federation()).resident and not data.resident
        assert_close(on_host(run(method("fedavg"), CONVNET, data, executor="stacked")), expected)


@pytest.mark.parametrize("name, net", few_of([("fedper", "norm_net"), ("fedtp", "tiny_vit")], [("fedper", "norm_net")]))
def test_a_run_that_was_stopped_ends_alike(name, net, tmp_path):
    def create(**changes):
        with pretend_cuda():
            return on_host(uneven_run(name, net, "stacked", on_gpu, training={"rounds": 3, **SHORT}, **changes))

    assert result_bytes(continued(create, tmp_path)) == result_bytes(create())


def grown(state, by):
    """Return a state with an entry that, as momenta, is there after the first step."""
    moved = {"x": state["x"] + by, "before": state["x"].clone()}
    return moved, moved["x"].sum()


def full(width=3, value=0.0):
    return torch.full((width,), float(value), device="cuda")


def test_a_state_is_handed_on_where_it_lies():
    with pretend_cuda() as events:
        replay, by = Replay(torch.device("cuda", 0)), torch.tensor([1.0, 2.0, 4.0], device="cuda")
        for _ in range(3):
            replay(0, grown, {"x": full()}, by)
            replay(0, grown, {"x": full(), "before": full()}, by)
        state, _ = replay(0, grown, {"x": full(value=1.0)}, by)  # by one recording, and on by the other
        copy = copy_tree(state)
        for step in range(2, 5):
            state, total = replay(0, grown, state, by)
            assert state["x"].tolist() == [1 + step, 1 + 2 * step, 1 + 4 * step] and float(total) == 3 + 7 * step
            assert state["before"].tolist() == [step, 2 * step - 1, 4 * step - 3]
        assert copy["x"].tolist() == [2, 3, 5] and len(replay.recordings) == 2
        before = events.copy()
        replay(0, grown, state, by)
        assert events - before == {"replays": 1, "kernels": 2}  # copies of what is added, and of the sum


def test_memory_that_ends_a_recording_is_told_and_recording_goes_on():
    def large(x):
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return x, x.sum()

    with pretend_cuda():
        replay = Replay(torch.device("cuda", 0))
        for _ in range(2):
            replay(0, large, full(2))
        with pytest.raises(torch.OutOfMemoryError):
            replay(0, large, full(2))
        assert replay.enabled and not replay.recordings


class OnTheHost(FedAvg):
    """Its loss has a constant that lies on the host."""

    def loss(self, local, params, batch):
        return super().loss(local, params, batch) + (local.forward(params, batch.inputs) * torch.ones(4)).sum()


class Uploaded(FedAvg):
    """Its loss copies a number to the device."""

    def loss(self, local, params, batch):
        return super().loss(local, params, batch) * torch.tensor(2.0, device=batch.inputs.device)


@pytest.mark.parametrize(("faulty", "says"), [(OnTheHost, "same device, mul"), (Uploaded, "is capturing: .*copy")])
def test_the_pretended_device_finds_what_a_cpu_forgives(faulty, says):
    run(faulty(), backbone("convnet"), executor="sequential")
    with all_recorded(), pytest.raises((UserWarning, Refused), match=says):
        run(faulty(), backbone("convnet"), on_gpu(federation()), executor="stacked")
