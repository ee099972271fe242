"""Whatever reads a file of others refuses a damaged, endless or enormous one in a line, and runs nothing of it."""

import dataclasses
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.cifar_files import images, pickled, python_batch
from support.damage import cut
from support.digit_files import LABELS, idx, pixels, write_matlab, write_usps_hdf5
from support.loaders import LOADERS
from support.official import Hostile, encoded, offline, plain, table, write_tar, write_zip

from pflcore.datasets._files import load_pickle, open_files
from pflcore.errors import UserError


def endless(path):
    path.unlink()
    os.mkfifo(path)


def enormous(path):
    path.write_bytes(b"")
    os.truncate(path, 5 * 2**30)  # a hole


def shard(user=None, **changes):
    users = {"b": {"x": ["x" * 80] * 2, "y": ["a", "b"]} | (user or {})}
    return json.dumps({"users": ["b"], "num_samples": [2], "user_data": users, **changes}).encode()


def box(*corners, label="dog", before=""):
    sides = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=False))
    return f"{before}<annotation><object><name>{label}</name><bndbox>{sides}</bndbox></object></annotation>".encode()


GREY = plain((9, 9, 9), "PNG")
PIXELS, DIGITS = images(0)
UNREADABLE = "cannot be read ("
BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
ELSEWHERE = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]>'

# Which file of LOADERS, by what it is replaced or what happens to it, and what is said of it.
CASES = {
    "image_folder: an image": [
        (cut, "not a readable image ("),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of git LFS; `git lfs pull`"),
    ],
    "image_table: its table": [
        (cut, UNREADABLE),
        (table([GREY, GREY[:40]], label=[0, 1]), "row 1: not a readable image ("),
        (table([GREY, None], label=[0, 1]), "needs a column 'image' of binary or struct"),
    ],
    "detection_folder: boxes": [(box(1, 1, 2, 2), "object 0: its class 'dog' is unknown; put it into class_list")],
    "detection_folder: a list": [
        (b"a\na\n", "a is listed twice in trainval"),
        (b"\xff\xfe", UNREADABLE),
        (b"../../x\n", "Annotations/../../x.xml is missing"),
        (b"a\nc\n", "c is listed twice in trainval and test"),
    ],
    "voc2007: an image": [
        (b"not an image", "not a readable image (no JPEG or PNG that Pillow can read)"),
        (Path.unlink, "JPEGImages/a.jpg is missing"),
    ],
    "voc2007: boxes": [
        (b"text", "cannot be read (syntax error: line 1, column 0)"),
        (b"<annotation/>", "has no object"),
        (box(1, 1, 2), UNREADABLE),
        (box(1, 1, 2, float("nan")), "object 0: its box 1, 1, 2, nan"),
        (box(1, 1, 22, 9), "object 0: its box 1, 1, 22, 9"),
        (box(1, 1, 2, 2, label="&a;", before=BOMB), "cannot be read (DTDForbidden"),
        (box(1, 1, 2, 2, label="&a;", before=ELSEWHERE), "cannot be read (DTDForbidden"),
    ],
    "mnist: images": [(idx(pixels(0, 28, 28))[:-1], UNREADABLE), (b"\0\0\x08\3\0\0", UNREADABLE)],
    "mnist: labels": [
        (b"", UNREADABLE),
        (idx(np.array([*LABELS[1][:-1], 10], np.uint8)), "row 24: label 10 is outside 0..9"),
    ],
    "synthdigits: a file": [(cut, UNREADABLE), (lambda path: write_matlab(path, 0, LABELS[0][1:]), "")],
    "usps: its file": [
        (cut, UNREADABLE),
        (lambda path: write_usps_hdf5(path, train_data=pixels(0, 256) / 99), "a pixel is outside"),
    ],
    "mnistm: an image": [
        (b"no image", "not a readable image (no PNG that Pillow can read)"),
        (encoded(pixels(0, 3, 28, 28)[0]), "28x28 instead of 32x32 pixels"),
    ],
    "mnistm: a list": [
        (b"00000003.png x\n", UNREADABLE),
        (b"absent.png 3\n", "mnist_m_train/absent.png is missing"),
        (b"00000003.png 3\n", "15 training and 10 test samples, found 1 and 10"),
    ],
    "mnistm: a photograph": [(cut, UNREADABLE), (Path.unlink, "found 1 and 1; get BSR_bsds500.tgz")],
    "cifar10: a pickle": [
        (cut, UNREADABLE),
        (python_batch(PIXELS[:, :-1].copy(), DIGITS), UNREADABLE),
        (python_batch(PIXELS, [0, 0.5, 1, 0]), UNREADABLE),
        (python_batch(PIXELS, [0, 0, 10, 0]), "row 2: label 10 is outside 0..9"),
        (pickled({b"labels": DIGITS}), "has no data; "),
        (Path.unlink, "data_batch_1 is missing"),
        (python_batch(PIXELS[:3], DIGITS[:3]), "20 training and 4 test samples, found 19 and 4"),
        (pickle.dumps({"data": Hostile(Path("executed"))}), "refused: the pickle asks for posix.system"),
    ],
    "shakespeare: a shard": [
        *((content, UNREADABLE) for content in (b'"\x80"', b"[" * 100_000, b"null", shard(users=["b", "c"]))),
        (b'{"users": ["b"]}', "has no num_samples"),
        (shard(users=["b", "b"], num_samples=[2, 2]), "user 'b' is there already"),
        (shard(num_samples=[8]), "user 'b' must have 8 texts"),
        (shard({"x": ["x" * 81] * 2}), "user 'b' must have 2 texts of 80"),
        (shard({"y": ["a", "ä"]}), "user 'b' must have 2 texts of 80 printable"),
    ],
    "shakespeare: a text": [
        (b"ONE:\ntext\n\nno colon here\n", "line 4: expected a speaker's NAME: after a blank line, fo"),
        (b"\x80", "not UTF-8 text (byte 0)"),
        ("Быть или не быть".encode(), "13 of 16 characters, most often 'ь', are outside of the 100 print"),
        (b"", "none of 0 roles of 2 lines"),
    ],
    "a split": [(b"\xff", "not a CSV file in UTF-8 (")],
    "prepared samples": [(cut, "")],
    "weights: safetensors": [(cut, "truncated, or no safetensors (")],
    "weights: a state dict": [(cut, "truncated, or not what torch.save writes")],
}

# Files that may be absent; a pipe counts as none.
OPTIONAL = {"a paper's contents", "the state of a run"}


@pytest.mark.parametrize("loader", LOADERS)
def test_damaged_endless_and_enormous_files(loader, tmp_path, monkeypatch):
    reader = LOADERS[loader]
    reader.prepare(monkeypatch)
    offline(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for number, (change, message) in enumerate([*CASES.get(loader, ()), (endless, None), (enormous, None)]):
        root = tmp_path / str(number) / "data"
        root.mkdir(parents=True)
        path, said = reader.write(root), ""
        path.write_bytes(change) if isinstance(change, bytes) else change(path)
        try:
            reader.read(path)
        except UserError as error:
            said = str(error)
        assert "\n" not in said
        if message is None:
            assert said or (change is endless and loader in OPTIONAL), change
        else:
            # It names the file, or its folder where only several files together are wrong.
            assert path.name in said or any(said.startswith(f"{folder}: ") for folder in path.parents), said
            assert said.startswith(f"{root}") and message in said and "</" not in said, (change, message, said)
    assert not Path("executed").exists()


def test_a_pickle_may_ask_for_arrays_and_for_nothing_else():
    for value in (eval, np.load, dataclasses.replace):
        named = f"{value.__module__}.{value.__name__}"
        with pytest.raises(UserError, match=rf"^here: cannot be read \(refused: the pickle asks for {named}\)"):
            load_pickle(pickle.dumps({"data": value}, 4), "here")


def test_members_that_point_outside(tmp_path):
    for name in ("../evil.jpg", "/tmp/evil.jpg", "a/../..", "a\\..\\evil.jpg"):
        for write, archive in ((write_tar, tmp_path / "a.tar.gz"), (write_zip, tmp_path / "a.zip")):
            write(archive, {"a/good.jpg": b"x", name: b"x"})
            with pytest.raises(UserError, match="points outside of the archive") as error, open_files(archive):
                pass
            assert str(error.value).startswith(f"{archive}: ") and repr(name) in str(error.value)
