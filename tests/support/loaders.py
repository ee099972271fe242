"""Everything that reads a file which somebody else may have made, with a good file for it to read."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from pflcore.backbones._pretrained import read_weights
from pflcore.data.assignment_files import read_split
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.datasets import DATASETS, stand_in
from pflcore.datasets.har import Har
from pflcore.datasets.voc import Voc2007
from pipeline.papers.paper import read_contents
from pipeline.running.board import Board, StageState
from pipeline.spec.published import read_published
from pipeline.spec.run import read_record
from pipeline.spec.table import read_resolved
from pipeline.spec.yamlfile import parse_yaml, read_text
from support import cifar_files, digit_files
from support.official import SIZE, plain, table, write_files

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Loader:
    """Something that reads a file at `path` below a folder called ``data``.

    `good` is what fills the first part of `path`: files, or a function of the place. `read` reads the file, wherever it
    now lies; `prepare` makes the counts of official files those of miniatures.
    """

    path: str
    good: dict | Callable
    read: Callable
    prepare: Callable = lambda patch: None

    def write(self, data):
        """Write the good files and return the one that will be replaced."""
        first = data / self.path.split("/")[0]
        if isinstance(self.good, dict):
            write_files(first, self.good)
        else:
            self.good(first)
        return data / self.path


def _dataset(path, good, prepare=lambda patch: None, **options):
    """Return the loader of a file of the data set whose name `path` begins with."""
    name = path.split("/")[0]

    def read(path):
        root = [parent for parent in path.parents if parent.name == "data"][-1]  # an archive may have one within
        return DATASETS.create(name, **options).load(root / name)

    return Loader(path, good, read, prepare)


def _digits(path, good, **options):
    return _dataset(path, good, digit_files.shrink, **options)


def _voc(label, prefix=""):
    box = f"<object><name>{label}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>7</ymax></bndbox>"
    files = {f"JPEGImages/{name}.jpg": plain((90, 90, 90), size=(20, 20)) for name in "abc"}
    files |= {f"Annotations/{name}.xml": f"<annotation>{box}</object></annotation>".encode() for name in "abc"}
    files |= {"ImageSets/Main/trainval.txt": b"a\nb\n", "ImageSets/Main/test.txt": b"c\n"}
    return {f"{prefix}{name}": content for name, content in files.items()}


def _detection(part):
    return _dataset(f"detection_folder/{part}", _voc("red"), class_list=("red",), size=SIZE)


def _voc2007(part):
    def shrink(patch):
        patch.setattr(Voc2007, "counts", (2, 1))

    folder = "VOCdevkit/VOC2007/"
    return _dataset(f"voc2007/{folder}{part}", _voc("dog", folder), shrink, size=SIZE)


def _mnist(folder):
    digit_files.write_mnist(folder, compressed=False)


def _photographs(folder):
    write_files(folder, digit_files.photographs())
    _mnist(folder.parent / "mnist")


def _leaf(folder):
    users = {name: {"x": [letter * 80] * 2, "y": ["z", "y"]} for name, letter in (("ROMEO", "a"), ("JULIET", "b"))}
    shard = {"users": list(users), "num_samples": [2, 2], "user_data": users, "hierarchies": []}
    write_files(folder, {f"{split}/a.json": json.dumps(shard).encode() for split in ("test", "train")})


def _copied(pattern, name=""):
    """Return what copies a file of this repository, into a folder if it has a name there."""

    def copy(path):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(min(ROOT.glob(pattern)), path / name)

    return copy


def _record(path):
    records = json.loads((ROOT / "stages/records.json").read_text(encoding="utf-8"))
    return read_record(path, next(id_ for id_, record in records.items() if "method" in record))


def _board(path):
    Board("tiny", entries={"train a": StageState("train a", "train", "a")}, path=path).save(force=True)


def _contents(path):
    return read_contents(path.parent.parent, path.parent.name, [spec.stem for spec in ROOT.glob("specs/fedtp/*.yaml")])


def _published(path):
    return read_published(path, "table.csv", ["method", "share"], units=False, score=lambda labels: None)


def _samples(path):
    write_samples(path, stand_in(DATASETS.create("digits"), 20, 10))


def _array_tables(folder):
    folder.mkdir()
    pq.write_table(pa.table({"x": [[0.5, 2.0], [3.5, 4.0], [1.5, 0.0]], "label": [1, 0, 1]}), folder / "a.parquet")


def _array_file(path):
    path.mkdir()
    rng = np.random.default_rng(0)
    np.savez(path / "a.npz", x=rng.standard_normal((4, 2, 3)), label=np.arange(4) % 2)


def har_files(prefix=""):
    """Five samples of UCI HAR, of three persons, as texts by their names."""
    rng, files = np.random.default_rng(0), {}
    for split, labels, persons in (("train", [5, 1, 6], [30, 1, 1]), ("test", [2, 3], [4, 4])):
        tables = {f"{split}/X_{split}.txt": rng.standard_normal((len(labels), 561))}
        for sensor in product(("body_acc", "body_gyro", "total_acc"), "xyz"):
            tables[f"{split}/Inertial Signals/{'_'.join(sensor)}_{split}.txt"] = rng.normal(size=(len(labels), 128))
        for name, values in tables.items():
            files[name] = "\n".join(" ".join(f"{value: .7e}" for value in row) for row in values)
        for name, numbers in (("y", labels), ("subject", persons)):
            files[f"{split}/{name}_{split}.txt"] = "\n".join(map(str, numbers))
    return {f"{prefix}{name}": text.encode() for name, text in files.items()}


def _shrink_har(patch):
    patch.setattr(Har, "counts", (5, 0))


TENSORS = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3)}
TEXT = b"First Citizen:\nBefore we proceed, hear me speak.\n\nAll:\nSpeak, speak.\n" + b"a line of words\n" * 9
PUBLISHED = b'method,share,mean,std,quoted,note\nFedAvg,0.5,61.25,0.3,,\n"Fed, Per",1,72.5,,yes,a note\n'
SPLIT = b"sample,client,split\n0,0,train\n1,0,test\n2,1,train\n3,1,test\n"
MNISTM, CIFAR10 = digit_files.mnistm_files(), cifar_files.members()
FOLDER = {f"{kind}/{n}.png": plain((n, 9, 9), "PNG") for kind in "ab" for n in (1, 2)}
TABLES = table([plain((value,) * 3, "PNG") for value in (10, 20, 30)], label=[1, 0, 1])
TABLES = {f"{name}.parquet": TABLES for name in ("train", "test")}
SPEAKERS = {"source": "speakers", "file": "own.txt", "min_lines": 2, "chunk_len": 5}

LOADERS = {
    "image_folder: an image": _dataset("image_folder/a/1.png", FOLDER, size=SIZE),
    "image_table: its table": _dataset("image_table/train.parquet", TABLES, size=SIZE),
    "detection_folder: an image": _detection("JPEGImages/a.jpg"),
    "detection_folder: boxes": _detection("Annotations/a.xml"),
    "detection_folder: a list": _detection("ImageSets/Main/trainval.txt"),
    "array_table: its CSV": _dataset("array_table/a.csv", {"a.csv": b"x,y,label\n1,2.5,b\n0,-1,a\n2,7,a\n"}),
    "array_table: its Parquet": _dataset("array_table/a.parquet", _array_tables),
    "array_file: its file": _dataset("array_file/a.npz", _array_file),
    "har: signals": _dataset("har/train/Inertial Signals/body_gyro_y_train.txt", har_files(), _shrink_har),
    "har: features": _dataset("har/test/X_test.txt", har_files(), _shrink_har, inputs="features"),
    "voc2007: an image": _voc2007("JPEGImages/a.jpg"),
    "voc2007: boxes": _voc2007("Annotations/a.xml"),
    "mnist: images": _digits(f"mnist/{digit_files.IDX[0]}", _mnist),
    "mnist: labels": _digits(f"mnist/{digit_files.IDX[3]}", _mnist),
    "synthdigits: a file": _digits("synthdigits/synth_train_32x32.mat", digit_files.write_synthdigits),
    "usps: its file": _digits("usps/usps.h5", lambda folder: digit_files.write_usps_hdf5(folder / "usps.h5")),
    "mnistm: an image": _digits("mnistm/mnist_m/mnist_m_train/00000003.png", MNISTM),
    "mnistm: a list": _digits("mnistm/mnist_m/mnist_m_train_labels.txt", MNISTM),
    "mnistm: a photograph": _digits(f"mnistm/{digit_files.PHOTOS}/train/100.jpg", _photographs, source="built"),
    "cifar10: a pickle": _dataset("cifar10/cifar-10-batches-py/data_batch_1", CIFAR10, cifar_files.shrink),
    "shakespeare: a shard": _dataset("shakespeare/train/a.json", _leaf, source="leaf"),
    "shakespeare: a text": _dataset("shakespeare/own.txt", {"own.txt": TEXT}, **SPEAKERS),
    "weights: safetensors": Loader("a.safetensors", lambda path: save_file(TENSORS, path), read_weights),
    "weights: a state dict": Loader("a.pth", lambda path: torch.save(TENSORS, path), read_weights),
    "a split": Loader("here/a.csv", {"a.csv": SPLIT}, lambda path: read_split(path, "from_file", 0)),
    "prepared samples": Loader("a.parquet", _samples, read_samples),
    "a spec": Loader(
        "here/a.yaml", {"a.yaml": b"title: A\n"}, lambda path: parse_yaml(read_text(path, path.name), path.name)
    ),
    "a paper's contents": Loader("fedtp/contents.csv", _copied("specs/fedtp/contents.csv", "contents.csv"), _contents),
    "a resolved table": Loader("table.json", _copied("stages/tables/*.json"), read_resolved),
    "records of runs": Loader("records.json", _copied("stages/records.json"), _record),
    "the state of a run": Loader("run.json", _board, Board.load),
    "published values": Loader("here/a.csv", {"a.csv": PUBLISHED}, _published),
}
