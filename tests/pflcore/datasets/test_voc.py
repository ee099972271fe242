"""PASCAL VOC and folders of its layout: in miniature, whole and damaged, and what an image counts for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.official import Files, Trust, failure, no_downloads, plain, trusting, write_files, write_tar

from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.data.samples import Boxes
from pflcore.datasets import DATASETS, Dataset, stand_in, voc2007, voc2012, voc_detection
from pflcore.datasets._main_classes import main_classes
from pflcore.datasets._voc import CLASSES
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition

# --- voc -------------------------------------------------------------------------------------------------------------


SIZE = 8
WIDTH, HEIGHT = 50, 40
TRAINVAL, TEST = "VOCtrainval_06-Nov-2007.tar", "VOCtest_06-Nov-2007.tar"

Object = tuple[str, tuple[float, float, float, float], int]


def annotation(name: str, objects: list[Object]) -> str:
    """As the official ones, with a part of an object, which has a name and a box of its own."""
    parts = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    return (
        f"<annotation>\n\t<folder>VOC2007</folder>\n\t<filename>{name}.jpg</filename>\n\t<size>\n\t\t<width>{WIDTH}</width>"
        f"<height>{HEIGHT}</height><depth>3</depth></size>\n\t<segmented>0</segmented>\n"
        + "".join(
            f"\t<object>\n\t\t<name>{label}</name>\n\t\t<pose>Left</pose>\n\t\t<truncated>1</truncated>\n"
            f"\t\t<difficult>{difficult}</difficult>\n\t\t<bndbox>\n\t\t\t<xmin>{box[0]}</xmin>\n"
            f"\t\t\t<ymin>{box[1]}</ymin>\n\t\t\t<xmax>{box[2]}</xmax>\n\t\t\t<ymax>{box[3]}</ymax>\n\t\t</bndbox>\n"
            f"{parts if label == 'person' else ''}\t</object>\n"
            for label, box, difficult in objects
        )
        + "</annotation>\n"
    )


OBJECTS: dict[str, list[Object]] = {
    "000005": [("chair", (1, 1, 10, 10), 0), ("dog", (11, 5, 50, 40), 0)],
    "000007": [("car", (1, 1, 50, 40), 1), ("person", (2.5, 3, 20, 20), 0)],  # the largest is difficult
    "000009": [("horse", (10, 10, 10, 10), 1), ("sheep", (10, 10, 20, 20), 1)],  # all are
    "000001": [("tvmonitor", (0, 0, 51, 41), 0)],  # counted from 0
    "000002": [("train", (50, 40, 50, 40), 0)],
}
TRAIN, REST = ["000009", "000005", "000007"], ["000001", "000002"]  # lists have an order of their own


def part(year: int, lists: dict[str, list[str]]) -> Files:
    """The files of one archive: images, annotations and lists, with lists of one class that are to be passed over."""
    root = f"VOCdevkit/VOC{year}"
    names = sorted({name for split in lists.values() for name in split})
    files = {f"{root}/JPEGImages/{name}.jpg": plain((10 * int(name),) * 3, size=(WIDTH, HEIGHT)) for name in names}
    files |= {f"{root}/Annotations/{name}.xml": annotation(name, OBJECTS[name]).encode() for name in names}
    files |= {
        f"{root}/ImageSets/Main/{split}.txt": "".join(f"{n}\n" for n in lines).encode()
        for split, lines in lists.items()
    }
    return files | {f"{root}/ImageSets/Main/dog_trainval.txt": b"000005  1\n"}


def files_2007() -> dict[str, Files]:
    return {
        TRAINVAL: part(2007, {"trainval": TRAIN, "train": TRAIN[:1], "val": TRAIN[1:]}),
        TEST: part(2007, {"test": REST}),
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    no_downloads(monkeypatch)
    monkeypatch.setattr(voc2007.Voc2007, "counts", (3, 2))
    monkeypatch.setattr(voc2012.Voc2012, "counts", (3, 2))
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


def refused(dataset: Dataset, folder: Path) -> str:
    """The error, which repeats nothing of a document."""
    message = failure(dataset, folder)
    assert "<" not in message
    return message


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    return trusting(monkeypatch, voc2007.Voc2007, voc2012.Voc2012)


@pytest.fixture
def voc() -> Dataset:
    return voc2007.Voc2007(size=SIZE)


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
    pixels = boxes.corners.astype(np.float64) * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    expected = [(9, 9, 10, 10), (9, 9, 20, 20), (0, 0, 10, 10), (10, 4, 50, 40), (0, 0, 50, 40)]
    expected += [(1.5, 2, 20, 20), (0, 0, 50, 40), (49, 39, 50, 40)]
    np.testing.assert_allclose(pixels, expected, atol=1e-4)
    assert samples.source == source and samples.class_names == CLASSES and len(CLASSES) == 20


def test_voc_2007_from_its_archives(voc: Dataset, folder: Path, trust: Trust, tmp_path: Path) -> None:
    for name, files in files_2007().items():
        write_tar(folder / name, {"VOCdevkit/VOC2006/Annotations/000005.xml": b"x", **files}, "w")
    trust(folder)
    assert_complete(voc, folder, f"{TRAINVAL}, {TEST}")
    assert sorted(path.name for path in folder.iterdir()) == [TEST, TRAINVAL]
    write_samples(tmp_path / "a.parquet", voc.load(folder))
    write_samples(tmp_path / "b.parquet", read_samples(tmp_path / "a.parquet"))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@pytest.mark.parametrize("inside", ["VOCdevkit/VOC2007", "VOC2007", "."])
def test_voc_2007_unpacked(voc: Dataset, folder: Path, inside: str) -> None:
    for files in files_2007().values():
        write_files(folder / inside, {name.removeprefix("VOCdevkit/VOC2007/"): data for name, data in files.items()})
    assert_complete(voc, folder, inside if inside != "." else "a folder of VOC's layout")


def test_voc_2012_takes_val_for_the_test_set(folder: Path, trust: Trust) -> None:
    dataset = voc2012.Voc2012(size=SIZE)
    files = part(2012, {"train": TRAIN, "val": REST, "trainval": TRAIN + REST})
    write_tar(folder / "VOCtrainval_11-May-2012.tar", files, "w")
    trust(folder)
    assert_complete(dataset, folder, "VOCtrainval_11-May-2012.tar")
    (folder / "VOCtrainval_11-May-2012.tar").unlink()
    write_files(folder, files)
    assert_complete(dataset, folder, "VOCdevkit/VOC2012")


def test_official_facts() -> None:
    assert sum(voc2007.Voc2007.counts or ()) == 9963 and sum(voc2012.Voc2012.counts or ()) == 11_540
    assert voc2007.Voc2007().expected == (5011, 4952) and voc2007.Voc2007(class_list=("a",)).expected is None


def test_other_classes(folder: Path) -> None:
    for files in files_2007().values():
        write_files(folder, {n: d.replace(b"dog", b"RBC").replace(b"000002\n", b"") for n, d in files.items()})
    names = ("RBC", *(name for name in CLASSES if name != "dog"))
    dataset = DATASETS.create("voc2007", class_list=names, size=SIZE)
    samples = dataset.load(folder)  # one image less than VOC
    assert len(samples) == 4 and samples.class_names == names and samples.labels.tolist()[1] == 0
    assert refused(DATASETS.create("voc2007", size=SIZE), folder) == (
        f"{folder}/VOCdevkit/VOC2007/Annotations/000005.xml: object 1: its class 'RBC' is unknown; put it into the "
        "option class_list"
    )
    for wrong in ((), ("a", "a")):
        with pytest.raises(UserError) as error:
            DATASETS.create("voc2007", class_list=wrong)
        assert str(error.value) == f"voc2007.class_list = {list(wrong)} must be distinct names, one at least"


@pytest.fixture
def unpacked(folder: Path) -> Path:
    """The folder of the year within the dataset's folder."""
    for files in files_2007().values():
        write_files(folder, files)
    return folder / "VOCdevkit" / "VOC2007"


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><annotation>&b;</annotation>'
EXTERNAL = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotation>&a;</annotation>'


@pytest.mark.parametrize("text", [BOMB, EXTERNAL, "<!DOCTYPE annotation><annotation/>"])
def test_documents_with_entities_are_refused(voc: Dataset, folder: Path, unpacked: Path, text: str) -> None:
    path = unpacked / "Annotations/000007.xml"
    path.write_text(text)
    assert refused(voc, folder) == f"{path}: refused: DTDForbidden; use an annotation without a DTD"


def without(key: str) -> str:
    text = annotation("000007", [("dog", (1, 1, 2, 2), 0)])
    start, stop = text.index(f"<{key}>"), text.index(f"</{key}>") + len(key) + 3
    return text[:start] + text[stop:]


def dogs(*boxes: tuple[float, float, float, float]) -> str:
    return annotation("000007", [("dog", box, 0) for box in boxes])


PUT = "; put the official annotation there"
OUTSIDE = " is not within the image of 50x40 pixels" + PUT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a readable annotation (no element found: line 1, column 0); put the official one there"),
        ("text", "not a readable annotation (syntax error: line 1, column 0); put the official one there"),
        (without("object"), "has no object; take the image off the lists in ImageSets/Main"),
        (without("name"), "object 0: name is missing" + PUT),
        (without("bndbox"), "object 0: bndbox/xmin is missing" + PUT),
        (without("ymax"), "object 0: bndbox/ymax is missing" + PUT),
        (dogs((1, 1, 2, float("nan"))), "object 0: bndbox/ymax is 'nan', not a number" + PUT),
        (dogs((20, 1, 10, 2)), "object 0: its box 20, 1, 10, 2 has no area; correct it"),
        (dogs((1, 1, 2, 2), (1, 1, 52, 40)), "object 1: its box 1, 1, 52, 40" + OUTSIDE),
        (dogs((-1, 1, 9, 40)), "object 0: its box -1, 1, 9, 40" + OUTSIDE),
        (dogs((51, 1, 51, 9)), "object 0: its box 51, 1, 51, 9" + OUTSIDE),
        (
            annotation("000007", [("dog", (1, 1, 2, 2), 0), ("unicorn", (1, 1, 2, 2), 0)]),
            "object 1: its class 'unicorn' is unknown; put it into the option class_list",
        ),
    ],
)
def test_faulty_annotations(voc: Dataset, folder: Path, unpacked: Path, text: str, message: str) -> None:
    path = unpacked / "Annotations/000007.xml"
    path.write_text(text)
    assert refused(voc, folder) == f"{path}: {message}"


def test_faulty_folders(voc: Dataset, folder: Path, unpacked: Path) -> None:
    lists = unpacked / "ImageSets/Main"
    good = (lists / "test.txt").read_text()
    for text, message in (
        ("", f"{lists}/test.txt: is empty; put the official list there"),
        (good + "000001\n", f"{lists}/test.txt: names an image twice; put the official list there"),
        ("../../x\n", f"{lists}/test.txt: '../../x' is not the name of an image; put the official list there"),
        (good + "000005\n", f"{unpacked}: 000005 is in both trainval and test; correct the lists"),
        (good + "000004\n", f"{unpacked}: Annotations/000004.xml is missing; put the complete data there"),
        (
            good[:7],
            f"{unpacked}: voc2007 has 3 training and 2 test samples, found 3 and 1; put the complete data there",
        ),
    ):
        (lists / "test.txt").write_text(text)
        assert refused(voc, folder) == message
    (lists / "test.txt").write_bytes(b"\xff\xfe")
    assert refused(voc, folder).startswith(f"{lists}/test.txt: not a text (")
    (lists / "test.txt").unlink()
    assert refused(voc, folder) == f"{unpacked}: ImageSets/Main/test.txt is missing; put the complete data there"
    (lists / "test.txt").write_text(good)
    picture = unpacked / "JPEGImages/000005.jpg"
    for data in (picture.read_bytes()[:300], b"not an image", b""):
        picture.write_bytes(data)
        assert refused(voc, folder).startswith(f"{picture}: not a readable image (")
    picture.unlink()
    assert refused(voc, folder) == f"{unpacked}: JPEGImages/000005.jpg is missing; put the complete data there"


def test_real_data_of_the_same_layout() -> None:
    """The blood cells of BCCD: boxes whose corners coincide, and counts that its authors publish."""
    root = Path(os.environ.get("PFL_DATA", "/nonexistent")) / "BCCD"
    dataset = DATASETS.create("voc2007", class_list=("RBC", "WBC", "Platelets"), size=32)
    if not dataset.found(root):
        pytest.skip("no real data")
    samples = dataset.load(root)
    assert (samples.train.sum(), (~samples.train).sum()) == (292, 72)
    assert samples.boxes is not None and np.bincount(samples.boxes.labels).tolist() == [4155, 372, 361]
    assert 150 < samples.inputs.mean() < 220
    corners = samples.boxes.corners
    assert ((corners[:, 2:] - corners[:, :2]) * (640, 480) > 0.99).all()  # one pixel at least


@pytest.mark.parametrize(("name", "boxes"), [("voc2007", 24_640), ("voc2012", 27_450)])
def test_real_data(name: str, boxes: int) -> None:
    root = Path(os.environ.get("PFL_DATA", "/nonexistent")) / name
    dataset = DATASETS.create(name, size=32)
    if not dataset.found(root):
        pytest.skip("no real data")
    samples = dataset.load(root)
    # The published numbers leave the difficult objects out.
    assert samples.boxes is not None and boxes in (len(samples.boxes.labels), int((~samples.boxes.difficult).sum()))


# --- detection data --------------------------------------------------------------------------------------------------


SIDE = 20


def boxes_of(*objects: tuple[str, int, int, int, int]) -> bytes:
    return (
        "<annotation>"
        + "".join(
            f"<object><name>{name}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax>"
            "</bndbox></object>"
            for name, a, b, c, d in objects
        )
        + "</annotation>"
    ).encode()


def a_folder(root: Path, lists: dict[str, dict[str, bytes]]) -> None:
    """A folder of VOC's layout: list → image → annotation."""
    files = {f"ImageSets/Main/{name}.txt": "\n".join(images).encode() for name, images in lists.items()}
    for images in lists.values():
        files |= {f"JPEGImages/{image}.jpg": plain((90, 90, 90), size=(SIDE, SIDE)) for image in images}
        files |= {f"Annotations/{image}.xml": xml for image, xml in images.items()}
    write_files(root, files)


def own(**options: object) -> Dataset:
    return DATASETS.create(
        "detection_folder", **{"path": "cells", "class_list": ("red", "white"), "size": 8, **options}
    )


def test_voc_detection_trains_on_2007_and_2012_and_tests_on_val_of_2012(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_downloads(monkeypatch)
    monkeypatch.setattr(voc_detection.VocDetection, "counts", (3, 1))
    dog = boxes_of(("dog", 1, 1, 5, 5))
    cat = boxes_of(("cat", 1, 1, 5, 5))
    a_folder(tmp_path / "voc2007" / "VOC2007", {"trainval": {"000001": dog, "000002": cat}, "test": {"000003": dog}})
    a_folder(tmp_path / "voc2012" / "VOC2012", {"train": {"2008_000001": cat}, "val": {"2008_000002": dog}})
    dataset = DATASETS.create("voc_detection", size=8)
    assert dataset.found(tmp_path / "voc_detection")
    samples = dataset.load(tmp_path / "voc_detection")
    assert [samples.class_names[label] for label in samples.labels] == ["dog", "cat", "cat", "dog"]
    assert samples.train.tolist() == [True, True, True, False]
    assert samples.source == "VOC2007, VOC2012"
    assert (voc2007.Voc2007.counts[0] + voc2012.Voc2012.counts[0], voc2012.Voc2012.counts[1]) == (10_728, 5_823)


def test_a_folder_of_ones_own_keeps_its_boxes_as_shares_and_through_parquet(tmp_path: Path) -> None:
    lists = {
        "trainval": {"a": boxes_of(("red", 1, 1, 10, 20), ("white", 11, 1, 20, 5))},
        "test": {"b": boxes_of(("white", 6, 6, 15, 15))},
    }
    a_folder(tmp_path / "cells", lists)
    samples = own().load(tmp_path / "detection_folder")
    write_samples(tmp_path / "data.parquet", samples)
    assert own(class_list=()).load(tmp_path / "detection_folder").class_names == ("red", "white")
    boxes = read_samples(tmp_path / "data.parquet").boxes
    assert boxes is not None
    np.testing.assert_allclose(boxes.corners, [[0, 0, 0.5, 1], [0.5, 0, 1, 0.25], [0.25, 0.25, 0.75, 0.75]])
    targets = boxes.padded()
    assert targets.shape == (2, 2, 6) and targets.dtype == np.float32
    np.testing.assert_allclose(targets[1], [[1, 0.25, 0.25, 0.75, 0.75, 0], [-1, 0, 0, 0, 0, 0]])


def test_the_class_that_an_image_counts_for() -> None:
    boxes = Boxes(
        counts=np.array([3, 2, 2]),
        labels=np.array([0, 1, 1, 2, 0, 0, 2]),
        corners=np.array(
            [
                *([0, 0, 0.9, 0.9], [0, 0, 0.2, 0.2], [0.5, 0.5, 0.7, 0.7]),
                *([0, 0, 0.8, 0.8], [0, 0, 0.1, 0.1]),  # the larger is difficult
                *([0, 0, 0.3, 0.3], [0, 0, 0.4, 0.4]),  # both are
            ],
            np.float32,
        ),
        difficult=np.array([0, 0, 0, 1, 0, 1, 1], bool),
    )
    assert main_classes(boxes, "largest").tolist() == [0, 0, 2]
    assert main_classes(boxes, "frequent").tolist() == [1, 0, 0]
    assert main_classes(boxes, "rarest").tolist() == [1, 0, 2]


def test_a_stand_in_shows_what_its_boxes_say_and_is_divided_by_the_largest(tmp_path: Path) -> None:
    samples = stand_in(own(size=32), 40, 10)
    boxes = samples.boxes
    assert boxes is not None and set(boxes.counts.tolist()) == {1, 2, 3}
    assert main_classes(boxes, "largest").tolist() == samples.labels.tolist()
    # Class 0 is a red box: red within, grey without.
    first = int(np.flatnonzero((boxes.counts == 1) & (samples.labels == 0))[0])
    left, top, right, bottom = 32 * boxes.corners[int(boxes.counts[:first].sum())]
    image = samples.inputs[first].astype(int)
    x, y = int((left + right) / 2), int((top + bottom) / 2)
    assert (image[0, y, x], image[1, y, x], image[2, y, x]) == (255, 0, 0)
    assert abs(int(image[:, 0, 0].mean()) - 110) < 40 or left < 1
    held = partition(PARTITIONS.create("dirichlet", alpha=0.5, min_samples=2), samples, 2, 0)
    write_assignment(tmp_path / "held.parquet", held)
    again = read_assignment(tmp_path / "held.parquet")
    assert sorted(np.concatenate(again.train).tolist()) == np.flatnonzero(samples.train).tolist()
    with pytest.raises(UserError):
        replace(samples, boxes=replace(boxes, corners=boxes.corners + 1))
