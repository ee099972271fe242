"""Everything that reads a file which somebody else may have made, with a good file for it to read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from pflcore.backbones._pretrained import read_weights
from pflcore.data.assignment_files import read_split
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.datasets import DATASETS, stand_in
from pflcore.datasets.voc2007 import Voc2007
from pipeline.papers.paper import read_contents
from pipeline.running.board import Board, StageState
from pipeline.spec.published import read_published
from pipeline.spec.records import read_run
from pipeline.spec.table import read_resolved
from pipeline.spec.yamlfile import load_yaml
from support import cifar_files, digit_files
from support.official import SIZE, plain, write_files

Read = Callable[[Path], object]

ROOT = Path(__file__).parents[2]
TEXT = "First Citizen:\nBefore we proceed, hear me speak.\n\nAll:\nSpeak, speak.\n" + "a line of words\n" * 9
_BOX = "<object><name>red</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>7</ymax></bndbox></object>"


@dataclass(frozen=True)
class Loader:
    """Something that reads a file.

    Args:
        format: Of the file; one of those for which there are hostile files.
        write: Puts good files into the folder ``data`` of a folder; returns the one that will be replaced.
        read: Reads it again, wherever it now lies. Raises a user's error for what is wrong with it.
        prepare: Makes the counts of official files those of miniatures, in the process that reads.
    """

    format: str
    write: Callable[[Path], Path]
    read: Read
    prepare: Callable[[pytest.MonkeyPatch], object] = lambda patch: None


def _dataset(name: str, **options: Any) -> Read:
    """Of any file in the dataset's folder: loads the dataset."""

    def read(path: Path) -> object:
        root = [parent for parent in path.parents if parent.name == "data"][-1]  # an archive may have one within
        return DATASETS.create(name, **options).load(root / name)

    return read


def _written(name: str, files: dict[str, bytes]) -> Callable[[Path], Path]:
    """What writes files into a folder of that name; the first is the one to be replaced."""

    def write(data: Path) -> Path:
        write_files(data / name, files)
        return data / name / next(iter(files))

    return write


def _mnist(file: int) -> Callable[[Path], Path]:
    return lambda data: digit_files.write_mnist(data / "mnist", compressed=False)[file]


def _table(data: Path) -> Path:
    for name in ("train", "test"):
        images = [plain((value,) * 3, "PNG") for value in (10, 20, 30)]
        (data / "image_table").mkdir(exist_ok=True)
        pq.write_table(pa.table({"image": images, "label": [1, 0, 1]}), data / f"image_table/{name}.parquet")
    return data / "image_table/train.parquet"


def _synthdigits(data: Path) -> Path:
    digit_files.write_synthdigits(data / "synthdigits")
    return data / "synthdigits/synth_train_32x32.mat"


def _usps(data: Path) -> Path:
    digit_files.write_usps_hdf5(data / "usps/usps.h5")
    return data / "usps/usps.h5"


def _detection(part: str) -> Callable[[Path], Path]:
    images = {f"JPEGImages/{name}.jpg": plain((90, 90, 90), size=(20, 20)) for name in "abc"}
    boxes = {f"Annotations/{name}.xml": f"<annotation>{_BOX}</annotation>".encode() for name in "abc"}
    files = images | boxes | {"ImageSets/Main/trainval.txt": b"a\nb\n", "ImageSets/Main/test.txt": b"c\n"}
    return _written("detection_folder", {part: files[part]} | files)


def _voc(part: str) -> Callable[[Path], Path]:
    box = _BOX.replace("red", "dog")
    files = {f"JPEGImages/{name}.jpg": plain((90, 90, 90), size=(20, 20)) for name in "abc"}
    files |= {f"Annotations/{name}.xml": f"<annotation>{box}</annotation>".encode() for name in "abc"}
    files |= {"ImageSets/Main/trainval.txt": b"a\nb\n", "ImageSets/Main/test.txt": b"c\n"}
    inside = {f"VOCdevkit/VOC2007/{name}": content for name, content in files.items()}
    return _written("voc2007", {f"VOCdevkit/VOC2007/{part}": files[part]} | inside)


def _small_voc(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Voc2007, "counts", (2, 1))


def _mnistm(part: str) -> Callable[[Path], Path]:
    files = digit_files.mnistm_files()
    return _written("mnistm", {part: files[part]} | files)


def _photographs(data: Path) -> Path:
    write_files(data / "mnistm", digit_files.photographs())
    digit_files.write_mnist(data / "mnist", compressed=False)
    return data / f"mnistm/{digit_files.PHOTOS}/train/100.jpg"


def _leaf(data: Path) -> Path:
    users = {name: {"x": [letter * 80] * 2, "y": ["z", "y"]} for name, letter in (("ROMEO", "a"), ("JULIET", "b"))}
    shard = {"users": list(users), "num_samples": [2, 2], "user_data": users, "hierarchies": []}
    for split in ("test", "train"):
        path = data / f"shakespeare/{split}/a.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(shard))
    return path


def _at(name: str, content: bytes | str) -> Callable[[Path], Path]:
    return _written("here", {name: content.encode() if isinstance(content, str) else content})


def _tensors(name: str) -> Callable[[Path], Path]:
    def write(data: Path) -> Path:
        tensors = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3)}
        save_file(tensors, data / name) if name.endswith("safetensors") else torch.save(tensors, data / name)
        return data / name

    return write


def _samples(data: Path) -> Path:
    write_samples(data / "samples.parquet", stand_in(DATASETS.create("digits"), 20, 10))
    return data / "samples.parquet"


def _first_run() -> str:
    """The first run of this repository's records."""
    records = json.loads((ROOT / "stages/records.json").read_text(encoding="utf-8"))
    return next(id_ for id_, record in records.items() if "method" in record)


def _copied(pattern: str, name: str = "") -> Callable[[Path], Path]:
    """What copies a file of this repository."""

    def write(data: Path) -> Path:
        source = min(ROOT.glob(pattern))
        path = data / (name or source.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        return path

    return write


def _board(data: Path) -> Path:
    Board("tiny", entries={"train a": StageState("train a", "train", "a")}, path=data / "run.json").save(now=True)
    return data / "run.json"


def _contents(path: Path) -> object:
    return read_contents(path.parent.parent, path.parent.name, [one.stem for one in ROOT.glob("specs/fedtp/*.yaml")])


def _published(path: Path) -> object:
    return read_published(path, "table.csv", ["method", "share"])


PUBLISHED = 'method,share,mean,std,quoted,note\nFedAvg,0.5,61.25,0.3,,\n"Fed, Per",1,72.5,,yes,a note\n'
SPLIT = "sample,client,split\n0,0,train\n1,0,test\n2,1,train\n3,1,test\n"
DIGITS, CIFAR = digit_files.shrink, cifar_files.shrink
FILES = {f"{kind}/{n}.png": plain((n, 9, 9), "PNG") for kind in "ab" for n in (1, 2)}

LOADERS: dict[str, Loader] = {
    "image_folder: an image": Loader("picture", _written("image_folder", FILES), _dataset("image_folder", size=SIZE)),
    "image_table: its table": Loader("table", _table, _dataset("image_table", size=SIZE)),
    "detection_folder: an image": Loader(
        "picture", _detection("JPEGImages/a.jpg"), _dataset("detection_folder", class_list=("red",), size=SIZE)
    ),
    "detection_folder: boxes": Loader(
        "xml", _detection("Annotations/a.xml"), _dataset("detection_folder", class_list=("red",), size=SIZE)
    ),
    "detection_folder: a list": Loader(
        "text", _detection("ImageSets/Main/trainval.txt"), _dataset("detection_folder", class_list=("red",), size=SIZE)
    ),
    "voc2007: an image": Loader(
        "picture",
        _voc("JPEGImages/a.jpg"),
        _dataset("voc2007", size=SIZE),
        _small_voc,
    ),
    "voc2007: boxes": Loader(
        "xml",
        _voc("Annotations/a.xml"),
        _dataset("voc2007", size=SIZE),
        _small_voc,
    ),
    "mnist: images": Loader("idx", _mnist(0), _dataset("mnist"), DIGITS),
    "mnist: labels": Loader("idx", _mnist(1), _dataset("mnist"), DIGITS),
    "synthdigits: a file": Loader("matlab", _synthdigits, _dataset("synthdigits"), DIGITS),
    "usps: its file": Loader("hdf5", _usps, _dataset("usps"), DIGITS),
    "mnistm: an image": Loader("picture", _mnistm("mnist_m/mnist_m_train/00000003.png"), _dataset("mnistm"), DIGITS),
    "mnistm: a list": Loader("text", _mnistm("mnist_m/mnist_m_train_labels.txt"), _dataset("mnistm"), DIGITS),
    "mnistm: a photograph": Loader("picture", _photographs, _dataset("mnistm", source="built"), DIGITS),
    "cifar10: a pickle": Loader("pickle", _written("cifar10", cifar_files.members()), _dataset("cifar10"), CIFAR),
    "shakespeare: a shard": Loader("json", _leaf, _dataset("shakespeare", source="leaf")),
    "shakespeare: a text": Loader(
        "text",
        _written("shakespeare", {"own.txt": TEXT.encode()}),
        _dataset("shakespeare", source="speakers", file="own.txt", min_lines=2, chunk_len=5),
    ),
    "weights: safetensors": Loader("safetensors", _tensors("a.safetensors"), read_weights),
    "weights: a state dict": Loader("state dict", _tensors("a.pth"), read_weights),
    "a split": Loader("csv", _at("a.csv", SPLIT), lambda path: read_split(path, "from_file", 0)),
    "prepared samples": Loader("table", _samples, read_samples),
    "a spec": Loader("yaml", _at("a.yaml", "title: A\n"), lambda path: load_yaml(path, path.name)),
    "a paper's contents": Loader("csv", _copied("specs/fedtp/contents.csv", "fedtp/contents.csv"), _contents),
    "a resolved table": Loader("json", _copied("stages/tables/*.json"), read_resolved),
    "records of runs": Loader("json", _copied("stages/records.json"), lambda path: read_run(path, _first_run())),
    "the state of a run": Loader("json", _board, Board.load),
    "published values": Loader("csv", _at("a.csv", PUBLISHED), _published),
}
