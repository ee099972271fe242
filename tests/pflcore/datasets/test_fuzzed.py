"""Damaged copies of every kind of file of data and weights: read, or refused in a line, whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from support.digit_files import IDX, shrink, write_mnist, write_synthdigits, write_usps_hdf5
from support.fuzzing import fuzz
from support.official import SIZE, plain, write_files

from pflcore.backbones._pretrained import read_weights
from pflcore.datasets import DATASETS
from pflcore.datasets._leaf import read_split

FEW, MANY = 40, 2000


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=pytest.mark.matrix)])
def copies(request: pytest.FixtureRequest) -> int:
    """How many damaged copies are read."""
    number: int = request.param
    return number


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the dataset, in one of all data; sets of digits are small."""
    shrink(monkeypatch)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_parquet_files_of_images(copies: int, folder: Path) -> None:
    for name in ("train", "test"):
        images = [plain((value,) * 3, "PNG") for value in (10, 20, 30)]
        pq.write_table(pa.table({"image": images, "label": [1, 0, 1]}), folder / f"{name}.parquet", row_group_size=2)
    dataset = DATASETS.create("image_table", size=SIZE)
    dataset.load(folder)
    assert fuzz(folder / "train.parquet", lambda _: dataset.load(folder), copies=copies, seed=1) > 0


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"])
def test_folders_of_images(form: str, copies: int, folder: Path) -> None:
    dataset = DATASETS.create("image_folder", size=SIZE)
    suffix = {"JPEG": "jpg", "TIFF": "tif"}.get(form, form.lower())
    write_files(folder, {f"{kind}/{n}.{suffix}": plain((n, 9, 9), form) for kind in "ab" for n in (1, 2)})
    dataset.load(folder)
    assert fuzz(folder / f"a/1.{suffix}", lambda _: dataset.load(folder), copies=copies // 4, seed=2) > 0


@pytest.mark.parametrize("name", IDX)
def test_mnist(name: str, copies: int, folder: Path) -> None:
    write_mnist(folder, compressed=False)
    dataset = DATASETS.create("mnist")
    assert fuzz(folder / name, lambda _: dataset.load(folder), copies=copies // 4, seed=3) > 0


def test_matlab_files(copies: int, folder: Path) -> None:
    write_synthdigits(folder)
    dataset = DATASETS.create("synthdigits")
    assert fuzz(folder / "synth_test_32x32.mat", lambda _: dataset.load(folder), copies=copies, seed=4) > 0


def test_hdf5_files(copies: int, folder: Path) -> None:
    write_usps_hdf5(folder / "usps.h5")
    dataset = DATASETS.create("usps")
    assert fuzz(folder / "usps.h5", lambda _: dataset.load(folder), copies=copies, seed=5) > 0


def test_leafs_shards(copies: int, tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    users = {name: {"x": [letter * 80] * 2, "y": ["z", "y"]} for name, letter in (("ROMEO", "a"), ("JULIET", "b"))}
    path.write_text(json.dumps({"users": list(users), "num_samples": [2, 2], "user_data": users, "hierarchies": []}))
    read_split([path], [], 80)
    assert fuzz(path, lambda path: read_split([path], [], 80), copies=copies, seed=6) > 0


@pytest.mark.parametrize("part", ["Annotations/a.xml", "ImageSets/Main/trainval.txt"])
def test_boxes(part: str, copies: int, folder: Path) -> None:
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>7</ymax></bndbox>"
    boxes = f"<annotation><object><name>red</name>{box}</object><object><name>white</name>{box}</object></annotation>"
    write_files(
        folder / "cells",
        {f"JPEGImages/{name}.jpg": plain((90, 90, 90), size=(20, 20)) for name in "abc"}
        | {f"Annotations/{name}.xml": boxes.encode() for name in "abc"}
        | {"ImageSets/Main/trainval.txt": b"a\nb\n", "ImageSets/Main/test.txt": b"c\n"},
    )
    dataset = DATASETS.create("detection_folder", path="cells", class_list=("red", "white"), size=8)
    own = folder / "detection_folder"
    dataset.load(own)
    assert fuzz(folder / "cells" / part, lambda _: dataset.load(own), copies=copies // 2, seed=7) > 0


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights(suffix: str, copies: int, tmp_path: Path) -> None:
    path, tensors = tmp_path / f"weights{suffix}", {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3)}
    if suffix == ".pth":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)
    assert fuzz(path, read_weights, copies=copies, seed=9) > 0
