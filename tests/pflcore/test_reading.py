"""Files that somebody else may have made: what is no plain file, too large or unreadable is one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pflcore.errors import UserError
from pflcore.reading import check_plain, read_file


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
