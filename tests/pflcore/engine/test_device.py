"""Which GPU a process takes, and what is set for it, with what would reach a GPU replaced."""

from __future__ import annotations

import pytest
import torch

from pflcore.engine.device import select_device


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that became the current one."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return current


@pytest.mark.parametrize(
    ("name", "rank", "device"),
    [("cuda:1", None, "cuda:1"), ("cuda", None, "cuda:0"), ("auto", "2", "cuda:2"), ("cuda", "3", "cuda:3")],
)
def test_the_device_becomes_the_current_one(
    name: str, rank: str | None, device: str, chosen: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert select_device(name) == torch.device(device)
    assert chosen == [torch.device(device)]
