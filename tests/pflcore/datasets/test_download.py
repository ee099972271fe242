"""Downloads over HTTP from this machine: broken off, gone on with, of a wrong hash, and by two processes."""

import multiprocessing

import pytest
from support.breaking_host import CONTENT
from support.breaking_host import host as host

from pflcore.errors import UserError


def test_a_broken_transfer_goes_on_where_it_broke_off_if_the_server_can(host, tmp_path):
    for ranges in (True, False):
        host.limits, host.ranges, host.requested = [1_000_000, 2_000_000], ranges, []
        path = host.source().obtain(tmp_path / f"{ranges}")
        assert path.read_bytes() == CONTENT and [path.name for path in path.parent.iterdir()] == ["real.zip"]
        assert len(host.requested) == 3 and (not ranges or host.requested == [None, "bytes=1000000-", "bytes=3000000-"])
    # What has come stays for the next call.
    host.limits, host.ranges, host.requested, part = [4_000_000, *[0] * 6], True, [], tmp_path / "net" / "real.zip.part"
    with pytest.raises(UserError, match=r"\(ConnectionError\); try again, which goes on at the end of real.zip.part, "):
        host.source().obtain(tmp_path / "net")
    assert part.stat().st_size == 4_000_000
    host.limits, host.requested = [], []
    assert host.source().obtain(tmp_path / "net").read_bytes() == CONTENT and host.requested == ["bytes=4000000-"]
    (tmp_path / "real.zip.part").write_bytes(CONTENT)  # complete, but for its name
    assert host.source().obtain(tmp_path).read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing_behind_and_a_busy_host_is_asked_again(host, tmp_path):
    for content in (None, b"of another file"):
        if content:
            (tmp_path / "real.zip.part").write_bytes(content)
        with pytest.raises(UserError, match="what it sent has a wrong hash"):
            source = host.source() if content else host.source("0" * 64)
            source.obtain(tmp_path if content else tmp_path / "net")
        assert not list(tmp_path.iterdir())
    host.refuse, host.requested = 3, []
    assert host.source().obtain(tmp_path).read_bytes() == CONTENT and len(host.requested) == 4
    host.refuse = 99
    (tmp_path / "real.zip").unlink()
    with pytest.raises(UserError, match=r"could not be downloaded \(HTTPError\); put real.zip into that folder$"):
        host.source().obtain(tmp_path)


def test_two_processes_fetch_one_file_once(host, tmp_path):
    host.delay = 0.5  # in which the other one would ask, too
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=host.source().obtain, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0] and len(host.requested) == 1
