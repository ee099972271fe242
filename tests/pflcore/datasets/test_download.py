"""Downloads over HTTP from this machine: broken off, gone on with, and of a wrong hash."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.breaking_host import CONTENT, Host, serving

from pflcore.datasets import _download
from pflcore.errors import UserError


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(_download, "PAUSE_SECONDS", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as state:
        yield state


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_transfer_goes_on_where_it_broke_off_if_the_server_can(
    host: Host, tmp_path: Path, ranges: bool
) -> None:
    host.most, host.ranges = [1_000_000, 2_000_000], ranges
    assert host.source().obtain(tmp_path / "net") == tmp_path / "net" / "real.zip"
    assert (tmp_path / "net" / "real.zip").read_bytes() == CONTENT and len(host.asked) == 3
    if ranges:
        assert host.asked == [None, "bytes=1000000-", "bytes=3000000-"] and host.sent == len(CONTENT)
    assert [path.name for path in (tmp_path / "net").iterdir()] == ["real.zip"]


def test_what_has_come_stays_for_the_next_call(host: Host, tmp_path: Path) -> None:
    host.most = [4_000_000, 0, 0, 0, 0, 0, 0]
    with pytest.raises(UserError) as error:
        host.source().obtain(tmp_path / "net")
    assert str(error.value) == (
        f"{tmp_path / 'net'}: no data here, and {host.source().url} could not be downloaded (ConnectionError); "
        "try again, which goes on at the end of real.zip.part, or put real.zip into that folder"
    )
    assert [(path.name, path.stat().st_size) for path in (tmp_path / "net").iterdir()] == [("real.zip.part", 4_000_000)]
    host.most, host.asked = [], []
    host.source().obtain(tmp_path / "net")
    assert host.asked == ["bytes=4000000-"] and host.sent == len(CONTENT)
    assert (tmp_path / "net" / "real.zip").read_bytes() == CONTENT
    (tmp_path / "real.zip.part").write_bytes(CONTENT)  # complete, but for its name
    host.source().obtain(tmp_path)
    assert host.sent == len(CONTENT) and (tmp_path / "real.zip").read_bytes() == CONTENT


@pytest.mark.parametrize("begun", [b"", b"of another file", bytes(len(CONTENT))])
def test_a_wrong_hash_leaves_nothing_behind(host: Host, tmp_path: Path, begun: bytes) -> None:
    folder = tmp_path / "net"
    if begun:
        folder.mkdir()
        (folder / "real.zip.part").write_bytes(begun)
    source = host.source() if begun else host.source("0" * 64)
    with pytest.raises(UserError, match="what it sent has a wrong hash"):
        source.obtain(folder)
    assert folder.is_dir() == bool(begun) and not list(tmp_path.rglob("real*"))
    if begun:  # and so the next call is not misled
        source.obtain(folder)


def test_a_host_that_is_busy_is_asked_again(host: Host, tmp_path: Path) -> None:
    host.refuse = 3
    host.source().obtain(tmp_path)
    assert len(host.asked) == 4
    host.refuse = 99
    (tmp_path / "real.zip").unlink()
    with pytest.raises(UserError, match=r"could not be downloaded \(HTTPError\); put real.zip into that folder$"):
        host.source().obtain(tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_processes_fetch_one_file_once(host: Host, tmp_path: Path) -> None:
    host.delay = 1.0  # in which the other one would ask, too
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=host.source().obtain, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(host.asked) == 1 and [path.name for path in tmp_path.iterdir()] == ["real.zip"]
