"""Files that are written whole, and files that somebody else may have made."""

import errno
import os

import pytest
from support.mistakes import line_of

from pflcore.files import atomic_path, read_file, write_text


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, synced = tmp_path / "made" / "text.txt", []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((*os.fstat(file)[1:7:5], path.exists())))
    write_text(path, "whole\n")
    assert path.read_text() == "whole\n" and synced == [(path.stat().st_ino, 6, False)]
    with pytest.raises(KeyError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == "whole\n" and list(path.parent.iterdir()) == [path]


def test_leftovers_go_with_the_process_that_left_them(tmp_path):
    path = tmp_path / "te[x]t.txt"  # which is not a pattern
    dead, strange, alive = (tmp_path / f".te[x]t.txt.{process}.part" for process in (2**22 + 1, "x", os.getppid()))
    for leftover in (dead, strange, alive):
        leftover.touch()
    write_text(path, "")
    assert set(tmp_path.iterdir()) == {path, alive}


def test_an_error_of_the_system_says_which_file(tmp_path):
    path = tmp_path / "text.txt"
    for error in (OSError(errno.ENOSPC, "full"), RuntimeError("cannot write (os error 28)")):
        with pytest.raises(OSError, match="text") as info, atomic_path(path):
            raise error
        assert (info.value.errno, info.value.filename) == (errno.ENOSPC, str(path))
        assert info.value.strerror == "No space left on device" and not path.exists()
    for other in (OSError("no number"), OSError(errno.EACCES, "no", "other.txt"), ValueError("no")):
        with pytest.raises(type(other)) as info, atomic_path(path):
            raise other
        assert info.value is other


def test_no_more_is_read_than_there_is_use_for(tmp_path):
    path, link, pipe = tmp_path / "a", tmp_path / "link", tmp_path / "pipe"
    path.write_bytes(bytes(12345))
    link.symlink_to(path)
    os.mkfifo(pipe)
    assert read_file(path, 12345) == read_file(link, 12346) == bytes(12345)
    for other, words in (
        (path, "12,345 bytes are more than such a file has (1,000); move it away"),
        *((other, "no plain file, but a folder, a pipe or a device; move it away") for other in (tmp_path, pipe)),
        (tmp_path / "gone", "cannot be read (No such file or directory)"),
    ):
        assert line_of(read_file, other, 1000) == f"{other}: {words}"
