"""Shakespeare: the complete works as samples, archives whole and damaged, and what all sources share."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pooch
import pytest
from support.editions import AEGEON, BERTRAM, COUNTESS, OLD, create, texts, windows
from support.official import failure, unreachable, write_zip

from pflcore.data.preparation import preparing
from pflcore.datasets import shakespeare

ZIP = "1994-01-100.zip"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with the archive of 1994 in miniature."""
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    write_zip(folder / ZIP, {"100.txt": OLD.replace("\n", "\r\n")})
    return folder


def test_samples_are_all_windows_of_what_a_role_says(old: Path) -> None:
    samples = create(chunk_len=5).load(old)
    assert samples.source == f"{ZIP}/100.txt" and samples.name == "shakespeare"
    assert samples.class_names == tuple(string.printable) and samples.shape == (5,)
    names = samples.attributes["role"].names
    # In the order of the text; LAFEU has two lines, and the last line of the DUKE is empty.
    assert names == ("ALLS_WELL__THAT_ENDS_COUNTESS", "ALLS_WELL__THAT_ENDS_BERTRAM", "THE_COMEDY_OF_ERRORS_AEGEON")
    for name, lines in zip(names, (COUNTESS, BERTRAM, AEGEON), strict=True):
        assert texts(samples, name, train=True) == windows(" ".join(lines[:-1]), 5)
        assert texts(samples, name, train=False) == windows(lines[-1], 5)
    assert texts(samples) == [text for name in names for text in texts(samples, name)]
    np.testing.assert_array_equal(samples.labels, samples.inputs[:, -1])
    assert samples.inputs.flags.writeable and samples.inputs.dtype == np.uint8
    assert samples.labels[0] == string.printable.index("l") and texts(samples)[0] == "In del"


@pytest.mark.parametrize("name", ["100.txt", "pg100.txt", "100-0.txt"])
def test_the_text_may_be_unpacked(old: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / name).write_bytes(b"\xef\xbb\xbf" + OLD.encode())
    samples, same = create(chunk_len=5).load(folder), create(chunk_len=5).load(old)
    np.testing.assert_array_equal(samples.inputs, same.inputs)
    np.testing.assert_array_equal(samples.train, same.train)
    assert samples.source == name and samples.attributes["role"].names == same.attributes["role"].names


ODD = " are outside of the 100 printable ASCII characters; use English plain text"
NONE = (
    ", neither as indented speeches (edition of 1994) nor as paragraphs under a role's name; use the plain text of "
    "Project Gutenberg's ebook 100"
)
SHORT = " test text of more than 80 characters; use a smaller chunk_len, a larger role_share or a longer text"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.gif": "x"}, "{path}: holds 0 text files, expected one, 100.txt; get it again"),
        ({"a.txt": "x", "b.TXT": "x"}, "{path}: holds 2 text files, expected one, 100.txt; get it again"),
        ({"a.txt": b"\x80\x04"}, "{path}/a.txt: not UTF-8 text (byte 0); save it as UTF-8"),
        ({"a.txt": b"\0" * 99}, "{path}/a.txt: 99 of 99 characters, most often '\\x00'," + ODD),
        ({"a.txt": b""}, "{path}/a.txt: no plays found" + NONE),
        ({"a.txt": OLD.split("BERTRAM. And")[0]}, "{path}/a.txt: no plays found" + NONE),
        ({"a.txt": OLD.split("  COUNTESS. Be thou")[0]}, "{path}/a.txt: none of 1 roles has training and" + SHORT),
    ],
)
def test_other_archives(old: Path, members: dict[str, str | bytes], message: str) -> None:
    path = write_zip(old / ZIP, members)
    assert failure(create(), old) == message.format(path=path)


@pytest.mark.parametrize("there", [True, False])
def test_nothing_to_read(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "shakespeare"
    if there:
        folder.mkdir()
    assert failure(create(), folder) == (
        f"{folder}: no data here; get it from https://www.gutenberg.org/ebooks/100 and put 1994-01-100.zip, or the "
        "plain text as 100.txt or pg100.txt, there"
    )
    assert failure(create(source="leaf"), folder) == (
        f"{folder}: no data here; make LEAF's shakespeare with https://github.com/TalwalkarLab/leaf and put its "
        "train/ and test/, or its all_data/, there"
    )
    assert failure(create(source="speakers", file="mine.txt"), folder) == (
        f"{folder / 'mine.txt'}: no such file; put it there, or name another by the option file"
    )
    assert failure(create(source="speakers"), folder) == (
        f"{folder}: no data here, and {shakespeare.TINY.url} could not be downloaded (OSError); put input.txt into "
        "that folder, or any other text of speeches, and name it by the option file"
    )


def test_large_texts_are_mapped(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = create(chunk_len=5)
    shown: list[tuple[str, int, int]] = []
    monkeypatch.setenv("PFL_MEMORY", "0")
    with preparing(lambda *step: shown.append(step), tmp_path / "scratch"):
        mapped = dataset.load(old)
    assert isinstance(mapped.inputs, np.memmap) and list((tmp_path / "scratch").iterdir()) == []
    np.testing.assert_array_equal(mapped.inputs, dataset.load(old).inputs)
    assert shown[0] == ("cutting text into samples", 0, len(mapped))
    assert shown[-1] == ("cutting text into samples", len(mapped), len(mapped)) and len(shown) == 7
