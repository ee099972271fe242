"""Files that are written whole, and files that somebody else may have made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pflcore.errors import UserError
from pflcore.files import atomic_path, write_text
from pflcore.reading import check_plain, read_file

# --- files -----------------------------------------------------------------------------------------------------------


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


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_file_as_large_as_allowed_is_read(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    path.write_bytes(b"abc")
    link.symlink_to(path)
    assert read_file(path, 3) == read_file(link, 4) == b"abc"
    with pytest.raises(UserError) as error:
        read_file(path, 2)
    assert str(error.value) == f"{path}: 3 bytes are more than such a file has (2); move it away"


def test_why_there_is_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(12345)
    with pytest.raises(UserError) as error:
        read_file(path, 1000, "any image has")
    assert str(error.value) == f"{path}: 12,345 bytes are more than any image has (1,000); move it away"


@pytest.mark.parametrize("what", ["folder", "pipe", "device"])
def test_what_would_never_end_is_not_read(what: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for read in (check_plain, lambda path: read_file(path, 10)):
        with pytest.raises(UserError) as error:
            read(path)
        assert str(error.value) == f"{path}: no plain file, but a folder, a pipe or a device; move it away"


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    for read in (check_plain, lambda path: read_file(path, 10)):
        with pytest.raises(UserError) as error:
            read(path)
        assert str(error.value) == f"{path}: cannot be read (No such file or directory)"
    path.write_bytes(b"abc")
    for raised, told in ((OSError(5, "Input/output error"), "Input/output error"), (OSError("odd"), "odd")):

        def fail(*_: object, raised: OSError = raised) -> bytes:
            raise raised

        with monkeypatch.context() as broken, pytest.raises(UserError) as error:
            broken.setattr(Path, "read_bytes", fail)
            read_file(path, 10)
        assert str(error.value) == f"{path}: cannot be read ({told})"
        with monkeypatch.context() as broken, pytest.raises(UserError) as error:
            broken.setattr(Path, "stat", fail)
            check_plain(path)
        assert str(error.value) == f"{path}: cannot be read ({told})"
