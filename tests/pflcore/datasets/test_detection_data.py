"""Datasets for detectors: both years of VOC as one, one's own folder, what images count for, and generated shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.official import no_downloads, plain, write_files

from pflcore.data.assignment_files import read_assignment, write_assignment
from pflcore.data.sample_files import read_samples, write_samples
from pflcore.data.samples import Boxes
from pflcore.datasets import DATASETS, Dataset, stand_in, voc2007, voc2012, voc_detection
from pflcore.datasets._main_classes import main_classes
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition

SIDE = 20


def annotation(*objects: tuple[str, int, int, int, int]) -> bytes:
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
    dog = annotation(("dog", 1, 1, 5, 5))
    cat = annotation(("cat", 1, 1, 5, 5))
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
        "trainval": {"a": annotation(("red", 1, 1, 10, 20), ("white", 11, 1, 20, 5))},
        "test": {"b": annotation(("white", 6, 6, 15, 15))},
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
