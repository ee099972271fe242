"""Damaged files of all data sets, prepared samples, splits and weights: one line with the name of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.cifar_files import images, pickled, python_batch
from support.damage import cut
from support.digit_files import LABELS, idx, pixels, write_matlab, write_usps_hdf5
from support.loaders import LOADERS
from support.official import encoded, plain, table

from pflcore.errors import UserError

Change = bytes | None | Callable[[Path], object]


def shard(**changes: Any) -> bytes:
    users: dict[str, Any] = {"b": {"x": ["x" * 80] * 2, "y": ["a", "b"]} | changes.pop("user", {})}
    return json.dumps({"users": ["b"], "num_samples": [2], "user_data": users, **changes}).encode()


def box(*corners: float, label: str = "dog") -> bytes:
    sides = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=False))
    return f"<annotation><object><name>{label}</name><bndbox>{sides}</bndbox></object></annotation>".encode()


GREY = plain((9, 9, 9), "PNG")
PIXELS, DIGITS = images(0)
UNREADABLE = "cannot be read ("

# Which file of LOADERS, by what it is replaced, and what is said of it. None stands for a file that is not there.
CASES: dict[str, list[tuple[Change, str]]] = {
    "image_folder: an image": [
        (cut, "not a readable image ("),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of git LFS; `git lfs pull`"),
    ],
    "image_table: its table": [
        (cut, UNREADABLE),
        (table([GREY, GREY[:40]], label=[0, 1]), "row 1: not a readable image ("),
        (table([GREY, None], label=[0, 1]), "needs a column 'image' of binary or struct"),
        (table([GREY], label=[0.5]), "needs a column 'label' of integers or text, without nulls, has image: st"),
        (
            table([GREY], label=pa.array([None], pa.int64())),
            "needs a column 'label' of integers or text, without nulls",
        ),
        (table([GREY], ["a"], label=pa.array([2**64 - 1], pa.uint64())), "its labels are of an"),
    ],
    "detection_folder: an image": [(cut, "not a readable image (")],
    "detection_folder: boxes": [(box(1, 1, 2, 2), "object 0: its class 'dog' is unknown; put it into class_list")],
    "detection_folder: a list": [
        (b"a\na\n", "a is listed twice in trainval"),
        (b"\xff\xfe", UNREADABLE),
        (b"../../x\n", "Annotations/../../x.xml is missing"),
        (b"a\nc\n", "c is listed twice in trainval and test"),
    ],
    "voc2007: an image": [
        (b"not an image", "not a readable image (not JPEG or PNG)"),
        (None, "JPEGImages/a.jpg is missing"),
    ],
    "voc2007: boxes": [
        (b"text", "cannot be read (syntax error: line 1, column 0)"),
        (b"<annotation/>", "has no object"),
        (box(1, 1, 2), UNREADABLE),
        (box(1, 1, 2, float("nan")), "object 0: its box 1, 1, 2, nan"),
        (box(1, 1, 22, 9), "object 0: its box 1, 1, 22, 9"),
    ],
    "mnist: images": [(idx(pixels(0, 28, 28))[:-1], UNREADABLE), (b"\0\0\x08\3\0\0", UNREADABLE)],
    "mnist: labels": [
        (b"", UNREADABLE),
        (idx(np.array([*LABELS[1][:-1], 10], np.uint8)), "row 24: label 10 is outside 0..9"),
    ],
    "synthdigits: a file": [
        (cut, UNREADABLE),
        (lambda path: write_matlab(path, 0, LABELS[0][1:]), ""),
    ],
    "usps: its file": [
        (cut, UNREADABLE),
        (lambda path: write_usps_hdf5(path, train_data=pixels(0, 256) / 99), "a pixel is outside"),
    ],
    "mnistm: an image": [
        (b"no image", "not a readable image (not PNG)"),
        (encoded(pixels(0, 3, 28, 28)[0]), "28x28 instead of 32x32 pixels"),
    ],
    "mnistm: a list": [
        (b"00000003.png x\n", UNREADABLE),
        (b"absent.png 3\n", "mnist_m_train/absent.png is missing"),
        (b"00000003.png 3\n", "15 training and 10 test samples, found 1 and 10"),
    ],
    "mnistm: a photograph": [(cut, UNREADABLE), (None, "found 1 and 1; get BSR_bsds500.tgz")],
    "cifar10: a pickle": [
        (cut, UNREADABLE),
        (python_batch(PIXELS[:, :-1].copy(), DIGITS), UNREADABLE),
        (python_batch(PIXELS, [0, 0.5, 1, 0]), UNREADABLE),
        (python_batch(PIXELS, [0, 0, 10, 0]), "row 2: label 10 is outside 0..9"),
        (pickled({b"labels": DIGITS}), "has no data; "),
        (None, "data_batch_1 is missing"),
        (python_batch(PIXELS[:3], DIGITS[:3]), "20 training and 4 test samples, found 19 and 4"),
    ],
    "shakespeare: a shard": [
        *((content, UNREADABLE) for content in (b'"\x80"', b"[" * 100_000, b"null", shard(users=["b", "c"]))),
        (b'{"users": ["b"]}', "has no num_samples"),
        (shard(users=["b", "b"], num_samples=[2, 2]), "user 'b' is there already"),
        (shard(num_samples=[8]), "user 'b' must have 8 texts"),
        (shard(user={"x": ["x" * 81] * 2}), "user 'b' must have 2 texts of 80"),
        (shard(user={"y": ["a", "ä"]}), "user 'b' must have 2 texts of 80 printable"),
    ],
    "shakespeare: a text": [
        (b"ONE:\ntext\n\nno colon here\n", "line 4: expected a speaker's NAME: after a blank line, fo"),
        (b"\x80", "not UTF-8 text (byte 0)"),
        ("Быть или не быть".encode(), "13 of 16 characters, most often 'ь', are outside of the 100 print"),
        (b"", "none of 0 roles of 2 lines"),
    ],
    "a split": [(b"\xff", "not a CSV file (")],
    "prepared samples": [(cut, "")],
    "weights: safetensors": [(cut, "truncated, or no safetensors (")],
    "weights: a state dict": [(cut, "truncated, or not what torch.save writes")],
}


@pytest.mark.parametrize("loader", CASES)
def test_a_damaged_file(loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = LOADERS[loader]
    reader.prepare(monkeypatch)
    for number, (change, message) in enumerate(CASES[loader]):
        root = tmp_path / str(number) / "data"
        root.mkdir(parents=True)
        path = reader.write(root)
        if isinstance(change, bytes):
            path.write_bytes(change)
        else:
            change(path) if change else path.unlink()
        with pytest.raises(UserError) as error:
            reader.read(path)
        said = str(error.value)
        # It names the file, or its folder where only several files together are wrong.
        assert path.name in said or any(said.startswith(f"{folder}: ") for folder in path.parents), said
        assert said.startswith(f"{root}") and message in said and "\n" not in said, (change, message)
