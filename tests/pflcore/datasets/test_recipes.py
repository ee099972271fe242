"""The recipes of docs/datasets.md, each on a miniature of the public files that it is about."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from support.official import plain, table, write_files

from pflcore.datasets import DATASETS
from pflcore.partitions import PARTITIONS, partition

TEXT = (Path(__file__).parents[3] / "docs/datasets.md").read_text(encoding="utf-8")
RECIPES = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[1])
SORTING = re.search(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[1]
GREY = [plain((value,) * 3, "PNG") for value in range(0, 240, 2)]
NAMES = [f"class {number}" for number in range(3)]


def parquet(split, count, start=0, label=None, names=NAMES, **columns):
    """Return a file of so many images by its name; labels are 0, 1, 2, 0, … unless they are given by their column."""
    labels = label or {"label": pa.array(np.arange(count) % 3)}
    return {f"{split}-00000-of-00001.parquet": table(GREY[start : start + count], names, **labels, **columns)}


def folders(*places):
    return {f"{place}/{number}.png": GREY[number] for place in places for number in range(8)}


WRITERS, FACES = ["f0000_14"] * 30 + ["f0001_41"] * 24 + ["f0002_01"] * 9, [[9] * 8 + [7] * 6, [3] * 5, [4] * 7]
TINY = {f"train/n0{label}/images/n0{label}_{n}.JPEG": GREY[n] for label in (1, 2) for n in range(30)}
TINY |= {f"val/images/val_{n}.JPEG": GREY[n] for n in range(24)} | {"train/n01/n01_boxes.txt": b"", "wnids.txt": b""}
TINY["val/val_annotations.txt"] = "".join(f"val_{n}.JPEG\tn0{1 + n % 2}\t0\t0\t9\t9\n" for n in range(24)).encode()
CASES = {  # the files in the recipe's folder; clients; samples; those of each client, where the data alone decide
    "FEMNIST": (
        parquet("train", 63, label={"character": [n % 62 for n in range(63)]}, names=None, writer_id=WRITERS),
        *(2, 63, [30, 24]),
    ),
    "CelebA": (
        {
            name: file
            for split, faces in zip(("train", "valid", "test"), FACES, strict=True)
            for name, file in parquet(
                split, len(faces), label={"Smiling": [n % 3 > 0 for n in range(len(faces))]}, celeb_id=faces
            ).items()
        },
        *(4, 26, [5, 7, 6, 8]),
    ),
    "PACS": (parquet("train", 120, domain=["cartoon"] * 60 + ["sketch"] * 60), 4, 120, None),
    "PACS, folders": (
        folders(*(f"{domain}/{kind}" for domain in ("cartoon", "sketch") for kind in "abcde")),
        2,
        80,
        None,
    ),
    "Camelyon17": (
        parquet("train", 14, center=[0] * 6 + [3] * 8)
        | parquet("validation", 7, center=[1] * 7)
        | parquet("test", 9, center=[2] * 9),
        *(4, 30, [6, 7, 9, 8]),
    ),
    "Tiny-ImageNet": (parquet("train", 90) | parquet("valid", 30, 90), 2, 120, None),
    "Tiny-ImageNet, folders": (TINY, 2, 84, None),
    "CINIC-10": (parquet("train", 60) | parquet("validation", 30, 60) | parquet("test", 30, 90), 3, 90, None),
}


@pytest.mark.parametrize("recipe", CASES)
def test_a_recipe_reads_the_public_files(recipe, tmp_path, monkeypatch):
    assert CASES.keys() == RECIPES.keys()
    files, clients, count, held = CASES[recipe]
    chosen, scheme = ({**RECIPES[recipe][part]} for part in ("dataset", "partition"))
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}
    write_files(tmp_path / "data" / options["path"].removesuffix("/sorted"), files)
    if recipe == "Tiny-ImageNet, folders":
        monkeypatch.chdir(tmp_path)
        exec(compile(SORTING, "docs/datasets.md", "exec"), {})
    samples = DATASETS.create(options.pop("name"), **{**options, "size": 8}).load(tmp_path / "data" / "own")
    assert len(samples) == count
    dealt = partition(PARTITIONS.create(scheme.pop("name"), **scheme), samples, clients, 1)
    sizes = [len(train) + len(test) for train, test in zip(dealt.train, dealt.test, strict=True)]
    assert sizes == held if held else sum(sizes) == count
