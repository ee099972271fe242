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
RECIPES, SORTING = (re.search(rf"^```{kind}\n(.*?)^```", TEXT, re.M | re.S)[1] for kind in ("yaml", "python"))
GREY, THREE = [plain((value,) * 3, "PNG") for value in range(0, 240, 2)], np.arange(120) % 3


def parquet(label="label", labels=THREE, **splits):
    """Return files as exports name them, given a column, by its name and values, of each split."""
    files, start = {}, 0
    for split, (name, values) in splits.items():
        stop = start + len(values)
        columns = {label: pa.array(labels[start:stop]), name: pa.array(values)}
        files[f"{split}-00000-of-00001.parquet"], start = table(GREY[start:stop], **columns), stop
    return files


WRITERS = ["f0_14"] * 30 + ["f1_41"] * 24 + ["f2_01"] * 9
FACES = {"train": ("celeb_id", [9] * 8 + [7] * 6), "valid": ("celeb_id", [3] * 5), "test": ("celeb_id", [4] * 7)}
CENTRES = {"train": ("center", [0] * 6 + [3] * 8), "validation": ("center", [1] * 7), "test": ("center", [2] * 9)}
PLACES = [f"{domain}/{kind}" for domain in ("cartoon", "sketch") for kind in "abcde"]
TINY = {f"train/n0{label}/images/{n}.JPEG": GREY[n] for label in (1, 2) for n in range(30)}
TINY |= {f"val/images/val_{n}.JPEG": GREY[n] for n in range(24)} | {"train/n01/n01_boxes.txt": b"", "wnids.txt": b""}
TINY["val/val_annotations.txt"] = "".join(f"val_{n}.JPEG\tn0{1 + n % 2}\t0\t0\t9\t9\n" for n in range(24)).encode()
CASES = {  # files in the recipe's folder; clients; samples; those of each client, where the data alone decide
    "FEMNIST": (parquet("character", np.arange(120) % 62, train=("writer_id", WRITERS)), 2, 63, [30, 24]),
    "CelebA": (parquet("Smiling", THREE > 0, **FACES), 4, 26, [5, 7, 6, 8]),
    "PACS": (parquet(train=("domain", ["cartoon"] * 60 + ["sketch"] * 60)), 4, 120, None),
    "PACS, folders": ({f"{place}/{n}.png": GREY[n] for place in PLACES for n in range(8)}, 2, 80, None),
    "Camelyon17": (parquet(**CENTRES), 4, 30, [6, 7, 9, 8]),
    "Tiny-ImageNet": (parquet(train=("a", range(90)), valid=("a", range(30))), 2, 120, None),
    "Tiny-ImageNet, folders": (TINY, 2, 84, None),
    "CINIC-10": (parquet(train=("a", range(60)), validation=("a", range(30)), test=("a", range(30))), 3, 90, None),
}


@pytest.mark.parametrize("recipe", CASES)
def test_a_recipe_reads_the_public_files(recipe, tmp_path, monkeypatch):
    (files, clients, count, held), recipes = CASES[recipe], yaml.safe_load(RECIPES)
    chosen, scheme = recipes[recipe]["dataset"], recipes[recipe]["partition"]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}
    write_files(tmp_path / "data" / options["path"].removesuffix("/sorted"), files)
    if recipe == "Tiny-ImageNet, folders":
        monkeypatch.chdir(tmp_path)
        exec(compile(SORTING, "docs/datasets.md", "exec"), {})
    samples = DATASETS.create(options.pop("name"), **options | {"size": 8}).load(tmp_path / "data" / "own")
    dealt = partition(PARTITIONS.create(scheme.pop("name"), **scheme), samples, clients, 1)
    sizes = [len(train) + len(test) for train, test in zip(dealt.train, dealt.test, strict=True)]
    assert len(samples) == count and (sizes == held if held else sum(sizes) == count) and CASES.keys() == recipes.keys()
