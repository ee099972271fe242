"""Float arrays from tables, NumPy's files and UCI HAR: what is read, and what is refused."""

import re
import shutil
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.loaders import har_files
from support.mistakes import line_of, refuses
from support.official import write_files, write_zip

from pflcore.datasets import DATASETS
from pflcore.datasets.har import Har
from pflcore.errors import UserError

TABLE = pd.DataFrame(
    {
        "acc": [0.5, -2.0, 1e3, 4.0],
        "on": [True, False, False, True],
        "what": ["walk", "sit", "walk", "sit"],
        "person": [10, 2, 10, 2],
        "split": ["train", "train", "test", "test"],
        "day": ["Monday", "Monday", None, "Friday"],
    },
    index=[7, 3, 9, 4],
)
OWN = {"label": "what", "attribute_columns": ("person",)}
SIGNALS = np.arange(24.0).reshape(4, 2, 3)
LABELS = np.array([1, 0, 1, 0])


def load(folder, name, **options):
    return DATASETS.create(name, **options).load(folder)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_gives_numbers_labels_sides_and_attributes(tmp_path, suffix):
    write = TABLE.to_csv if suffix == "csv" else TABLE.to_parquet
    write(tmp_path / f"a.{suffix}")  # with its index
    samples = load(tmp_path, "array_table", split="split", **OWN)
    assert samples.inputs.tolist() == [[0.5, 1], [-2, 0], [1000, 0], [4, 1]] and samples.standardise
    assert samples.class_names == ("sit", "walk") and samples.labels.tolist() == [1, 0, 1, 0]
    assert samples.train.tolist() == [True, True, False, False] and samples.source == f"a.{suffix} (without day)"
    person = samples.attributes["person"]
    assert person.names == ("2", "10") and person.values.tolist() == [1, 0, 1, 0]
    (tmp_path / f"b.{suffix}").touch()
    chosen = load(tmp_path, "array_table", file=f"a.{suffix}", columns=("on", "acc"), standardise=False, **OWN)
    assert chosen.inputs[:, 1].tolist() == [0.5, -2, 1000, 4] and chosen.train.all() and not chosen.standardise
    refuses(rf": a\.{suffix}, b\.{suffix}; say which by the option 'file'$", load, tmp_path, "array_table", **OWN)
    with pytest.raises(UserError, match=rf"a\.{suffix}: 'path' is the folder of the data, and 'file' the name in it"):
        load(tmp_path, "array_table", path=f"{tmp_path.name}/a.{suffix}", **OWN)


def test_a_column_of_lists_is_an_embedding(tmp_path):
    table = pd.DataFrame({"e": [[1.5, 2], [3, 4], [5, 6.5]], "label": pd.Categorical(["u", "v", "u"]), "n": [7, 8, 9]})
    table.to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path, "array_table").inputs.tolist() == [[1.5, 2, 7], [3, 4, 8], [5, 6.5, 9]]
    table.assign(e=[np.empty(0)] * 3).to_parquet(tmp_path / "a.parquet")
    assert "column 'e': its lists are empty" in line_of(lambda: load(tmp_path, "array_table"))
    table.drop(columns="e").rename(columns={"label": "n"}).to_csv(tmp_path / "b.csv")
    assert "needs one column 'n', has , n, n" in line_of(lambda: load(tmp_path, "array_table", file="b.csv", label="n"))


def test_decimals_are_numbers_and_long_texts_are_texts_as_databases_and_polars_write_them(tmp_path):
    price, names = pa.array([Decimal("1.25"), Decimal("-3.5")]), pa.array(["u", "v"], pa.large_string())
    pq.write_table(pa.table({"price": price, "label": names}), tmp_path / "a.parquet")
    assert load(tmp_path, "array_table").inputs.tolist() == [[1.25], [-3.5]]
    foreign = pa.array(["0,5", "0,7"], pa.large_string())
    pq.write_table(pa.table({"price": price, "label": names, "size": foreign}), tmp_path / "a.parquet")
    assert "row 0: 'size' is the text '0,5'" in line_of(lambda: load(tmp_path, "array_table"))


WRONG_TABLES = [
    ({"acc": [0.5, None, 1, None]}, {}, "2 of 4 rows lack 'acc', the first is row 1; fill or drop them"),
    ({"acc": [0.5, 1, "oops", 2]}, {}, "row 2: 'acc' is the text 'oops', and most rows have numbers"),
    *(
        ({"acc": [cell, "1", "2", cell]}, {}, f"row 0: 'acc' is the text {cell!r}, and most")
        for cell in ("0,5", "$1,234.5", "7\u00a0%", "\u22121")
    ),
    ({"acc": [0.5, 1, np.inf, 2]}, {}, "column 'acc': row 2 has a number that is missing, infinite or too large"),
    ({"acc": [0.5, 1e300, 1, 2]}, {}, "column 'acc': row 1 has a number"),
    ({"what": ["walk", None, "walk", "sit"]}, {}, "1 of 4 rows lack 'what', the first is row 1"),
    ({"split": ["valid", "train", "test", "test"]}, {"split": "split"}, "row 0: 'split' is 'valid'; it must be train"),
    ({"what": ["walk", "walk", "sit", "walk"]}, {"split": "split"}, "labels without a training sample: 'sit'"),
    ({}, {"label": "acc"}, "column 'acc' is double; it must be integers or texts"),
    ({}, {"label": "person"}, "no sample has label 0"),
    ({}, {"label": "who"}, "needs one column 'who', has acc, on, what"),
    ({}, {"columns": ("day",)}, "rows lack 'day'"),
    ({}, {"columns": ("split",)}, "column 'split' is string, not numbers; leave it out of 'columns'"),
]


@pytest.mark.parametrize("change, options, words", WRONG_TABLES)
def test_a_table_refuses(tmp_path, change, options, words):
    TABLE.assign(**change).to_csv(tmp_path / "a.csv", index=False)
    line = line_of(lambda: load(tmp_path, "array_table", **{**OWN, **options}))
    assert line.startswith(f"{tmp_path / 'a.csv'}: ") and words in line


FORMS = {
    "it is UTF-16; save it as UTF-8": ("utf-16", ","),
    "the cells are separated by semicolons or tabs; use commas": ("utf-8", ";"),
    "column 'what' is not UTF-8": ("latin-1", ","),
}


@pytest.mark.parametrize("words", FORMS)
def test_the_form_of_a_table(tmp_path, words):
    encoding, mark = FORMS[words]
    text = TABLE.assign(what=["café", "thé"] * 2).to_csv(index=False, sep=mark)
    (tmp_path / "a.csv").write_text(text, encoding=encoding)
    assert words in line_of(lambda: load(tmp_path, "array_table", **OWN))


def test_pointers_indices_repeats_and_texts_of_digits(tmp_path):
    (tmp_path / "a.csv").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert line_of(lambda: load(tmp_path, "array_table", **OWN)).endswith(
        ": a pointer of git LFS; `git lfs pull` gets the content"
    )
    table = pd.concat([TABLE, TABLE]).reset_index().rename(columns={"index": "Unnamed: 0", "acc": " acc"})
    table.to_csv(tmp_path / "a.csv", index=False)
    samples = load(tmp_path, "array_table", **OWN)
    assert samples.source == "a.csv (without Unnamed: 0, split, day) (4 training samples equal another one)"
    texts = TABLE.assign(phone="600 123 456", code="12-34", day="01.02.2020")
    texts.to_csv(tmp_path / "a.csv", index=False)
    assert "(without split, day, phone, code)" in load(tmp_path, "array_table", **OWN).source


def test_a_file_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=SIGNALS, label=LABELS, who=np.array(["b", "a", "b", "c"]))
    samples = load(tmp_path, "array_file", attribute_columns=("who",), sample_shape=(2, 3))
    np.testing.assert_array_equal(samples.inputs, SIGNALS.astype(np.float32))
    assert samples.labels.tolist() == LABELS.tolist() and samples.train.all() and samples.shape == (2, 3)
    assert samples.attributes["who"].names == ("a", "b", "c")
    halves = {"in_train": SIGNALS[1:], "y_train": LABELS[1:], "in_test": SIGNALS[:1], "y_test": LABELS[:1]}
    np.savez(tmp_path / "a.npz", **halves)
    samples = load(tmp_path, "array_file", inputs="in", label="y")
    assert samples.train.tolist() == [True] * 3 + [False] and samples.labels.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(samples.inputs[3], SIGNALS[0])


WRONG_FILES = [
    ({"y": LABELS}, {}, "has no 'label', but x, y"),
    ({"label": LABELS}, {"sample_shape": (3, 2)}, r"x is (4, 2, 3); it must be samples, each of (3, 2)"),
    ({"label": LABELS[:3]}, {}, "label is int64 (3,); it must be 4 integers or texts"),
    ({"label": LABELS / 2}, {}, "label is float64 (4,); it must be 4 integers or texts"),
    ({"label": LABELS, "x": LABELS}, {}, "x is (4,); it must be samples, each of one to three dimensions"),
    ({"label": LABELS, "x": np.where(SIGNALS == 7, np.nan, SIGNALS)}, {}, "row 1 has a number that is missing"),
    ({"label": LABELS, "x": np.full((4, 2), "a")}, {}, "x is <U1; it must be numbers"),
    ({"x": np.array([None] * 4)}, {"label": "x"}, "write it with numpy.savez, without objects"),
]


@pytest.mark.parametrize("arrays, options, words", WRONG_FILES)
def test_a_file_of_arrays_refuses(tmp_path, arrays, options, words):
    np.savez(tmp_path / "a.npz", **{"x": SIGNALS, **arrays})
    line = line_of(lambda: load(tmp_path, "array_file", **options))
    assert line.startswith(f"{tmp_path / 'a.npz'}: ") and words in line


def test_options_of_own_arrays():
    for options, words in (
        ({"attribute_columns": ("label",)}, "'label' is the name"),
        ({"file": "../a.csv"}, "must be the name of a file"),
        ({"columns": ("a", "what"), "label": "what"}, "columns has 'what', which is not for a model to see"),
        ({"columns": ("a", "side"), "split": "side"}, "columns has 'side'"),
        ({"columns": ("a", "a")}, "must be distinct names"),
    ):
        assert words in line_of(DATASETS.create, "array_table", **options)


def test_har_from_its_archive_and_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Har, "counts", (5, 0))
    files = har_files("UCI HAR Dataset/")
    write_zip(tmp_path / "UCI HAR Dataset.zip", files)
    other = "sha256 is [0-9a-f]{64}, expected 2045e435c9.*; delete it and get it from https://archive.ics.uci.edu/ml/.*"
    assert re.search(other, line_of(lambda: load(tmp_path, "har")))
    monkeypatch.setattr(Har, "archive", replace(Har.archive, digest=""))
    zipped = load(tmp_path, "har")
    (tmp_path / "UCI HAR Dataset.zip").unlink()
    write_files(tmp_path, files)
    samples, features = load(tmp_path, "har"), load(tmp_path, "har", inputs="features")
    assert samples.shape == (9, 128) and features.shape == (561,) and zipped.source == "UCI HAR Dataset.zip"
    np.testing.assert_array_equal(zipped.inputs, samples.inputs)
    assert samples.labels.tolist() == [4, 0, 5, 1, 2] and samples.train.all() and samples.classes == 6
    person = samples.attributes["person"]
    assert [person.names[code] for code in person.values] == ["30", "1", "1", "4", "4"]
    for channel, sensor in ((3, "body_gyro_x"), (8, "total_acc_z")):
        lines = files[f"UCI HAR Dataset/test/Inertial Signals/{sensor}_test.txt"].decode().splitlines()
        np.testing.assert_array_equal(samples.inputs[4, channel], np.array(lines[1].split(), np.float32))
    (tmp_path / "UCI HAR Dataset/train/y_train.txt").write_text("1\n2\n")
    assert "5 inputs, 4 labels, 5 persons" in line_of(lambda: load(tmp_path, "har"))
    shutil.rmtree(tmp_path / "UCI HAR Dataset/train")
    assert "train/X_train.txt is missing" in line_of(lambda: load(tmp_path, "har", inputs="features"))
