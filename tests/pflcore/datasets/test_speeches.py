"""Lists of speeches: a text of one's own and Tiny Shakespeare, read and refused."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.editions import create, texts, windows
from support.official import failure, unreachable

from pflcore.datasets import shakespeare
from pflcore.datasets._speeches import read_speakers
from pflcore.datasets._text import encode_text as encode
from pflcore.errors import UserError


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the dataset, in one of all data."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


SPEECHES = """First Citizen:
Before we proceed any further, hear me speak.
You are all resolved: rather to die
than to famish?

All:
Speak, speak.


MENENIUS:

First Citizen:
First, you know
"""


def test_speeches() -> None:
    assert read_speakers(SPEECHES, "here") == {
        "First Citizen": [
            "Before we proceed any further, hear me speak.",
            "You are all resolved: rather to die",
            "than to famish?",
            "First, you know",
        ],
        "All": ["Speak, speak."],
        "MENENIUS": [],
    }


def test_speeches_as_samples(folder: Path) -> None:
    (folder / "mine.txt").write_bytes(SPEECHES.replace("\n", "\r\n").encode())
    dataset = create(source="speakers", file="mine.txt", chunk_len=14)
    assert dataset.found(folder) and not create(source="speakers").found(folder) and not create().found(folder)
    samples = dataset.load(folder)
    assert samples.attributes["role"].names == ("First Citizen",) and samples.source == "mine.txt"
    assert texts(samples, train=False) == ["First, you know"]
    assert texts(samples, train=True)[-1] == "e than to famish?"[-15:]


def test_a_speech_without_a_speaker_is_named(folder: Path) -> None:
    path = folder / "mine.txt"
    dataset = create(source="speakers", file="mine.txt")
    for line, shown in (("no colon here, " + "x" * 99, "no colon here, " + "x" * 25), (":", ":"), ("A: b", "A: b")):
        path.write_text(f"ONE:\ntext\n\n{line}\ntext\n")
        assert failure(dataset, folder) == (
            f"{path}: line 4: expected a speaker's NAME: after a blank line, found {shown!r}"
        )
    path.write_bytes(b"")
    assert failure(dataset, folder) == f"{path}: none of 0 roles has 3 lines or more; use a longer text"


def test_tiny_shakespeare_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "raw"
    calls = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path, **_: Any) -> None:
        calls.append((url, known_hash))
        path.mkdir(exist_ok=True)
        (path / fname).write_text(SPEECHES)

    digest = hashlib.sha256(SPEECHES.encode()).hexdigest()
    monkeypatch.setattr(shakespeare, "TINY", dataclasses.replace(shakespeare.TINY, digest=digest))
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    dataset = create(source="speakers", chunk_len=3)
    assert texts(dataset.load(folder)) == texts(dataset.load(folder)) != []
    assert calls == [(shakespeare.TINY.url, f"sha256:{digest}")]


@pytest.mark.parametrize("file", ["", ".", "..", "../input.txt", "a/b.txt", "a\\b.txt", "/etc/passwd", "a\nb", "a\0b"])
def test_a_file_outside_of_the_folder_is_refused(file: str) -> None:
    with pytest.raises(UserError) as error:
        create(source="speakers", file=file)
    assert str(error.value) == f"shakespeare.file = {file!r} must be the name of a file in the dataset's folder"


def test_tiny_shakespeare_where_it_is() -> None:
    folder = Path(os.environ.get("PFL_DATA", ""), "shakespeare")
    if not os.environ.get("PFL_DATA") or not (folder / "input.txt").is_file():
        pytest.skip("needs $PFL_DATA/shakespeare/input.txt")
    text = (folder / "input.txt").read_text(encoding="utf-8")
    assert len(text) == 1_115_394
    roles = read_speakers(text, "here")
    # 7,222 names stand over speeches, 125 of them over nothing.
    assert len(roles) == 309 and sum(map(bool, roles.values())) == 299
    assert sum(map(len, roles.values())) == len([line for line in text.split("\n") if line]) - 7222

    # The same by other means: paragraphs, strings and loops.
    said: dict[str, str] = {}
    for paragraph in re.split("\n\n+", text.strip("\n")):
        name, _, speech = paragraph.partition(":\n")
        said[name.removesuffix(":")] = said.get(name.removesuffix(":"), "") + (speech + "\n" if speech else "")
    for length in (80, 5):
        samples = create(source="speakers", chunk_len=length).load(folder)
        counts = {}
        for name, speech in said.items():
            lines = re.sub("   *", " ", speech).split("\n")[:-1]
            test = max(1, int((1 - 0.8) * len(lines)))
            parts = " ".join(lines[: len(lines) - test]), " ".join(lines[len(lines) - test :])
            if len(lines) > 2 and all(len(part) > length for part in parts):
                counts[name] = [len(part) - length for part in parts]
                if len(counts) % 40 == 1:
                    assert texts(samples, name, train=True) == windows(parts[0], length)
                    assert texts(samples, name, train=False) == windows(parts[1], length)
        attribute = samples.attributes["role"]
        assert attribute.names == tuple(counts)
        found = [
            np.bincount(attribute.values[samples.train == train], minlength=len(counts)) for train in (True, False)
        ]
        assert np.transpose(found).tolist() == list(counts.values())
        assert set(np.unique(samples.inputs)) <= set(encode(text.replace("\n", " ")))
