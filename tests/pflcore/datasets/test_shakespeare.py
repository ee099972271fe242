"""Shakespeare and other texts of roles: plays, lists of speeches and LEAF's shards."""

import json
import string

import numpy as np
import pytest
from support.mistakes import refuses
from support.official import failure, offline, trust, write_files, write_zip

from pflcore.data.preparation import preparing
from pflcore.datasets import DATASETS, _download
from pflcore.datasets.shakespeare import encode_text, read_text

ZIP = "1994-01-100.zip"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    offline(monkeypatch)
    (tmp_path / "data" / "shakespeare").mkdir(parents=True)
    return tmp_path / "data" / "shakespeare"


def create(**options):
    return DATASETS.create("shakespeare", **options)


def texts(samples, role=None, train=None):
    """The samples of a role as words."""
    attribute = samples.attributes["role"]
    rows = np.ones(len(samples), bool) if role is None else attribute.values == attribute.names.index(role)
    rows &= True if train is None else samples.train == train
    return ["".join(string.printable[code] for code in row) for row in samples.inputs[rows]]


def windows(text, length):
    return [text[start : start + length + 1] for start in range(len(text) - length)]


OLD = """The Complete Works of William Shakespeare, by William Shakespeare
THE SONNETS
by William Shakespeare
  O. That thereby beauty's rose might never die,
  AND. So the sonnets would have two roles.
1603

ALLS WELL, THAT ENDS

by William Shakespeare
  BERTRAM, Count of Rousillon
Enter BERTRAM, the COUNTESS OF ROUSILLON, HELENA, and LAFEU, all in black
  COUNTESS. In delivering my son
  BERTRAM. And I in going,   weep anew;
    but I must attend
                         Enter HELENA
  Countess. What hope is there?
  LAFEU. He hath abandon'd his physicians, madam; under whose
  BERTRAM. What is it, my good lord?
  COUNTESS. Be thou blest, Bertram
    In manners, as in shape!            Exit
1599

A PLAY OF ONE
by William Shakespeare
  NOBODY. I speak alone, and so am not counted as a play at all;
1593

THE COMEDY OF ERRORS

by William Shakespeare
AEGEON. Proceed, Solinus,
  And by the doom
DUKE. Merchant of Syracuse;
A hall
ACT II. SCENE 2
The mart
AEGEON. A heavier task
<Exeunt
SCENE 3
DUKE. Again.
End of this Etext of The Complete Works of William Shakespeare
  LICENSE. Not a line of a role.
"""
ALL, ERRORS = "ALLS_WELL__THAT_ENDS_", "THE_COMEDY_OF_ERRORS_"
COUNTESS = ["In delivering my son", "What hope is there?", "Be thou blest, Bertram", "In manners, as in shape! Exit"]
BERTRAM = ["And I in going, weep anew;", "but I must attend", " Enter HELENA", "What is it, my good lord?"]
# What its roles say, by play: some indented directions are speech; LAFEU, with one line, is dropped.
SAID = {f"{ALL}COUNTESS": COUNTESS, f"{ALL}BERTRAM": BERTRAM}
SAID |= {f"{ERRORS}AEGEON": ["Proceed, Solinus,", " And by the doom", "A heavier task"]}
SAID |= {f"{ERRORS}DUKE": ["Merchant of Syracuse;", "A hall", "Again."]}


@pytest.mark.parametrize("name", [ZIP, "100.txt"])
def test_the_complete_works(folder, tmp_path, monkeypatch, name):
    assert not create().available(folder) and "get it from https://" in failure(create(), folder)
    if name == ZIP:
        write_zip(folder / ZIP, {"100.txt": OLD.replace("\n", "\r\n"), "picture.gif": "x"})
    else:
        (folder / name).write_bytes(b"\xef\xbb\xbf" + OLD.encode())
    samples = create(chunk_len=5).load(folder)
    assert create().available(folder) and samples.source == (f"{ZIP}/100.txt" if name == ZIP else name)
    assert samples.class_names == tuple(string.printable) and samples.shape == (5,)
    assert samples.attributes["role"].names == (*SAID,)  # in the order of the text
    for role, lines in SAID.items():
        assert texts(samples, role, train=True) == windows(" ".join(lines[:-1]), 5)
        assert texts(samples, role, train=False) == windows(lines[-1], 5)
    np.testing.assert_array_equal(samples.labels, samples.inputs[:, -1])
    monkeypatch.setattr("pflcore.data.preparation.memory_limit", lambda: 99)
    with preparing(lambda *_: None, tmp_path / "scratch"):
        mapped = create(chunk_len=5).load(folder)
    assert isinstance(mapped.inputs, np.memmap) and np.array_equal(mapped.inputs, samples.inputs)
    for end, problem in (("BERTRAM. And", "no plays"), ("  COUNTESS. Be thou", "none of 1 roles of 3 lines has train")):
        path = write_zip(folder / ZIP, {"a.txt": OLD.split(end)[0]})
        assert failure(create(), folder).startswith(f"{path}/a.txt: {problem}")


def test_characters_without_a_counterpart():
    text = "\ufeff“Naïve” – café…\u200b\u2028¶".encode() + b"a" * 1000
    assert read_text(text, "here") == '"Naive" - cafe... ' + "a" * 1000
    for written, plain in {"é—ø": "e--o", "e\u0301": "e", "œuvre": "oeuvre", "Straße": "Strasse", "Æ": "AE"}.items():
        assert read_text((written * 99).encode(), "here") == plain * 99
    assert encode_text(string.printable).tolist() == list(range(100))
    assert encode_text("a\x00é\ud800😀 ").tolist() == [10, 255, 255, 255, 255, string.printable.index(" ")]


def load(lines, **options):
    return create(**options).from_lines(lines, "here", "test")


def test_which_lines_test_and_which_roles_stay():
    for count, test in ((3, 1), (10, 1), (11, 2), (100, 19)):  # the released arithmetic
        lines = [f"line {number:03}" for number in range(count)]
        samples = load({"a": lines}, chunk_len=7)
        assert texts(samples, train=True) == windows(" ".join(lines[:-test]), 7)
        assert texts(samples, train=False) == windows(" ".join(lines[-test:]), 7)
    lines = {"short test": ["0123456789", "0123456789", "01234"], "short training": ["0", "1", "0123456789"]}
    lines |= {"few lines": ["0123456789", "0123456789"], "enough": ["012", "345", "012345"]}
    assert texts(load(lines, chunk_len=5)) == ["012 34", "12 345", "012345"]
    assert load(lines, chunk_len=5, min_lines=2).attributes["role"].names == ("few lines", "enough")
    assert load(lines, chunk_len=5, train_share=0.3).attributes["role"].names == ("short test",)
    refuses("none of 0 roles of 5 lines", load, lines, min_lines=5)
    # A share of the roles is drawn.
    lines = {f"role {number}": [f"{number:06}"] * 3 for number in range(40)}
    everyone, subset = load(lines, chunk_len=5), load(lines, chunk_len=5, role_share=0.62)
    drawn = subset.attributes["role"].names
    assert len(drawn) == 24 and list(drawn) == [name for name in lines if name in drawn]  # int(24.8)
    assert drawn != load(lines, chunk_len=5, role_share=0.62, role_seed=1).attributes["role"].names
    assert texts(subset, drawn[3]) == texts(everyone, drawn[3]) != []
    for wrong in (*({"file": f} for f in ("", "..", "a/b", "a\\b", "a\0b")), {"chunk_len": 81, "source": "leaf"}):
        refuses(rf"^shakespeare\.{next(iter(wrong))} = ", create, **wrong)


def test_speeches(folder, monkeypatch):
    speeches = "First Citizen:\nhear me speak.\nrather: to die\nthan to famish?\n\nAll:\nAye.\n\n\n"
    speeches += "MENENIUS:\n\nFirst Citizen:\nFirst, you know\n"
    (folder / "mine.txt").write_bytes(speeches.replace("\n", "\r\n").encode())
    dataset, tiny = create(source="speakers", file="mine.txt", chunk_len=14), create(source="speakers", chunk_len=3)
    assert dataset.available(folder) and not tiny.available(folder)
    samples = dataset.load(folder)
    assert samples.attributes["role"].names == ("First Citizen",) and samples.source == "mine.txt"
    assert texts(samples, train=False) == ["First, you know"]
    assert texts(samples, train=True) == windows("hear me speak. rather: to die than to famish?", 14)
    monkeypatch.setattr(_download, "fetch", lambda url, part: part.write_text(speeches))
    assert "wrong hash" in failure(tiny, folder)
    trust(monkeypatch)
    assert texts(tiny.load(folder), train=False) == windows("First, you know", 3)


def shard(**users):
    """A shard as LEAF writes it; of each user the samples from the first to before the second number of SPOKEN."""
    data = {"deleted": {"x": [], "y": []}}  # LEAF leaves them in
    for user, rows in users.items():
        text = SPOKEN[user]
        data[user] = {"x": [text[n : n + 80] for n in range(*rows)], "y": [text[n + 80] for n in range(*rows)]}
    counts = [stop - start for start, stop in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": data, "hierarchies": ["A"]}).encode()


LETTERS = np.random.default_rng(0).integers(0, 100, (5, 200))
USERS = ("a", "b", "c", "trains", "tests")
SPOKEN = {user: "".join(string.printable[n] for n in row) for user, row in zip(USERS, LETTERS, strict=True)}


def test_shards_of_leaf(folder):
    files = {"train/1.json": shard(b=(0, 7)), "train/0.json": shard(a=(0, 5), trains=(0, 4))}
    write_files(folder, files | {"test/1.json": shard(tests=(0, 3), a=(84, 90)), "test/0.json": shard(b=(86, 87))})
    for length in (80, 5):
        samples = create(source="leaf", chunk_len=length).load(folder)
        assert samples.attributes["role"].names == ("a", "b") and samples.shape == (length,)
        for user, is_train, rows in (("a", True, range(5)), ("a", False, range(84, 90)), ("b", False, [86])):
            expected = [SPOKEN[user][row + 80 - length : row + 81] for row in rows]
            assert texts(samples, user, train=is_train) == expected
    assert samples.source == "LEAF train/*.json and test/*.json"
    write_files(folder, {"test/0.json": shard(), "test/1.json": shard(c=(0, 5))})
    assert "none of 4 roles of 3 lines has training" in failure(create(source="leaf"), folder)
    write_files(folder, {"test/1.json": shard()})
    assert f"{folder}: no users in train/*.json and test/*.json" in failure(create(source="leaf"), folder)
