"""Images with boxes: PASCAL VOC in miniature and one's own in its layout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.official import Files, failure, offline, plain, trust, write_files, write_tar

from pflcore.data.sample_files import read_samples, write_samples
from pflcore.data.samples import Boxes
from pflcore.datasets import DATASETS, Dataset, stand_in
from pflcore.datasets.voc import CLASSES, Voc2007, Voc2012, VocDetection, main_classes
from pflcore.errors import UserError

SIZE = 8
WIDTH, HEIGHT = 50, 40
TRAINVAL, TEST = "VOCtrainval_06-Nov-2007.tar", "VOCtest_06-Nov-2007.tar"
PART = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
VOC = Voc2007(size=SIZE)

Object = tuple[str, tuple[float, float, float, float], int | None]


def annotation(*objects: Object) -> bytes:
    """As the official ones, with a part of an object, which has a name and a box of its own."""
    text = f"<annotation>\n<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>\n"
    for label, box, difficult in objects:
        sides = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
        corners = "".join(f"<{key}>{value}</{key}>" for key, value in sides)
        flag = "" if difficult is None else f"<difficult>{difficult}</difficult>"
        text += f"<object><name>{label}</name>{flag}<bndbox>{corners}</bndbox>"
        text += f"{PART if label == 'person' else ''}</object>\n"
    return f"{text}</annotation>\n".encode()


OBJECTS: dict[str, list[Object]] = {
    "000005": [("chair", (1, 1, 10, 10), None), ("dog", (11, 5, 50, 40), 0)],
    "000007": [("car", (1, 1, 50, 40), 1), ("person", (2.5, 3, 20, 20), 0)],  # the largest is difficult
    "000009": [("horse", (10, 10, 10, 10), 1), ("sheep", (10, 10, 20, 20), 1)],  # all are
    "000001": [("tvmonitor", (0, 0, 51, 41), 0)],  # counted from 0
    "000002": [("train", (50, 40, 50, 40), 0)],
}
TRAIN, REST = ["000009", "000005", "000007"], ["000001", "000002"]  # lists have an order of their own


def files_of(year: int, **lists: list[str]) -> Files:
    """The files of one archive: images, annotations and lists, with a list of one class that is not used."""
    root = f"VOCdevkit/VOC{year}"
    names = sorted({name for split in lists.values() for name in split})
    files = {f"{root}/JPEGImages/{name}.jpg": plain((10 * int(name),) * 3, size=(WIDTH, HEIGHT)) for name in names}
    files |= {f"{root}/Annotations/{name}.xml": annotation(*OBJECTS[name]) for name in names}
    files |= {f"{root}/ImageSets/Main/{split}.txt": "\n".join(own).encode() for split, own in lists.items()}
    return files | {f"{root}/ImageSets/Main/dog_trainval.txt": b"000005  1\n"}


FILES = {TRAINVAL: files_of(2007, trainval=TRAIN, train=TRAIN[:1]), TEST: files_of(2007, test=REST)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    offline(monkeypatch)
    monkeypatch.setattr(Voc2007, "counts", (3, 2))
    monkeypatch.setattr(Voc2012, "counts", (3, 2))
    (tmp_path / "voc2007").mkdir()
    return tmp_path / "voc2007"


@pytest.fixture
def year(folder: Path) -> Path:
    """The unpacked folder of 2007 within the dataset's folder."""
    for files in FILES.values():
        write_files(folder, files)
    return folder / "VOCdevkit" / "VOC2007"


def assert_complete(dataset: Dataset, folder: Path, source: str) -> None:
    assert dataset.found(folder)
    samples = dataset.load(folder)
    assert samples.inputs.shape == (5, 3, SIZE, SIZE) and samples.shape == dataset.shape
    np.testing.assert_allclose(samples.inputs.mean((1, 2, 3)), [90, 50, 70, 10, 20], atol=2)
    assert samples.train.tolist() == [True] * 3 + [False] * 2
    assert [CLASSES[label] for label in samples.labels] == ["sheep", "dog", "person", "tvmonitor", "train"]
    boxes = samples.boxes
    assert boxes is not None and boxes.counts.tolist() == [2, 2, 2, 1, 1]
    words = ["horse", "sheep", "chair", "dog", "car", "person", "tvmonitor", "train"]
    assert [CLASSES[label] for label in boxes.labels] == words
    assert boxes.difficult.tolist() == [True, True, False, False, True, False, False, False]
    expected = [(9, 9, 10, 10), (9, 9, 20, 20), (0, 0, 10, 10), (10, 4, 50, 40), (0, 0, 50, 40)]
    expected += [(1.5, 2, 20, 20), (0, 0, 50, 40), (49, 39, 50, 40)]
    np.testing.assert_allclose(boxes.corners.astype(np.float64) * [WIDTH, HEIGHT, WIDTH, HEIGHT], expected, atol=1e-4)
    assert samples.source == source and samples.class_names == CLASSES and len(CLASSES) == 20


def test_official_archives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = failure(VOC, folder)
    assert message.startswith(f"{folder}: no data here") and f"put {TRAINVAL}" in message
    for name, files in FILES.items():
        write_tar(folder / name, {"VOCdevkit/VOC2006/Annotations/000005.xml": b"x", **files}, "w")
    assert failure(VOC, folder).startswith(f"{folder / TRAINVAL}: md5 is ")
    trust(monkeypatch)
    assert_complete(VOC, folder, f"{TRAINVAL}, {TEST}")
    later = folder.parent / "voc2012"
    write_tar(later / "VOCtrainval_11-May-2012.tar", files_of(2012, train=TRAIN, val=REST, trainval=TRAIN + REST), "w")
    assert_complete(Voc2012(size=SIZE), later, "VOCtrainval_11-May-2012.tar")
    (folder / TRAINVAL).write_bytes(b"not a tar")
    assert failure(VOC, folder).startswith(f"{folder / TRAINVAL}: cannot be read (")


@pytest.mark.parametrize("inside", ["VOCdevkit/VOC2007", "VOC2007", "."])
def test_2007_unpacked(folder: Path, inside: str) -> None:
    for files in FILES.values():
        write_files(folder / inside, {name.removeprefix("VOCdevkit/VOC2007/"): data for name, data in files.items()})
    assert_complete(VOC, folder, inside if inside != "." else "a folder of VOC's layout")


def test_voc_detection_trains_on_both_years(folder: Path, year: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert VocDetection.counts == (5_011 + 5_717, 5_823)
    monkeypatch.setattr(VocDetection, "counts", (4, 1))
    both, dataset = folder.parent / "voc_detection", VocDetection(size=SIZE)
    assert not dataset.found(both)
    write_files(folder.parent / "voc2012", files_of(2012, train=["000002"], val=["000001"]))
    assert dataset.found(both) and [part.what for part in dataset.data_files(both)] == ["voc2007", "voc2012"]
    samples = dataset.load(both)
    assert [CLASSES[label] for label in samples.labels] == ["sheep", "dog", "person", "train", "tvmonitor"]
    assert samples.train.tolist() == [True] * 4 + [False]
    assert samples.source == "VOCdevkit/VOC2007, VOCdevkit/VOC2012"


def test_documents_with_entities_are_refused(folder: Path, year: Path) -> None:
    path = year / "Annotations/000007.xml"
    for entity in ('"aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"', 'SYSTEM "file:///etc/passwd"'):
        path.write_text(f"<!DOCTYPE a [<!ENTITY a {entity}>]><annotation>&a;</annotation>")
        message = failure(VOC, folder)
        assert message.startswith(f"{path}: cannot be read (DTDForbidden") and "<" not in message


def own(**options: Any) -> Dataset:
    return DATASETS.create("detection_folder", **{"path": "cells", "size": 8, **options})


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    files: Files = {
        "Annotations/a.xml": annotation(("red", (1, 1, 25, 40), 0), ("white", (26, 1, 50, 10), 0)),
        "Annotations/b.xml": annotation(("white", (11, 11, 30, 30), 0)),
    }
    files |= {f"JPEGImages/{name}.jpg": plain((9, 9, 9), size=(WIDTH, HEIGHT)) for name in "ab"}
    write_files(tmp_path / "cells", files | {"ImageSets/Main/trainval.txt": b"a", "ImageSets/Main/test.txt": b"b"})
    samples = own().load(tmp_path / "detection_folder")
    write_samples(tmp_path / "data.parquet", samples)
    assert samples.class_names == ("red", "white") and samples.source == "images in cells/"
    again = read_samples(tmp_path / "data.parquet").boxes
    assert again is not None
    targets = again.padded()
    assert targets.shape == (2, 2, 6) and targets.dtype == np.float32
    np.testing.assert_allclose(targets[0], [[0, 0, 0, 0.5, 1, 0], [1, 0.5, 0, 1, 0.25, 0]])
    np.testing.assert_allclose(targets[1], [[1, 0.2, 0.25, 0.6, 0.75, 0], [-1, 0, 0, 0, 0, 0]])
    options: dict[str, Any]
    for options in ({"train_list": "../x"}, {"test_list": ""}, {"class_list": ("a", "a")}):
        with pytest.raises(UserError, match=rf"^detection_folder\.{next(iter(options))} = "):
            own(**options)


def test_the_class_that_an_image_counts_for() -> None:
    corners = [
        *([0, 0, 0.9, 0.9], [0, 0, 0.2, 0.2], [0.5, 0.5, 0.7, 0.7]),
        *([0, 0, 0.8, 0.8], [0, 0, 0.1, 0.1]),  # the larger is difficult
        *([0, 0, 0.3, 0.3], [0, 0, 0.4, 0.4]),  # both are
    ]
    boxes = Boxes(
        counts=np.array([3, 2, 2]),
        labels=np.array([0, 1, 1, 2, 0, 0, 2]),
        corners=np.array(corners, np.float32),
        difficult=np.array([0, 0, 0, 1, 0, 1, 1], bool),
    )
    assert main_classes(boxes, "largest").tolist() == [0, 0, 2]
    assert main_classes(boxes, "frequent").tolist() == [1, 0, 0]
    assert main_classes(boxes, "rarest").tolist() == [1, 0, 2]


def test_a_stand_in_shows_what_its_boxes_say() -> None:
    samples = stand_in(own(size=32), 40, 10)
    boxes = samples.boxes
    assert boxes is not None and set(boxes.counts.tolist()) == {1, 2, 3}
    assert main_classes(boxes, "largest").tolist() == samples.labels.tolist()
    first = int(np.flatnonzero((boxes.counts == 1) & (samples.labels == 0))[0])  # class 0 is a red box
    left, top, right, bottom = 32 * boxes.corners[int(boxes.counts[:first].sum())]
    assert samples.inputs[first][:, int((top + bottom) / 2), int((left + right) / 2)].tolist() == [255, 0, 0]


def test_real_data_of_the_same_layout() -> None:
    """The blood cells of BCCD: boxes whose corners coincide, and counts that its authors publish."""
    root = Path(os.environ.get("PFL_DATA", "/nonexistent")) / "BCCD"
    dataset = DATASETS.create("voc2007", class_list=("RBC", "WBC", "Platelets"), size=32)
    if not dataset.found(root):
        pytest.skip("no real data")
    samples = dataset.load(root)
    assert samples.boxes is not None and (samples.train.sum(), len(samples)) == (292, 364)
    assert np.bincount(samples.boxes.labels).tolist() == [4155, 372, 361]
