"""A node's checkpoints in the remote: the newest two, which another node takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pflcore.engine.checkpoint import Checkpoint, read, write
from pipeline.dvc.remote import Remote
from pipeline.running.cluster import node
from pipeline.running.cluster.node import _Mirror

KEY, RUN, FOLDER = "0" * 64, "fedper-01234567", "fedper-01234567-89abcdef"
PATIENCE = 60.0


def wait_for(found: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def checkpoint(folder: Path, round_: int) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return write(folder, Checkpoint("me", "", round_, {"server/shared/a": torch.tensor(round_)})).name


def test_checkpoints_travel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node, "MIRROR_EVERY", 0.01)
    remote = Remote({"url": str(tmp_path / "remote")})
    here, other = tmp_path / "here" / FOLDER, tmp_path / "other" / FOLDER

    def there() -> set[str]:
        return {name.partition("/")[2] for name in remote.checkpoints(KEY)}

    with _Mirror(remote, KEY, here.parent, RUN):
        first = checkpoint(here, 1)
        wait_for(lambda: there() == {first})
        second, third = checkpoint(here, 2), checkpoint(here, 3)
        wait_for(lambda: there() == {second, third})

    # Another node takes them, goes on, and drops what the first one left.
    mirror = _Mirror(remote, KEY, other.parent, RUN)
    mirror.fetch()
    assert {path.name for path in other.iterdir()} == {second, third}
    found = read(other / third, lambda tensors: "", pytest.fail, run="me")
    assert found and found.round == 3
    with mirror:
        fourth = checkpoint(other, 4)
        wait_for(lambda: there() == {third, fourth})
