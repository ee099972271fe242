"""Shakespeare: the complete works, lists of speeches and LEAF's shards as samples of roles, read and refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.editions import AEGEON, BERTRAM, COUNTESS, DUKE, NEW, OLD, create, texts, windows
from support.official import failure, unreachable, write_zip

from pflcore.data.samples import Samples
from pflcore.datasets import shakespeare
from pflcore.datasets._speeches import read_plays, read_speakers
from pflcore.datasets._text import encode, read_text
from pflcore.errors import UserError

# --- shakespeare -----------------------------------------------------------------------------------------------------


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


# --- speeches --------------------------------------------------------------------------------------------------------


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


# --- plays -----------------------------------------------------------------------------------------------------------


def test_the_roles_of_the_edition_of_1994() -> None:
    roles = read_plays(OLD, "here")
    assert list(roles) == [
        "ALLS_WELL__THAT_ENDS_COUNTESS",
        "ALLS_WELL__THAT_ENDS_BERTRAM",
        "ALLS_WELL__THAT_ENDS_LAFEU",
        "THE_COMEDY_OF_ERRORS_AEGEON",
        "THE_COMEDY_OF_ERRORS_DUKE",
    ]
    collapsed = {name: [re.sub("  +", " ", line) for line in lines] for name, lines in roles.items()}
    assert collapsed["ALLS_WELL__THAT_ENDS_COUNTESS"] == COUNTESS
    assert collapsed["ALLS_WELL__THAT_ENDS_BERTRAM"] == BERTRAM
    assert collapsed["THE_COMEDY_OF_ERRORS_AEGEON"] == AEGEON
    assert collapsed["THE_COMEDY_OF_ERRORS_DUKE"] == DUKE


@pytest.mark.parametrize("lines", range(2, 8))
def test_a_text_without_sonnets_begins_with_its_first_play(lines: int) -> None:
    space = "\n" * lines
    text = f"\nby nobody\nTHE PLAY{space}by William Shakespeare\n\n  ONE. a\n    b\n\n  TWO. c\n    d"
    assert read_plays(text, "here") == {"THE_PLAY_ONE": ["a", "b"], "THE_PLAY_TWO": ["c", "d"]}


def test_the_current_edition() -> None:
    assert read_plays(read_text(NEW.encode(), "here"), "here") == {
        "ALL_S_WELL_THAT_ENDS_WELL_COUNTESS": ["In delivering my son from me, I bury a second husband."],
        "ALL_S_WELL_THAT_ENDS_WELL_BERTRAM": [
            "And I in going, madam, weep o'er my father's death anew; \"but I",
            'must" attend--',
            "The best wishes...  be",
        ],
        "ALL_S_WELL_THAT_ENDS_WELL_AEGEON": ["Called here."],
        "A_SECOND_PLAY__OTHERWISE_A": ["Yes."],
        "A_SECOND_PLAY__OTHERWISE_B": ["No."],
    }


def test_characters_without_a_counterpart() -> None:
    assert read_text("\ufeff“Naïve” – café…\u200b\u2028¶".encode() + b"a" * 1000, "here") == (
        '"Naive" - cafe... ' + "a" * 1000
    )
    with pytest.raises(UserError) as error:
        read_text("Быть или не быть".encode(), "here")
    assert str(error.value) == (
        "here: 13 of 16 characters, most often 'ь', are outside of the 100 printable ASCII characters; "
        "use English plain text"
    )
    with pytest.raises(UserError, match=r"^here: not UTF-8 text \(byte 3\); save it as UTF-8$"):
        read_text(b"abc\xff", "here")


def test_numbers_of_characters() -> None:
    assert encode(string.printable).tolist() == list(range(100))
    assert encode("a\x00é\ud800😀 ").tolist() == [10, 255, 255, 255, 255, string.printable.index(" ")]


# --- role texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "test"), [(3, 1), (9, 1), (10, 1), (11, 2), (20, 3), (21, 4), (100, 19)])
def test_the_last_lines_test(lines: int, test: int) -> None:
    assert test == max(1, int((1 - 0.8) * lines))  # the released arithmetic
    said = {"a": [f"line {number:03}" for number in range(lines)]}
    samples = create(chunk_len=7).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert texts(samples, train=True) == windows(" ".join(said["a"][:-test]), 7)
    assert texts(samples, train=False) == windows(" ".join(said["a"][-test:]), 7)


def test_roles_with_too_little_text_are_dropped() -> None:
    said = {
        "short test": ["0123456789", "0123456789", "01234"],
        "short training": ["0", "1", "0123456789"],
        "few lines": ["0123456789", "0123456789"],
        "kept": ["012", "345", "012345"],
    }
    samples = create(chunk_len=5).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert samples.attributes["role"].names == ("kept",)
    assert texts(samples) == ["012 34", "12 345", "012345"]
    more = create(chunk_len=5, min_lines=2).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert more.attributes["role"].names == ("few lines", "kept")
    half = create(chunk_len=5, train_share=0.3).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert half.attributes["role"].names == ("short test",)
    assert texts(half, train=True) == windows("0123456789", 5)


def test_a_share_of_the_roles_is_drawn() -> None:
    said = {f"role {number}": [f"{number:06}"] * 3 for number in range(40)}

    def load(**options: Any) -> Samples:
        return create(chunk_len=5, **options).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]

    everyone, some, others = load(), load(role_share=0.62), load(role_share=0.62, role_seed=1)
    kept = some.attributes["role"].names
    assert len(kept) == 24 and list(kept) == [name for name in said if name in kept]  # int(24.8)
    assert kept != others.attributes["role"].names and kept == load(role_share=0.62).attributes["role"].names
    for name in kept:
        assert texts(some, name) == texts(everyone, name) != []
    assert len(load(role_share=0.001).attributes["role"].names) == 1


# --- leaf ------------------------------------------------------------------------------------------------------------


def spoken(user: str, count: int) -> str:
    """So many samples' worth of text that is different for each user."""
    rng = np.random.default_rng(list(user.encode()))
    return "".join(string.printable[code] for code in rng.integers(0, 100, count + 80))


def shard(users: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """A shard as LEAF writes it; of each user the samples from the first to before the second number."""
    data = {}
    for user, (start, stop) in users.items():
        text = spoken(user, stop)
        rows = range(start, stop)
        data[user] = {"x": [text[row : row + 80] for row in rows], "y": [text[row + 80] for row in rows]}
    return {
        "users": list(users),
        "num_samples": [stop - start for start, stop in users.values()],
        "user_data": {**data, "deleted": {"x": [], "y": []}},  # LEAF leaves them in
        "hierarchies": ["A PLAY"] * 9,
    }


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """A folder with four split shards."""
    folder = tmp_path / "shakespeare"
    put(folder, "train/all_data_1_train_8.json", shard({"b": (0, 7)}))
    put(folder, "train/all_data_0_train_8.json", shard({"a": (0, 5), "only trains": (0, 4)}))
    put(folder, "test/all_data_1_test_8.json", shard({"only tests": (0, 3), "a": (84, 90)}))
    put(folder, "test/all_data_0_test_8.json", shard({"b": (86, 87)}))
    return folder


def leaf_windows(user: str, start: int, stop: int, length: int) -> list[str]:
    return [spoken(user, stop)[row + 80 - length : row + 81] for row in range(start, stop)]


@pytest.mark.parametrize("length", [80, 79, 5, 1])
def test_split_shards(leaf: Path, length: int) -> None:
    dataset = create(source="leaf", chunk_len=length)
    assert dataset.found(leaf) and not create().found(leaf)
    samples = dataset.load(leaf)
    assert samples.attributes["role"].names == ("a", "b") and samples.shape == (length,)
    assert texts(samples, "a", train=True) == leaf_windows("a", 0, 5, length)
    assert texts(samples, "a", train=False) == leaf_windows("a", 84, 90, length)
    assert texts(samples, "b", train=True) == leaf_windows("b", 0, 7, length)
    assert texts(samples, "b", train=False) == leaf_windows("b", 86, 87, length)
    assert samples.source == "LEAF train/*.json and test/*.json"
    np.testing.assert_array_equal(samples.labels, samples.inputs[:, -1])


def test_unsplit_shards(tmp_path: Path) -> None:
    put(tmp_path, "all_data/all_data_0.json", shard({"a": (0, 500), "short": (0, 395), "nothing": (0, 0)}))
    put(tmp_path, "all_data/all_data_1.json", shard({"b": (0, 397)}))
    samples = create(source="leaf").load(tmp_path)
    assert samples.attributes["role"].names == ("a", "b") and samples.source == "LEAF all_data/*.json"
    assert texts(samples, "a", train=True) == leaf_windows("a", 0, 400, 80)
    assert texts(samples, "a", train=False) == leaf_windows("a", 479, 500, 80)
    assert texts(samples, "b", train=False) == leaf_windows("b", 396, 397, 80)  # int(317.6) + 79
    half = create(source="leaf", train_share=0.5).load(tmp_path)
    assert texts(half, "short", train=False) == leaf_windows("short", 197 + 79, 395, 80)


def change(**values: Any) -> Callable[[dict[str, Any]], Any]:
    """Replaces items of a shard."""
    return lambda content: content | values


def change_user(**values: Any) -> Callable[[dict[str, Any]], Any]:
    """Replaces items of user b."""
    return lambda content: content | {"user_data": {"b": content["user_data"]["b"] | values}}


def refused(leaf: Path, damage: Callable[[dict[str, Any]], Any]) -> str:
    """What is said of a damaged shard, but for its path."""
    path = leaf / "train" / "all_data_1_train_8.json"
    put(leaf, "train/all_data_1_train_8.json", damage(json.loads(path.read_text())))
    message = failure(create(source="leaf"), leaf)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


X = ["x" * 80] * 7
LISTS = "'users' and 'num_samples' must be lists of one length"
COUNTS = "user 'b': 'x' and 'y' must be lists of 7 texts"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: [1], "'users' is missing"),
        (lambda _: None, "'users' is missing"),
        (lambda c: {"users": c["users"]}, "'num_samples' is missing"),
        (lambda c: {k: c[k] for k in ("users", "num_samples")}, "'user_data' is missing"),
        (change(users="b"), LISTS),
        (change(users=["b", "c"]), LISTS),
        (change(num_samples=7), LISTS),
        (change(num_samples=[8]), COUNTS.replace("7", "8")),
        (change(num_samples=[[[]]]), COUNTS.replace("7", "a list")),
        (change(users=[3]), "3 in 'users' must be a name"),
        (change(users=[["b"]]), "a list in 'users' must be a name"),
        (change(users=[""]), "'' in 'users' must be a name"),
        (change(users=["\ud800"]), "'\\ud800' in 'users' must be a name"),
        (change(users=["a\nb"]), "'a\\nb' in 'users' must be a name"),
        (change(user_data={}), "'b' is missing"),
        (change(user_data=[]), "'b' is missing"),
        (change(user_data={"b": []}), "user 'b': 'x' is missing"),
        (change(user_data={"b": {"x": []}}), "user 'b': 'y' is missing"),
        (change_user(x=X[1:]), COUNTS),
        (change_user(y="abcdefg"), COUNTS),
    ],
)
def test_damaged_shards(leaf: Path, damage: Callable[[dict[str, Any]], Any], message: str) -> None:
    assert refused(leaf, damage) == f"{message}; use a shard made by LEAF"
