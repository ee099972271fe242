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
from support.digit_files import LABELS, idx, pixels, write_matlab, write_usps_hdf5
from support.loaders import LOADERS
from support.official import encoded, plain, table

from pflcore.errors import UserError

Change = bytes | None | Callable[[Path], object]


def shard(**changes: Any) -> bytes:
    users: dict[str, Any] = {"b": {"x": ["x" * 80] * 2, "y": ["a", "b"]} | changes.pop("user", {})}
    return json.dumps({"users": ["b"], "num_samples": [2], "user_data": users, **changes}).encode()


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def box(*corners: float, label: str = "dog") -> bytes:
    sides = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=False))
    return f"<annotation><object><name>{label}</name><bndbox>{sides}</bndbox></object></annotation>".encode()


GREY = plain((9, 9, 9), "PNG")
PIXELS, DIGITS = images(0)
UNREADABLE = "cannot be read ("

# Which file of LOADERS, what it is replaced by, and what is said of it. None stands for a file that is not there.
CASES: list[tuple[str, Change, str]] = [
    ("image_folder: an image", half, "not a readable image ("),
    ("image_folder: an image", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of git LFS; `git lfs pull`"),
    ("image_table: its table", half, UNREADABLE),
    ("image_table: its table", table([GREY, GREY[:40]], label=[0, 1]), "row 1: not a readable image ("),
    ("image_table: its table", table([GREY, None], label=[0, 1]), "column 'image' holds 1 nulls"),
    ("image_table: its table", table([GREY], label=[0.5]), "needs a column 'label' of integers or text, has image: st"),
    ("image_table: its table", table([GREY], kind=[0]), "needs a column 'label' of integers or text"),
    ("image_table: its table", table([GREY], label=pa.array([None], pa.int64())), "column 'label' holds 1 nulls"),
    ("image_table: its table", table([GREY] * 2, ["a", "a"], label=[0, 1]), "names for column 'label' are not distin"),
    ("image_table: its table", table([GREY], ["a"], label=pa.array([2**64 - 1], pa.uint64())), "its labels are of an"),
    ("image_table: its table", table([], label=pa.array([], pa.int64())), "needs a column 'image' of binary"),
    ("detection_folder: an image", half, "not a readable image ("),
    ("detection_folder: boxes", box(1, 1, 2, 2), "object 0: its class 'dog' is unknown; put it into class_list"),
    ("detection_folder: a list", b"a\na\n", "names an image twice"),
    ("detection_folder: a list", b"", "is empty"),
    ("detection_folder: a list", b"\xff\xfe", UNREADABLE),
    ("detection_folder: a list", b"../../x\n", "Annotations/../../x.xml is missing"),
    ("detection_folder: a list", b"a\nc\n", "c is in both trainval and test"),
    ("voc2007: an image", b"not an image", "not a readable image (not JPEG or PNG)"),
    ("voc2007: an image", None, "JPEGImages/a.jpg is missing"),
    ("voc2007: boxes", b"text", "cannot be read (syntax error: line 1, column 0)"),
    ("voc2007: boxes", b"<annotation/>", "has no object"),
    ("voc2007: boxes", box(1, 1, 2), UNREADABLE),
    ("voc2007: boxes", box(1, 1, 2, float("nan")), "object 0: its box 1, 1, 2, nan"),
    ("voc2007: boxes", box(20, 1, 10, 2), "object 0: its box 20, 1, 10, 2"),
    ("voc2007: boxes", box(1, 1, 22, 9), "object 0: its box 1, 1, 22, 9"),
    ("voc2007: boxes", box(21, 1, 21, 9), "object 0: its box 21, 1, 21, 9"),
    ("voc2007: boxes", box(1, 1, 2, 2, label="unicorn"), "object 0: its class 'unicorn' is unknown"),
    ("mnist: images", idx(pixels(0, 28, 28))[:-1], UNREADABLE),
    ("mnist: images", b"\0\0\x08\3\0\0", UNREADABLE),
    ("mnist: images", idx(pixels(0, 28, 27)), UNREADABLE),
    ("mnist: labels", b"", UNREADABLE),
    ("mnist: labels", idx(np.array([*LABELS[1][:-1], 10], np.uint8)), "row 24: label 10 is outside 0..9"),
    ("synthdigits: a file", half, UNREADABLE),
    ("synthdigits: a file", b"of another kind", UNREADABLE),
    ("synthdigits: a file", lambda path: write_matlab(path, 0, LABELS[0][1:]), ""),
    ("usps: its file", half, UNREADABLE),
    ("usps: its file", lambda path: write_usps_hdf5(path, train_data=pixels(0, 256) / 99), "a pixel is outside"),
    ("mnistm: an image", b"no image", "not a readable image (not PNG)"),
    ("mnistm: an image", encoded(pixels(0, 3, 28, 28)[0]), "28x28 instead of 32x32 pixels"),
    ("mnistm: a list", b"00000003.png x\n", UNREADABLE),
    ("mnistm: a list", b"absent.png 3\n", "has no mnist_m_train/absent.png"),
    ("mnistm: a list", b"00000003.png 3\n", "15 training and 10 test samples, found 1 and 10"),
    ("mnistm: a photograph", half, UNREADABLE),
    ("mnistm: a photograph", None, "found 1 and 1; get BSR_bsds500.tgz"),
    ("cifar10: a pickle", half, UNREADABLE),
    ("cifar10: a pickle", python_batch(PIXELS[:, :-1].copy(), DIGITS), UNREADABLE),
    ("cifar10: a pickle", python_batch(PIXELS, DIGITS[:-1]), UNREADABLE),
    ("cifar10: a pickle", python_batch(PIXELS, [0, 0.5, 1, 0]), UNREADABLE),
    ("cifar10: a pickle", python_batch(PIXELS, [0, 0, 10, 0]), "row 2: label 10 is outside 0..9"),
    ("cifar10: a pickle", pickled({b"labels": DIGITS}), "has no data; "),
    ("cifar10: a pickle", None, "data_batch_1 is missing"),
    ("cifar10: a pickle", python_batch(PIXELS[:3], DIGITS[:3]), "20 training and 4 test samples, found 19 and 4"),
    *(("shakespeare: a shard", content, UNREADABLE) for content in (b'"\x80"', b"[" * 100_000, b"1" * 5000, b"null")),
    ("shakespeare: a shard", b'{"users": ["b"]}', "has no num_samples"),
    ("shakespeare: a shard", shard(users=["b", "c"]), UNREADABLE),
    ("shakespeare: a shard", shard(users=["b", "b"], num_samples=[2, 2]), "user 'b' is there already"),
    ("shakespeare: a shard", shard(num_samples=[8]), "user 'b' must have 8 texts"),
    ("shakespeare: a shard", shard(user={"x": ["x" * 81] * 2}), "the texts of user 'b' must have 80 characters"),
    ("shakespeare: a shard", shard(user={"y": ["a", "ä"]}), "user 'b' says more than the 100 printable ASCII"),
    (
        "shakespeare: a text",
        b"ONE:\ntext\n\nno colon here\n",
        "line 4: expected a speaker's NAME: after a blank line, fo",
    ),
    ("shakespeare: a text", b"ONE:\ntext\n\nA: b\n", "line 4: "),
    ("shakespeare: a text", b"\x80", "not UTF-8 text (byte 0)"),
    ("shakespeare: a text", "Быть или не быть".encode(), "13 of 16 characters, most often 'ь'"),
    ("shakespeare: a text", b"", "none of 0 roles has 2 lines"),
    ("a split", b"sample,client\n", ":1: must be sample,client,split"),
    ("a split", b"sample,client,split\n0,-1,train\n", ":2: '0,-1,train' is not sample,client,split"),
    ("a split", b"\xff", "not a CSV file ("),
    ("prepared samples", half, ""),
    ("weights: safetensors", half, "truncated, or no safetensors ("),
    ("weights: a state dict", half, "truncated, or not what torch.save writes"),
]


@pytest.mark.parametrize(("loader", "change", "message"), CASES)
def test_a_damaged_file(
    loader: str, change: Change, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LOADERS[loader]
    reader.prepare(monkeypatch)
    (tmp_path / "data").mkdir()
    path = reader.write(tmp_path / "data")
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        change(path) if change else path.unlink()
    with pytest.raises(UserError) as error:
        reader.read(path)
    said = str(error.value)
    # It names the file, or its folder where only several files together are wrong.
    assert path.name in said or any(said.startswith(f"{folder}: ") for folder in path.parents)
    assert said.startswith(f"{tmp_path / 'data'}") and message in said and "\n" not in said
