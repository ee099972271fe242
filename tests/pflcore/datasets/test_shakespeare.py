"""Shakespeare and other texts of roles: plays, lists of speeches and LEAF's shards, whole and damaged."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import string
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.editions import AEGEON, BERTRAM, COUNTESS, DUKE, OLD, create, texts, windows
from support.official import failure, unreachable, write_zip

from pflcore.data.preparation import preparing
from pflcore.data.samples import Samples
from pflcore.datasets import shakespeare
from pflcore.datasets._speeches import read_plays, read_speakers
from pflcore.datasets._text import encode_text, read_text
from pflcore.errors import UserError

ZIP = "1994-01-100.zip"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "shakespeare").mkdir(parents=True)
    return tmp_path / "data" / "shakespeare"


# --- the complete works --------------------------------------------------------------------------------------------


def test_the_roles_of_the_edition_of_1994() -> None:
    roles = {name: [re.sub("  +", " ", line) for line in lines] for name, lines in read_plays(OLD, "here").items()}
    lafeu = roles.pop("ALLS_WELL__THAT_ENDS_LAFEU")
    assert len(lafeu) == 2 and roles == {
        "ALLS_WELL__THAT_ENDS_COUNTESS": COUNTESS,
        "ALLS_WELL__THAT_ENDS_BERTRAM": BERTRAM,
        "THE_COMEDY_OF_ERRORS_AEGEON": AEGEON,
        "THE_COMEDY_OF_ERRORS_DUKE": DUKE,
    }


@pytest.mark.parametrize("lines", range(2, 8))
def test_a_text_without_sonnets_begins_with_its_first_play(lines: int) -> None:
    space = "\n" * lines
    text = f"\nby nobody\nTHE PLAY{space}by William Shakespeare\n\n  ONE. a\n    b\n\n  TWO. c\n    d"
    assert read_plays(text, "here") == {"THE_PLAY_ONE": ["a", "b"], "THE_PLAY_TWO": ["c", "d"]}


@pytest.mark.parametrize("name", [ZIP, "100.txt"])
def test_samples_are_all_windows_of_what_a_role_says(folder: Path, name: str) -> None:
    assert not create().found(folder) and "get it from https://" in failure(create(), folder)
    if name == ZIP:
        write_zip(folder / ZIP, {"100.txt": OLD.replace("\n", "\r\n"), "picture.gif": "x"})
    else:
        (folder / name).write_bytes(b"\xef\xbb\xbf" + OLD.encode())
    assert create().found(folder)
    samples = create(chunk_len=5).load(folder)
    assert samples.source == (f"{ZIP}/100.txt" if name == ZIP else name)
    assert samples.class_names == tuple(string.printable) and samples.shape == (5,)
    names = samples.attributes["role"].names
    # In the order of the text; LAFEU has two lines, and the last line of the DUKE is empty.
    assert names == ("ALLS_WELL__THAT_ENDS_COUNTESS", "ALLS_WELL__THAT_ENDS_BERTRAM", "THE_COMEDY_OF_ERRORS_AEGEON")
    for role, lines in zip(names, (COUNTESS, BERTRAM, AEGEON), strict=True):
        assert texts(samples, role, train=True) == windows(" ".join(lines[:-1]), 5)
        assert texts(samples, role, train=False) == windows(lines[-1], 5)
    assert texts(samples) == [text for role in names for text in texts(samples, role)]
    np.testing.assert_array_equal(samples.labels, samples.inputs[:, -1])


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"../../evil.txt": "x", "100.txt": OLD}, "'../../evil.txt' points outside"),
        ({"a.gif": "x"}, "holds 0 text files"),
        ({"a.txt": "x", "b.TXT": "x"}, "holds 2 text files"),
        ({"a.txt": b"\x80\x04"}, "not UTF-8 text (byte 0)"),
        ({"a.txt": b"\0" * 99}, "99 of 99 characters, most often '\\x00',"),
        ({"a.txt": b""}, "no plays"),
        ({"a.txt": OLD.split("BERTRAM. And")[0]}, "no plays"),
        ({"a.txt": OLD.split("  COUNTESS. Be thou")[0]}, "none of 1 roles has training and test text of more than 80"),
    ],
)
def test_other_archives(folder: Path, members: dict[str, str | bytes], problem: str) -> None:
    path = write_zip(folder / ZIP, members)
    message = failure(create(), folder)
    assert message.startswith(str(path)) and problem in message
    path.write_bytes(path.read_bytes()[:-40])
    assert failure(create(), folder).startswith(f"{path}: cannot be read (")


def test_characters_without_a_counterpart() -> None:
    text = "\ufeff“Naïve” – café…\u200b\u2028¶".encode() + b"a" * 1000
    assert read_text(text, "here") == '"Naive" - cafe... ' + "a" * 1000
    with pytest.raises(UserError, match=r"^here: 13 of 16 characters, most often 'ь'"):
        read_text("Быть или не быть".encode(), "here")
    assert encode_text(string.printable).tolist() == list(range(100))
    assert encode_text("a\x00é\ud800😀 ").tolist() == [10, 255, 255, 255, 255, string.printable.index(" ")]


def test_large_texts_are_mapped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zip(folder / ZIP, {"100.txt": OLD})
    whole = create(chunk_len=5).load(folder)
    monkeypatch.setattr("pflcore.data.preparation.memory_limit", lambda: 99)
    with preparing(lambda *_: None, tmp_path / "scratch"):
        mapped = create(chunk_len=5).load(folder)
    assert isinstance(mapped.inputs, np.memmap)
    np.testing.assert_array_equal(mapped.inputs, whole.inputs)


# --- what all sources share ----------------------------------------------------------------------------------------


def load(said: dict[str, list[str]], **options: Any) -> Samples:
    samples: Samples = create(**options).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    return samples


@pytest.mark.parametrize(("lines", "test"), [(3, 1), (9, 1), (10, 1), (11, 2), (20, 3), (21, 4), (100, 19)])
def test_the_last_lines_test(lines: int, test: int) -> None:
    assert test == max(1, int((1 - 0.8) * lines))  # the released arithmetic
    said = [f"line {number:03}" for number in range(lines)]
    samples = load({"a": said}, chunk_len=7)
    assert texts(samples, train=True) == windows(" ".join(said[:-test]), 7)
    assert texts(samples, train=False) == windows(" ".join(said[-test:]), 7)


def test_roles_with_too_little_text_are_dropped() -> None:
    said = {
        "short test": ["0123456789", "0123456789", "01234"],
        "short training": ["0", "1", "0123456789"],
        "few lines": ["0123456789", "0123456789"],
        "kept": ["012", "345", "012345"],
    }
    samples = load(said, chunk_len=5)
    assert samples.attributes["role"].names == ("kept",) and texts(samples) == ["012 34", "12 345", "012345"]
    assert load(said, chunk_len=5, min_lines=2).attributes["role"].names == ("few lines", "kept")
    half = load(said, chunk_len=5, train_share=0.3)
    assert half.attributes["role"].names == ("short test",)
    assert texts(half, train=True) == windows("0123456789", 5)
    with pytest.raises(UserError, match="none of 4 roles has 5 lines"):
        load(said, min_lines=5)


def test_a_share_of_the_roles_is_drawn() -> None:
    said = {f"role {number}": [f"{number:06}"] * 3 for number in range(40)}
    everyone, some = load(said, chunk_len=5), load(said, chunk_len=5, role_share=0.62)
    kept = some.attributes["role"].names
    assert len(kept) == 24 and list(kept) == [name for name in said if name in kept]  # int(24.8)
    assert kept != load(said, chunk_len=5, role_share=0.62, role_seed=1).attributes["role"].names
    for name in kept:
        assert texts(some, name) == texts(everyone, name) != []
    assert len(load(said, chunk_len=5, role_share=0.001).attributes["role"].names) == 1


@pytest.mark.parametrize(
    "options",
    [
        *({"file": f} for f in ("", ".", "..", "../input.txt", "a/b.txt", "a\\b.txt", "/etc/passwd", "a\nb", "a\0b")),
        *({"chunk_len": 81, "source": "leaf"}, {"chunk_len": 0}, {"train_share": 1.0}, {"role_share": 0.0}),
    ],
)
def test_options_have_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"^shakespeare\.{next(iter(options))} = "):
        create(**options)


# --- speeches ------------------------------------------------------------------------------------------------------

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


def test_speeches(folder: Path) -> None:
    roles = read_speakers(SPEECHES, "here")
    assert list(roles) == ["First Citizen", "All", "MENENIUS"] and roles["MENENIUS"] == []
    assert roles["First Citizen"][1:] == ["You are all resolved: rather to die", "than to famish?", "First, you know"]
    (folder / "mine.txt").write_bytes(SPEECHES.replace("\n", "\r\n").encode())
    dataset = create(source="speakers", file="mine.txt", chunk_len=14)
    assert dataset.found(folder) and not create(source="speakers").found(folder) and not create().found(folder)
    samples = dataset.load(folder)
    assert samples.attributes["role"].names == ("First Citizen",) and samples.source == "mine.txt"
    assert texts(samples, train=False) == ["First, you know"]
    assert texts(samples, train=True)[-1] == "re than to famish?"[-15:]


@pytest.mark.parametrize("line", ["no colon here, " + "x" * 99, ":", "A: b"])
def test_a_speech_without_a_speaker(folder: Path, line: str) -> None:
    (folder / "mine.txt").write_text(f"ONE:\ntext\n\n{line}\ntext\n")
    message = failure(create(source="speakers", file="mine.txt"), folder)
    assert message.startswith(f"{folder}/mine.txt: line 4: ") and repr(line[:40]) in message


def test_tiny_shakespeare_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, known_hash: str, fname: str, path: Path, **_: Any) -> None:
        calls.append((url, known_hash))
        (path / fname).write_text(SPEECHES)

    calls: list[tuple[str, str]] = []
    digest = hashlib.sha256(SPEECHES.encode()).hexdigest()
    monkeypatch.setattr(shakespeare, "TINY", dataclasses.replace(shakespeare.TINY, digest=digest))
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    dataset = create(source="speakers", chunk_len=3)
    assert texts(dataset.load(tmp_path / "raw")) == texts(dataset.load(tmp_path / "raw")) != []
    assert calls == [(shakespeare.TINY.url, f"sha256:{digest}")]


def test_tiny_shakespeare_where_it_is() -> None:
    path = Path(os.environ.get("PFL_DATA", "/nonexistent"), "shakespeare", "input.txt")
    if not path.is_file():
        pytest.skip("needs $PFL_DATA/shakespeare/input.txt")
    # Read by other means: paragraphs, strings and loops.
    said: dict[str, str] = {}
    for paragraph in re.split("\n\n+", path.read_text(encoding="utf-8").strip("\n")):
        name, _, speech = paragraph.partition(":\n")
        said[name.removesuffix(":")] = said.get(name.removesuffix(":"), "") + (speech + "\n" if speech else "")
    samples, counts = create(source="speakers", chunk_len=80).load(path.parent), {}
    for name, speech in said.items():
        lines = re.sub("   *", " ", speech).split("\n")[:-1]
        test = max(1, int((1 - 0.8) * len(lines)))
        parts = " ".join(lines[: len(lines) - test]), " ".join(lines[len(lines) - test :])
        if len(lines) > 2 and all(len(part) > 80 for part in parts):
            counts[name] = [len(part) - 80 for part in parts]
            if len(counts) % 40 == 1:
                assert texts(samples, name, train=True) == windows(parts[0], 80)
    assert samples.attributes["role"].names == tuple(counts) and len(samples) == sum(map(sum, counts.values()))


# --- LEAF ----------------------------------------------------------------------------------------------------------


def spoken(user: str, count: int) -> str:
    """So many samples' worth of text that is different for each user."""
    rng = np.random.default_rng(list(user.encode()))
    return "".join(string.printable[code] for code in rng.integers(0, 100, count + 80))


def shard(users: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """A shard as LEAF writes it; of each user the samples from the first to before the second number."""
    data: dict[str, Any] = {"deleted": {"x": [], "y": []}}  # LEAF leaves them in
    for user, (start, stop) in users.items():
        text, rows = spoken(user, stop), range(start, stop)
        data[user] = {"x": [text[row : row + 80] for row in rows], "y": [text[row + 80] for row in rows]}
    counts = [stop - start for start, stop in users.values()]
    return {"users": list(users), "num_samples": counts, "user_data": data, "hierarchies": ["A PLAY"] * 9}


B = shard({"b": (0, 7)})
SHARDS = {
    "train/1.json": B,
    "train/0.json": shard({"a": (0, 5), "only trains": (0, 4)}),
    "test/1.json": shard({"only tests": (0, 3), "a": (84, 90)}),
    "test/0.json": shard({"b": (86, 87)}),
}


def write_shards(folder: Path, **changes: Any) -> None:
    for name, content in {**SHARDS, **changes}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def leaf_windows(user: str, start: int, stop: int, length: int) -> list[str]:
    return [spoken(user, stop)[row + 80 - length : row + 81] for row in range(start, stop)]


@pytest.mark.parametrize("length", [80, 79, 5, 1])
def test_shards(folder: Path, length: int) -> None:
    write_shards(folder)
    dataset = create(source="leaf", chunk_len=length)
    assert dataset.found(folder) and not create().found(folder)
    samples = dataset.load(folder)
    assert samples.attributes["role"].names == ("a", "b") and samples.shape == (length,)
    assert texts(samples, "a", train=True) == leaf_windows("a", 0, 5, length)
    assert texts(samples, "a", train=False) == leaf_windows("a", 84, 90, length)
    assert texts(samples, "b") == leaf_windows("b", 0, 7, length) + leaf_windows("b", 86, 87, length)
    assert samples.source == "LEAF train/*.json and test/*.json"
    drawn = create(source="leaf", chunk_len=length, role_share=0.5, role_seed=4).load(folder)
    assert drawn.attributes["role"].names == ("b",)


def changed(**user: Any) -> dict[str, Any]:
    return B | {"user_data": {"b": B["user_data"]["b"] | user}}


X = ["x" * 80] * 7


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((data, "cannot be read (") for data in (b"", b'{"users": ["b"', b'"\x80"', b"[" * 100_000, b"1" * 5000)),
        (None, "cannot be read ("),
        ({"users": ["b"]}, "has no num_samples"),
        (B | {"users": ["b", "c"]}, "cannot be read ("),
        (B | {"num_samples": [8]}, "user 'b' must have 8 texts"),
        (B | {"user_data": {}}, "has no b"),
        (changed(x=[*X[1:], "y" * 81]), "the texts of user 'b' must have 80 characters"),
        (changed(x=[7, *X[1:]]), "cannot be read ("),
        (changed(y=["a", "ä", *"defgh"]), "user 'b' says more than the 100 printable ASCII"),
        (B | {"users": ["b", "b"], "num_samples": [7, 7]}, "user 'b' is there already"),
    ],
)
def test_damaged_shards(folder: Path, content: Any, problem: str) -> None:
    write_shards(folder, **{"train/1.json": content})
    message = failure(create(source="leaf"), folder)
    assert message.startswith(f"{folder}/train/1.json: ") and problem in message


def test_shards_that_do_not_make_a_set(folder: Path) -> None:
    write_shards(folder, **dict.fromkeys(SHARDS, shard({})))
    assert "hold no users" in failure(create(source="leaf"), folder)
    write_shards(folder, **{"test/0.json": shard({}), "test/1.json": shard({"c": (0, 5)})})
    assert "none of 4 roles has training and test text" in failure(create(source="leaf"), folder)
    for path in (folder / "test").iterdir():
        path.unlink()
    assert f"{folder}: no train/*.json and test/*.json" in failure(create(source="leaf"), folder)
