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


def test_a_broken_transfer_goes_on_where_it_broke_off_if_the_server_can(host: Host, tmp_path: Path) -> None:
    for ranges in (True, False):
        host.most, host.ranges, host.asked = [1_000_000, 2_000_000], ranges, []
        path = host.source().obtain(tmp_path / f"{ranges}")
        assert path.read_bytes() == CONTENT and [path.name for path in path.parent.iterdir()] == ["real.zip"]
        assert len(host.asked) == 3 and (not ranges or host.asked == [None, "bytes=1000000-", "bytes=3000000-"])
    # What has come stays for the next call.
    host.most, host.ranges, host.asked, part = [4_000_000, *[0] * 6], True, [], tmp_path / "net" / "real.zip.part"
    with pytest.raises(
        UserError, match=r"\(ConnectionError\); try again, which goes on at the end of real.zip.part, or"
    ):
        host.source().obtain(tmp_path / "net")
    assert part.stat().st_size == 4_000_000
    host.most, host.asked = [], []
    assert host.source().obtain(tmp_path / "net").read_bytes() == CONTENT and host.asked == ["bytes=4000000-"]
    (tmp_path / "real.zip.part").write_bytes(CONTENT)  # complete, but for its name
    assert host.source().obtain(tmp_path).read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing_behind_and_a_busy_host_is_asked_again(host: Host, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="what it sent has a wrong hash"):
        host.source("0" * 64).obtain(tmp_path / "net")
    assert not list(tmp_path.iterdir())
    (tmp_path / "real.zip.part").write_bytes(b"of another file")
    with pytest.raises(UserError, match="what it sent has a wrong hash"):
        host.source().obtain(tmp_path)
    host.refuse, host.asked = 3, []
    assert host.source().obtain(tmp_path).read_bytes() == CONTENT and len(host.asked) == 4
    host.refuse = 99
    (tmp_path / "real.zip").unlink()
    with pytest.raises(UserError, match=r"could not be downloaded \(HTTPError\); put real.zip into that folder$"):
        host.source().obtain(tmp_path)


def test_what_another_process_put_into_a_new_folder_stays(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(url: str, part: Path) -> None:
        (part.parent / "other.zip").write_bytes(b"x")
        raise ConnectionError

    monkeypatch.setattr(_download, "_fetch", fetch)
    with pytest.raises(UserError, match=r"could not be downloaded \(ConnectionError\); put real.zip into that folder$"):
        host.source().obtain(tmp_path / "net")
    assert [path.name for path in (tmp_path / "net").iterdir()] == ["other.zip"]


def test_two_processes_fetch_one_file_once(host: Host, tmp_path: Path) -> None:
    host.delay = 0.5  # in which the other one would ask, too
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=host.source().obtain, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0] and len(host.asked) == 1
