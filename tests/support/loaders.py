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
from pflcore.datasets.voc import Voc2007
from pipeline.papers.paper import read_contents
from pipeline.running.board import Board, StageState
from pipeline.spec.published import read_published
from pipeline.spec.run import read_run
from pipeline.spec.table import read_resolved
from pipeline.spec.yamlfile import load_yaml
from support import cifar_files, digit_files
from support.official import SIZE, Files, plain, write_files

Read = Callable[[Path], object]
Write = Callable[[Path], Path]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Loader:
    """Something that reads a file.

    `write` puts good files into a folder called ``data`` and returns the one that will be replaced; `read` reads it
    again, wherever it now lies; `prepare` makes the counts of official files those of miniatures.
    """

    write: Write
    read: Read
    prepare: Callable[[pytest.MonkeyPatch], object] = lambda patch: None


def _dataset(name: str, **options: Any) -> Read:
    def read(path: Path) -> object:
        root = [parent for parent in path.parents if parent.name == "data"][-1]  # an archive may have one within
        return DATASETS.create(name, **options).load(root / name)

    return read


def _files(name: str, files: Files, part: str) -> Write:
    def write(data: Path) -> Path:
        write_files(data / name, files)
        return data / name / part

    return write


def _written(write: Callable[[Path], object], path: str) -> Write:
    """Return what writes files below ``data``, of which one is at `path`."""

    def written(data: Path) -> Path:
        write(data / path.split("/")[0])
        return data / path

    return written


def _tables(folder: Path) -> None:
    folder.mkdir()
    for name in ("train", "test"):
        images = [plain((value,) * 3, "PNG") for value in (10, 20, 30)]
        pq.write_table(pa.table({"image": images, "label": [1, 0, 1]}), folder / f"{name}.parquet")


def _voc(label: str) -> Files:
    box = f"<object><name>{label}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>7</ymax></bndbox>"
    files = {f"JPEGImages/{name}.jpg": plain((90, 90, 90), size=(20, 20)) for name in "abc"}
    files |= {f"Annotations/{name}.xml": f"<annotation>{box}</object></annotation>".encode() for name in "abc"}
    return files | {"ImageSets/Main/trainval.txt": b"a\nb\n", "ImageSets/Main/test.txt": b"c\n"}


def _detection(part: str) -> Loader:
    read = _dataset("detection_folder", class_list=("red",), size=SIZE)
    return Loader(_files("detection_folder", _voc("red"), part), read)


def _voc2007(part: str) -> Loader:
    files = {f"VOCdevkit/VOC2007/{name}": content for name, content in _voc("dog").items()}
    write = _files("voc2007", files, f"VOCdevkit/VOC2007/{part}")
    return Loader(write, _dataset("voc2007", size=SIZE), lambda patch: patch.setattr(Voc2007, "counts", (2, 1)))


def _digits(name: str, write: Write, **options: Any) -> Loader:
    return Loader(write, _dataset(name, **options), digit_files.shrink)


def _mnist(folder: Path) -> None:
    digit_files.write_mnist(folder, compressed=False)


def _photographs(data: Path) -> Path:
    write_files(data / "mnistm", digit_files.photographs())
    _mnist(data / "mnist")
    return data / f"mnistm/{digit_files.PHOTOS}/train/100.jpg"


def _leaf(folder: Path) -> None:
    users = {name: {"x": [letter * 80] * 2, "y": ["z", "y"]} for name, letter in (("ROMEO", "a"), ("JULIET", "b"))}
    shard = {"users": list(users), "num_samples": [2, 2], "user_data": users, "hierarchies": []}
    write_files(folder, {f"{split}/a.json": json.dumps(shard).encode() for split in ("test", "train")})


def _tensors(name: str) -> Write:
    tensors = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3)}
    save = save_file if name.endswith("safetensors") else torch.save
    return _written(lambda path: save(tensors, path), name)


def _copied(pattern: str, name: str = "") -> Write:
    """Return what copies a file of this repository."""

    def write(data: Path) -> Path:
        source = min(ROOT.glob(pattern))
        path = data / (name or source.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        return path

    return write


def _record(path: Path) -> object:
    records = json.loads((ROOT / "stages/records.json").read_text(encoding="utf-8"))
    return read_run(path, next(id_ for id_, record in records.items() if "method" in record))


def _board(path: Path) -> None:
    Board("tiny", entries={"train a": StageState("train a", "train", "a")}, path=path).save(now=True)


def _contents(path: Path) -> object:
    return read_contents(path.parent.parent, path.parent.name, [one.stem for one in ROOT.glob("specs/fedtp/*.yaml")])


TEXT = b"First Citizen:\nBefore we proceed, hear me speak.\n\nAll:\nSpeak, speak.\n" + b"a line of words\n" * 9
PUBLISHED = b'method,share,mean,std,quoted,note\nFedAvg,0.5,61.25,0.3,,\n"Fed, Per",1,72.5,,yes,a note\n'
SPLIT = b"sample,client,split\n0,0,train\n1,0,test\n2,1,train\n3,1,test\n"
MNISTM = digit_files.mnistm_files()
FOLDER = {f"{kind}/{n}.png": plain((n, 9, 9), "PNG") for kind in "ab" for n in (1, 2)}
SPEAKERS = {"source": "speakers", "file": "own.txt", "min_lines": 2, "chunk_len": 5}

LOADERS: dict[str, Loader] = {
    "image_folder: an image": Loader(_files("image_folder", FOLDER, "a/1.png"), _dataset("image_folder", size=SIZE)),
    "image_table: its table": Loader(
        _written(_tables, "image_table/train.parquet"), _dataset("image_table", size=SIZE)
    ),
    "detection_folder: an image": _detection("JPEGImages/a.jpg"),
    "detection_folder: boxes": _detection("Annotations/a.xml"),
    "detection_folder: a list": _detection("ImageSets/Main/trainval.txt"),
    "voc2007: an image": _voc2007("JPEGImages/a.jpg"),
    "voc2007: boxes": _voc2007("Annotations/a.xml"),
    "mnist: images": _digits("mnist", _written(_mnist, f"mnist/{digit_files.IDX[0]}")),
    "mnist: labels": _digits("mnist", _written(_mnist, f"mnist/{digit_files.IDX[3]}")),
    "synthdigits: a file": _digits(
        "synthdigits", _written(digit_files.write_synthdigits, "synthdigits/synth_train_32x32.mat")
    ),
    "usps: its file": _digits(
        "usps", _written(lambda folder: digit_files.write_usps_hdf5(folder / "usps.h5"), "usps/usps.h5")
    ),
    "mnistm: an image": _digits("mnistm", _files("mnistm", MNISTM, "mnist_m/mnist_m_train/00000003.png")),
    "mnistm: a list": _digits("mnistm", _files("mnistm", MNISTM, "mnist_m/mnist_m_train_labels.txt")),
    "mnistm: a photograph": _digits("mnistm", _photographs, source="built"),
    "cifar10: a pickle": Loader(
        _files("cifar10", cifar_files.members(), "cifar-10-batches-py/data_batch_1"),
        _dataset("cifar10"),
        cifar_files.shrink,
    ),
    "shakespeare: a shard": Loader(_written(_leaf, "shakespeare/train/a.json"), _dataset("shakespeare", source="leaf")),
    "shakespeare: a text": Loader(
        _files("shakespeare", {"own.txt": TEXT}, "own.txt"), _dataset("shakespeare", **SPEAKERS)
    ),
    "weights: safetensors": Loader(_tensors("a.safetensors"), read_weights),
    "weights: a state dict": Loader(_tensors("a.pth"), read_weights),
    "a split": Loader(_files("here", {"a.csv": SPLIT}, "a.csv"), lambda path: read_split(path, "from_file", 0)),
    "prepared samples": Loader(
        _written(lambda path: write_samples(path, stand_in(DATASETS.create("digits"), 20, 10)), "samples.parquet"),
        read_samples,
    ),
    "a spec": Loader(_files("here", {"a.yaml": b"title: A\n"}, "a.yaml"), lambda path: load_yaml(path, path.name)),
    "a paper's contents": Loader(_copied("specs/fedtp/contents.csv", "fedtp/contents.csv"), _contents),
    "a resolved table": Loader(_copied("stages/tables/*.json"), read_resolved),
    "records of runs": Loader(_copied("stages/records.json"), _record),
    "the state of a run": Loader(_written(_board, "run.json"), Board.load),
    "published values": Loader(
        _files("here", {"a.csv": PUBLISHED}, "a.csv"),
        lambda path: read_published(path, "table.csv", ["method", "share"]),
    ),
}
