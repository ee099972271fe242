"""Images with boxes: PASCAL VOC in miniature and one's own in its layout."""

import numpy as np
import pytest
from support.mistakes import refuses
from support.official import failure, offline, plain, trust, write_files, write_tar

from pflcore.data.samples import Boxes
from pflcore.datasets import DATASETS, stand_in
from pflcore.datasets.voc import CLASSES, Voc2007, Voc2012, VocDetection, main_classes

SIZE = 8
WIDTH, HEIGHT = 50, 40
TRAINVAL, TEST = "VOCtrainval_06-Nov-2007.tar", "VOCtest_06-Nov-2007.tar"
PART = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
VOC = Voc2007(size=SIZE)


def annotation(objects):
    """As the official ones, with a part of an object, which has a name and a box of its own."""
    text = ""
    for label, box, difficult in objects:
        sides = "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>".format(*box)
        rest = "" if difficult is None else f"<difficult>{difficult}</difficult>"
        rest += PART if label == "person" else ""
        text += f"<object><name>{label}</name><bndbox>{sides}</bndbox>{rest}</object>\n"
    return f"<annotation>\n{text}</annotation>\n".encode()


OBJECTS = {
    "000005": [("chair", (1, 1, 10, 10), None), ("dog", (11, 5, 50, 40), 0)],
    "000007": [("car", (1, 1, 50, 40), 1), ("person", (2.5, 3, 20, 20), 0)],  # the largest is difficult
    "000009": [("horse", (10, 10, 10, 10), 1), ("sheep", (10, 10, 20, 20), 1)],  # all are
    "000001": [("tvmonitor", (0, 0, 51, 41), 0)],  # counted from 0
    "000002": [("train", (50, 40, 50, 40), 0)],
}
TRAIN, REST = ["000009", "000005", "000007"], ["000001", "000002"]  # lists have an order of their own


def files_of(root, objects=OBJECTS, **lists):
    """The files of one archive: images, annotations and lists, with a list of one class that is not used."""
    files = {f"{root}/ImageSets/Main/dog_trainval.txt": b"000005  1\n"}
    for split, names in lists.items():
        files[f"{root}/ImageSets/Main/{split}.txt"] = "\n".join(names).encode()
        for name in names:
            grey = 10 * (int(name) if name.isdecimal() else 1)
            files[f"{root}/JPEGImages/{name}.jpg"] = plain((grey,) * 3, size=(WIDTH, HEIGHT))
            files[f"{root}/Annotations/{name}.xml"] = annotation(objects[name])
    return files


ROOT = "VOCdevkit/VOC2007"
ARCHIVES = {TRAINVAL: files_of(ROOT, trainval=TRAIN, train=TRAIN[:1]), TEST: files_of(ROOT, test=REST)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    offline(monkeypatch)
    for cls in (Voc2007, Voc2012):
        monkeypatch.setattr(cls, "counts", (3, 2))
    (tmp_path / "voc2007").mkdir()
    return tmp_path / "voc2007"


def assert_complete(dataset, folder, source):
    assert dataset.available(folder)
    samples = dataset.load(folder)
    assert samples.inputs.shape == (5, 3, SIZE, SIZE) and samples.shape == dataset.shape
    np.testing.assert_allclose(samples.inputs.mean((1, 2, 3)), [90, 50, 70, 10, 20], atol=2)
    assert samples.train.tolist() == [True] * 3 + [False] * 2
    assert [CLASSES[label] for label in samples.labels] == ["sheep", "dog", "person", "tvmonitor", "train"]
    boxes = samples.boxes
    assert boxes.counts.tolist() == [2, 2, 2, 1, 1]
    words = ["horse", "sheep", "chair", "dog", "car", "person", "tvmonitor", "train"]
    assert [CLASSES[label] for label in boxes.labels] == words
    assert boxes.difficult.tolist() == [True, True, False, False, True, False, False, False]
    expected = [(9, 9, 10, 10), (9, 9, 20, 20), (0, 0, 10, 10), (10, 4, 50, 40), (0, 0, 50, 40)]
    expected += [(1.5, 2, 20, 20), (0, 0, 50, 40), (49, 39, 50, 40)]
    np.testing.assert_allclose(boxes.corners.astype(np.float64) * [WIDTH, HEIGHT, WIDTH, HEIGHT], expected, atol=1e-4)
    assert samples.source == source and samples.class_names == CLASSES and len(CLASSES) == 20


def test_official_archives_and_what_they_unpack_to(folder, monkeypatch):
    message = failure(VOC, folder)
    assert message.startswith(f"{folder}: no data here") and f"put {TRAINVAL}" in message
    for name, files in ARCHIVES.items():
        write_tar(folder / name, {"VOCdevkit/VOC2006/Annotations/000005.xml": b"x", **files}, "w")
    assert failure(VOC, folder).startswith(f"{folder / TRAINVAL}: md5 is ")
    trust(monkeypatch)
    assert_complete(VOC, folder, f"{TRAINVAL}, {TEST}")
    later = folder.parent / "voc2012"
    files = files_of("VOCdevkit/VOC2012", train=TRAIN, val=REST, trainval=TRAIN + REST)
    write_tar(later / "VOCtrainval_11-May-2012.tar", files, "w")
    assert_complete(Voc2012(size=SIZE), later, "VOCtrainval_11-May-2012.tar")
    (folder / TRAINVAL).write_bytes(b"not a tar")
    assert failure(VOC, folder).startswith(f"{folder / TRAINVAL}: cannot be read (")
    for inside in ("VOCdevkit/VOC2007", "VOC2007", "."):
        unpacked = folder.parent / f"in {inside}".replace("/", " ")
        for path, data in (ARCHIVES[TRAINVAL] | ARCHIVES[TEST]).items():
            write_files(unpacked, {path.replace("VOCdevkit/VOC2007", inside): data})
        assert_complete(VOC, unpacked, inside if inside != "." else "a folder of VOC's layout")


def test_voc_detection_trains_on_both_years(folder, monkeypatch):
    assert VocDetection.counts == (5_011 + 5_717, 5_823)
    monkeypatch.setattr(VocDetection, "counts", (4, 1))
    root, dataset = folder.parent / "voc_detection", VocDetection(size=SIZE)
    write_files(folder, ARCHIVES[TRAINVAL] | ARCHIVES[TEST])
    assert not dataset.available(root)
    write_files(folder.parent / "voc2012", files_of("VOCdevkit/VOC2012", train=["000002"], val=["000001"]))
    assert dataset.available(root) and [part.description for part in dataset.data_files(root)] == [
        TRAINVAL,
        "VOCtrainval_11-May-2012.tar",
    ]
    samples = dataset.load(root)
    assert [CLASSES[label] for label in samples.labels] == ["sheep", "dog", "person", "train", "tvmonitor"]
    assert samples.train.tolist() == [True] * 4 + [False]
    assert samples.source == "VOCdevkit/VOC2007, VOCdevkit/VOC2012"


def create(**options):
    return DATASETS.create("detection_folder", **{"path": "cells", "size": 32, **options})


def test_a_folder_of_ones_own(tmp_path):
    two = [("red", (1, 1, 25, 40), 0), ("white", (26, 1, 50, 10), 0)]
    objects = {"a (1)": two, "b": [("white", (11, 11, 30, 30), 0)]}
    write_files(tmp_path, files_of("cells", objects, trainval=["a (1)"], test=["b"]))
    samples = create().load(tmp_path / "detection_folder")
    assert samples.class_names == ("red", "white") and samples.source == "images in cells/"
    marked = {"trainval.txt": b"\xef\xbb\xbfa (1)", "test.txt": b"\xef\xbb\xbfb\r\n"}  # by byte order marks
    write_files(tmp_path / "cells/ImageSets/Main", marked)
    assert create().load(tmp_path / "detection_folder").labels.tolist() == samples.labels.tolist()
    write_files(tmp_path / "cells/ImageSets/Main", {"trainval.txt": b"b", "test.txt": b"\na (1) \n"})
    assert "labels without a training object: 'red'" in failure(create(), tmp_path / "detection_folder")
    targets = samples.boxes.padded()
    assert targets.shape == (2, 2, 6) and targets.dtype == np.float32
    np.testing.assert_allclose(targets[0], [[0, 0, 0, 0.5, 1, 0], [1, 0.5, 0, 1, 0.25, 0]])
    np.testing.assert_allclose(targets[1], [[1, 0.2, 0.25, 0.6, 0.75, 0], [-1, 0, 0, 0, 0, 0]])
    for options in ({"train_list": "../x"}, {"test_list": ""}, {"class_list": ("a", "a")}):
        refuses(rf"^detection_folder\.{next(iter(options))} = ", create, **options)


def test_the_class_that_an_image_counts_for_also_in_a_stand_in():
    corners = [
        *([0, 0, 0.9, 0.9], [0, 0, 0.2, 0.2], [0.5, 0.5, 0.7, 0.7]),
        *([0, 0, 0.8, 0.8], [0, 0, 0.1, 0.1]),  # the larger is difficult
        *([0, 0, 0.3, 0.3], [0, 0, 0.4, 0.4]),  # both are
    ]
    difficult = np.array([0, 0, 0, 1, 0, 1, 1], bool)
    boxes = Boxes(np.array([3, 2, 2]), np.array([0, 1, 1, 2, 0, 0, 2]), np.array(corners, np.float32), difficult)
    expected = {"largest": [0, 0, 2], "frequent": [1, 0, 0], "rarest": [1, 0, 2]}
    assert {rule: main_classes(boxes, rule).tolist() for rule in expected} == expected
    # A stand-in shows what its boxes say.
    samples = stand_in(create(), 40, 10)
    boxes = samples.boxes
    assert set(boxes.counts.tolist()) == {1, 2, 3} and (main_classes(boxes, "largest") == samples.labels).all()
    first = int(np.flatnonzero((boxes.counts == 1) & (samples.labels == 0))[0])  # class 0 is a red box
    x1, y1, x2, y2 = 32 * boxes.corners[int(boxes.counts[:first].sum())]
    assert samples.inputs[first][:, int((y1 + y2) / 2), int((x1 + x2) / 2)].tolist() == [255, 0, 0]
