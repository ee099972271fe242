"""A node's checkpoints in the remote: each is there after what it needs, and what nobody needs any more is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pflcore.engine.checkpoint import read, write
from pflcore.engine.pieces import Layer, write_hashed
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


def piece(folder: Path, client: int) -> str:
    return write_hashed(folder, "piece", {f"personal/{client}/a": torch.tensor(client)}).name


def checkpoint(folder: Path, round_: int, *pieces: str) -> str:
    layers = {"personal": tuple(Layer(frozenset(), (name,)) for name in pieces)}
    return write(folder, "me", round_, {}, layers).name


def test_checkpoints_travel_with_what_they_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node, "MIRROR_EVERY", 0.01)
    remote = Remote({"url": str(tmp_path / "remote")})
    given: list[str] = []
    give = remote.give_checkpoint

    def noted(key: str, name: str, path: Path) -> None:
        give(key, name, path)
        given.append(name.partition("/")[2])

    monkeypatch.setattr(remote, "give_checkpoint", noted)
    here = tmp_path / "here" / FOLDER
    here.mkdir(parents=True)
    large, one, two, three = (piece(here, client) for client in range(4))

    def there() -> set[str]:
        return {name.partition("/")[2] for name in remote.checkpoints(KEY)}

    with _Mirror(remote, KEY, here.parent, RUN):
        first = checkpoint(here, 1, large, one)
        wait_for(lambda: first in given)
        second = checkpoint(here, 2, large, two)
        wait_for(lambda: second in given)
        third = checkpoint(here, 3, large, three)
        expected = {large, two, three, second, third}
        wait_for(lambda: there() == expected)
    assert given == [large, one, first, two, second, three, third], "what is shared once, and before what needs it"

    # Another node takes them, goes on, and drops what the first one left.
    other = tmp_path / "other" / FOLDER
    mirror = _Mirror(remote, KEY, other.parent, RUN)
    mirror.fetch()
    assert {path.name for path in other.iterdir()} == expected
    reason, found = read(other / third, "me", lambda tensors: "")
    assert not reason and found and set(found.tensors) == {"personal/0/a", "personal/3/a"}
    with mirror:
        fourth = checkpoint(other, 4, large)
        wait_for(lambda: there() == {large, three, third, fourth})
    assert given[-1] == fourth and given.count(large) == 1


def test_a_checkpoint_that_cannot_be_read_travels_as_it_is(tmp_path: Path) -> None:
    here = tmp_path / FOLDER
    here.mkdir()
    path = here / f"round-000001-{16 * '0'}.safetensors"
    path.write_bytes(b"damaged")
    mirror = _Mirror(Remote({"url": str(tmp_path / "remote")}), KEY, tmp_path, RUN)
    assert mirror._needs(f"{FOLDER}/{path.name}") == []
    assert mirror._needs(f"{FOLDER}/round-000002-{16 * '0'}.safetensors") == []
