"""Files that are written whole: on the disk before they have their name, and nothing of them where that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pflcore.files import atomic_path, write_text


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "made" / "text.txt", []
    sync = os.fsync

    def noting(file: int) -> None:
        synced.append((os.fstat(file).st_ino, os.fstat(file).st_size, path.exists()))
        sync(file)

    monkeypatch.setattr(os, "fsync", noting)
    write_text(path, "whole\n")
    assert path.read_text() == "whole\n" and synced == [(path.stat().st_ino, 6, False)]


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("before")
    with pytest.raises(KeyError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_leftovers_go_with_the_process_that_left_them(tmp_path: Path) -> None:
    path = tmp_path / "te[x]t.txt"  # which is not a pattern
    dead, strange, alive = (tmp_path / f".te[x]t.txt.{who}.part" for who in (2**22 + 1, "x", os.getppid()))
    for left in (dead, strange, alive):
        left.touch()
    write_text(path, "")
    assert set(tmp_path.iterdir()) == {path, alive}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("cannot write (os error 28)")])
def test_an_error_of_the_system_says_which_file(error: Exception, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    with pytest.raises(OSError, match="text") as found, atomic_path(path):
        raise error
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, str(path))


@pytest.mark.parametrize("error", [OSError("no number"), OSError(errno.EACCES, "no", "other.txt"), ValueError("no")])
def test_other_errors_stay_what_they_are(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as found, atomic_path(tmp_path / "text.txt"):
        raise error
    assert found.value is error
