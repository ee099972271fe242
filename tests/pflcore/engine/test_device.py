"""Which GPU a process takes, and what is set for it, with what would reach a GPU replaced."""

from __future__ import annotations

import pytest
import torch
from support.tiny import backbone, method, run

from pflcore.engine.device import select_device


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that became the current one."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return current


@pytest.mark.parametrize(("name", "device"), [("cuda:1", "cuda:1"), ("cuda", "cuda:0"), ("auto", "cuda:0")])
def test_the_device_becomes_the_current_one(name: str, device: str, chosen: list[torch.device]) -> None:
    assert select_device(name) == torch.device(device)
    assert chosen == [torch.device(device)]


def test_memory_that_is_written_anyway_is_not_filled_first(chosen: list[torch.device]) -> None:
    select_device("cuda")
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_a_run_on_the_cpu_leaves_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("CUDA is started")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", started)
    monkeypatch.setattr(torch.cuda, "_lazy_init", started)
    before = torch.get_rng_state()
    run(method("fedavg"), backbone("convnet"))
    assert torch.equal(torch.get_rng_state(), before)
