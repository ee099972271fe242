"""Datasets: what holds for every entry, generated stand-ins, the embedded digits, and the recipes of the docs."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from support.official import plain, table, write_files

from pflcore.datasets import DATASETS, stand_in
from pflcore.datasets._base import DOWNLOAD, FOLDER, INCLUDED
from pflcore.partitions import PARTITIONS, partition


@pytest.mark.parametrize("name", DATASETS.names())
def test_the_facts_of_an_entry(name, tmp_path):
    dataset = DATASETS.create(name)
    assert dataset.licence and dataset.download_size
    assert dataset.access in (INCLUDED, DOWNLOAD, FOLDER)
    parts = dataset.data_files(Path("data", name))
    assert all(part.patterns for part in parts)
    # What a run downloads, `pfl fetch` can download before.
    assert all(part.source and part.source.direct for part in parts if part.automatic)
    assert dataset.access != DOWNLOAD or all(part.automatic for part in parts)
    assert dataset.access == INCLUDED or dataset.homepage or dataset.counts is None
    assert len(dataset.class_names) == dataset.classes == len(set(dataset.class_names))
    assert len(dataset.shape) in {"text": (1,), "images": (3,), "arrays": (1, 2, 3)}[dataset.kind]
    assert min(dataset.shape) > 0 or (dataset.kind == "arrays" and not dataset.classes)
    assert len(dataset.mean) == len(dataset.std) == (dataset.shape[0] if dataset.kind == "images" else 0)
    assert all(0 < value < 1 for value in dataset.mean + dataset.std)
    assert dataset.available(tmp_path / name) == (dataset.access == INCLUDED) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", DATASETS.names())
def test_a_stand_in_is_learnable_but_not_trivially(name):
    dataset = DATASETS.create(name, **DATASETS.get(name).smoke)
    count = dataset.classes or 10
    samples = stand_in(dataset, 40 * count, 10 * count)
    train, test = samples.train, ~samples.train
    assert samples.shape == tuple(side or 16 for side in dataset.shape) and samples.kind == dataset.kind
    assert samples.classes == count and samples.name == name
    assert (train.sum(), test.sum()) == (40 * count, 10 * count) and set(samples.attributes) == set(dataset.attributes)
    small = stand_in(dataset, 2 * count, count + 1)
    assert (stand_in(dataset, 2 * count, count + 1, seed=1).inputs != small.inputs).any()
    black = stand_in(dataset, 2 * count, count + 1, with_images=False)
    assert black.shape == small.shape and black.labels.tolist() == small.labels.tolist()
    if samples.kind == "text":  # the character after another one, from the pairs seen in training
        before, after = samples.inputs[:, -2].astype(int), samples.labels
        seen = np.zeros((count, count))
        np.add.at(seen, (before[train], after[train]), 1)
        assert 0.25 < (seen.argmax(1)[before[test]] == after[test]).mean() < 0.6  # one of three is right
        return
    assert (np.bincount(samples.labels[train]) == 40).all()
    x = samples.inputs.reshape(len(samples), -1).astype(np.float32)
    centres = np.array([x[train & (samples.labels == label)].mean(0) for label in range(count)])
    distance = (x[test] ** 2).sum(1)[:, None] - 2 * x[test] @ centres.T + (centres**2).sum(1)
    assert min(5 / count, 0.7) < (distance.argmin(1) == samples.labels[test]).mean() < 0.995
    assert samples.is_arrays or (90 < samples.inputs.mean() < 165 and 20 < samples.inputs.std() < 70)


def test_digits_are_scaled_and_split_by_class(tmp_path):
    digits = DATASETS.create("digits")
    samples = digits.load(tmp_path / "absent")
    assert len(samples) == 1797 and samples.inputs.min() == 0 and samples.inputs.max() == 255
    train, test = np.bincount(samples.labels[samples.train]), np.bincount(samples.labels[~samples.train])
    assert (np.abs(test / (train + test) - 0.2) < 0.003).all()
    values = samples.inputs[samples.train] / 255
    assert digits.mean == (round(values.mean(), 4),) and digits.std == (round(values.std(), 4),)
    np.random.seed(5)
    np.testing.assert_array_equal(digits.load(tmp_path).train, samples.train)


# --- recipes of docs/datasets.md, each on a miniature of the public files that it is about ---------------------------

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
    (files, clients, count, expected), recipes = CASES[recipe], yaml.safe_load(RECIPES)
    chosen, scheme = recipes[recipe]["dataset"], recipes[recipe]["partition"]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}
    write_files(tmp_path / "data" / options["path"].removesuffix("/sorted"), files)
    if recipe == "Tiny-ImageNet, folders":
        monkeypatch.chdir(tmp_path)
        exec(compile(SORTING, "docs/datasets.md", "exec"), {})
    samples = DATASETS.create(options.pop("name"), **options | {"size": 8}).load(tmp_path / "data" / "own")
    dealt = partition(PARTITIONS.create(scheme.pop("name"), **scheme), samples, clients, 1)
    sizes = [len(train) + len(test) for train, test in zip(dealt.train, dealt.test, strict=True)]
    assert sizes == expected if expected else sum(sizes) == count
    assert len(samples) == count and CASES.keys() == recipes.keys()
