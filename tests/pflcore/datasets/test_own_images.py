"""One's own images: folders of classes, splits and domains, and Parquet tables; what is refused."""

import re

import numpy as np
import pyarrow as pa
import pytest
from support.mistakes import refuses
from support.official import SIZE, failure, plain, table, write_files

from pflcore.datasets import DATASETS, stand_in


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "here").mkdir(parents=True)
    return tmp_path / "data" / "here"


def create(name="image_folder", **options):
    return DATASETS.create(name, **{"size": SIZE, **options})


def grey(value):
    return plain((value,) * 3, "PNG")


SPLIT = {f"{split}/{label}/{n}.png": grey(9) for split in ("train", "test") for label in "ab" for n in (1, 2)}


def test_folders_of_classes_splits_and_domains(folder):
    images = {"rose/b.PNG": (200, 0, 0), "rose/a.jpeg": (100, 0, 0), "daisy/x.png": (0, 200, 0)}
    write_files(folder, {name: plain(colour, "PNG") for name, colour in images.items()})
    write_files(folder, dict.fromkeys(("daisy/.DS_Store", "daisy/Thumbs.db", ".git/x"), b"x"))
    samples = create(mean=(0.1, 0.2, 0.3), std=(0.4,)).load(folder)
    assert samples.class_names == ("daisy", "rose") and samples.labels.tolist() == [0, 1, 1]
    np.testing.assert_allclose(samples.inputs.mean((2, 3)), [[0, 200, 0], [100, 0, 0], [200, 0, 0]], atol=4)
    assert samples.train.all() and not samples.attributes and samples.source == "images in image_folder/"
    assert (samples.mean, samples.std) == ((0.1, 0.2, 0.3), (0.4, 0.4, 0.4))
    (folder / "rose/above").symlink_to("../..")
    assert create(channels=1).load(folder).shape == (1, SIZE, SIZE)
    write_files(folder.parent / "flowers" / "small", SPLIT | {"train/a/3.png": grey(9)})
    dataset = create(path="flowers/small", layout="split/class")
    assert dataset.available(folder) and not create(path="flowers/large").available(folder)
    samples = dataset.load(folder)
    assert samples.train.tolist() == [False] * 4 + [True] * 5
    assert samples.labels.tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 1] and samples.source.startswith(
        "images in flowers/small/ (4 of 4 test images equal a training image after scaling; 4 training images equal"
    )
    files = {"photo/cat/1.png": 10, "photo/dog/1.png": 20, "art/dog/1.png": 30, "art/emu/1.png": 40}
    write_files(folder.parent / "domains", {name: grey(value) for name, value in files.items()})
    dataset = create(path="domains", layout="domain/class")
    samples = dataset.load(folder)
    assert samples.class_names == ("cat", "dog", "emu") and samples.labels.tolist() == [1, 2, 0, 1]
    assert samples.attributes["domain"].names == ("art", "photo") and samples.train.all()
    assert samples.attributes["domain"].values.tolist() == [0, 0, 1, 1]
    assert samples.inputs[:, 0, 0, 0].tolist() == [30, 40, 10, 20]
    assert "domain" in stand_in(dataset, 20, 10).attributes and not stand_in(create(), 20, 10).attributes


def test_faulty_folders_and_options(folder):
    for number, (layout, extra, place, problem) in enumerate(
        (
            ("class", "", "test/a/1.png", "not in its place, as the layout is <class>/<image>"),
            ("split/class", "train/c/1.png", "", "test has no 'c'"),
            ("split/class", "train/b/1.heic", "train/b/1.heic", "not an image by its name"),
            ("split/class", "train/1.png", "train/1.png", "not in its place, as the layout is <split>/<class>/<image>"),
            ("split/class", "val/a/1.png", "", "has the folders test, train, val"),
            ("domain/class", "train/a /1.png", "", "the classes 'a' and 'a ' look the same"),
            ("domain/class", "train /a/1.png", "", "the values of domain 'train' and 'train ' look the same"),
            ("split/class", "train/b /1.png", "", "test has no 'b '"),
            ("split/class", "train/c/.hidden", "train/c", "an empty folder"),
        )
    ):
        root = folder / str(number)
        write_files(root, SPLIT | ({extra: grey(9)} if extra else {}))
        message = failure(create(layout=layout, path=f"here/{number}"), folder)
        assert message.startswith(f"{root / place}: ") and problem in message
    write_files(folder / "flat", {"train/1.png": grey(9), "test/1.png": grey(9)})
    assert "/flat: train and test are no classes" in failure(create(path="here/flat"), folder)
    for name in ("image_folder", "image_table", "detection_folder"):
        message = failure(create(name, path="none"), folder)
        assert message.startswith(f"{folder.parent}/none: no ") and "'path'" in message
    for options in ({"mean": (0.5, 0.5)}, {"std": (0.0,)}, {"layout": "class/split"}):
        refuses(rf"^image_folder\.{next(iter(options))} = ", create, **options)


def test_a_path_stays_in_the_data_folder():
    for path in ("/etc", "../other", "a/../../b", "C:/x", "a\\b", "a\0b"):
        refuses(r"^image_folder\.path = ", create, path=path)


def write(path, greys, names=None, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(table([grey(value) for value in greys], names, **columns))


def test_tables_of_numbers_with_names_and_of_texts(folder):
    names = ["cat", "dog", "emu"]
    write(folder / "train-0.parquet", [10, 20, 30], names, label=[2, 0, 0])
    write(folder / "train-1.parquet", [40, 50], names, label=pa.array([1, 2], pa.uint8()))
    write(folder / "test-0.parquet", [60], names, label=[1])
    samples = create("image_table").load(folder)
    assert samples.inputs[:, 1, 3, 3].tolist() == [10, 20, 30, 40, 50, 60]
    assert samples.labels.tolist() == [2, 0, 0, 1, 2, 1] and samples.class_names == ("cat", "dog", "emu")
    assert samples.train.tolist() == [True] * 5 + [False] and not samples.attributes
    assert samples.source == "train-0.parquet, train-1.parquet, test-0.parquet (PNG images)"
    # A file is read once, and for training if for both.
    repeated = create("image_table", test=("test", "t")).load(folder)
    assert repeated.train.tolist() == samples.train.tolist()
    message = failure(create("image_table", test=("valid", "test")), folder)
    assert message.startswith(f"{folder}: no valid*.parquet here")
    write(folder / "test-0.parquet", [60], ["dog", "cat", "emu"], label=[1])
    assert failure(create("image_table"), folder).startswith(f"{folder}/test-0.parquet: its labels are of another kind")
    # Texts and domains, elsewhere.
    root, kinds = folder.parent / "pets" / "v1", pa.array(["dog", "cat", "dog"]).dictionary_encode()
    write(root / "train.parquet", [10, 20, 30], kind=kinds, place=["b", "a", "b"])
    dataset = create("image_table", path="pets/v1", label="kind", domain="place", channels=1, mean=(0.2,))
    samples = dataset.load(folder)
    assert samples.class_names == ("cat", "dog") and samples.labels.tolist() == [1, 0, 1] and samples.train.all()
    assert samples.attributes["domain"].names == ("a", "b")
    assert samples.attributes["domain"].values.tolist() == [1, 0, 1]
    assert samples.inputs[:, 0, 0, 0].tolist() == [10, 20, 30] and samples.mean == (0.2,)
    write(root / "test.parquet", [40], kind=["emu"], place=["a"])
    assert failure(dataset, folder).endswith("labels without a training image: 'emu'")


def test_wrong_columns_and_names_of_classes(folder):
    for options, columns, problem in (
        ({"label": "class"}, {"label": [0, 1]}, "needs a column 'class' of integers or text"),
        ({"image": "img"}, {"label": [0, 1]}, "needs a column 'img' of binary or struct<bytes: binary>"),
        ({"domain": "place"}, {"label": [0, 1], "place": [0.5, 1]}, "needs a column 'place' of integers or text"),
        ({}, {"label": [0.5, 1]}, "needs a column 'label' of integers or text, without nulls, has image: st"),
        ({}, {"label": pa.array([0, None])}, "needs a column 'label' of integers or text, without nulls"),
        ({}, {"label": ["a", "a\u200b"]}, "the classes 'a' and 'a\\u200b' look the same"),
        ({}, {"label": [1, 2]}, "no image has label 0"),
        ({}, {"label": [0, 2**60]}, "no image has label 1"),
        ({}, {"label": [0, -1]}, "row 1: label -1 is outside 0..0"),
        ({}, {"label": pa.array([0, 2**64 - 1], pa.uint64()), "names": ["a"]}, f"row 1: label {2**62} is outside 0..0"),
    ):
        write(folder / "train.parquet", [1, 2], **columns)
        message = failure(create("image_table", **options), folder)
        assert message.startswith(f"{folder}") and problem in message
    write(folder / "train.parquet", [1, 2], ["a", "a "], label=[0, 1])
    assert failure(create("image_table"), folder).startswith(f"{folder}: the classes 'a' and 'a ' look the same")
    for names in (["a", "a"], "ab", [["x"], None], ["a\nb", "c"], {"a": 0}):
        write(folder / "train.parquet", [1, 2], names, label=[0, 1])
        actual = re.escape(repr(names))
        message = failure(create("image_table"), folder)
        assert re.search(rf"train.parquet: the names of 'label' are {actual}, not distinct printable texts", message)


@pytest.mark.parametrize("form", ["train-0000{}-of-00003.parquet", "train_{}_of_3.parquet"])
@pytest.mark.parametrize(
    ("numbers", "missing"),
    [((0, 1, 2), None), ((1, 2, 3), None), ((0, 2), 1), ((1, 2), 0), ((2, 3), 1), ((0, 1), 2), ((0, 1, 2, 4), 3)],
)
def test_parts_of_an_export_are_counted_from_0_or_from_1(numbers, missing, form, folder):
    for number in numbers:
        write(folder / form.format(number), [number], label=[0])
    if missing is None:
        assert len(create("image_table").load(folder).labels) == len(numbers)
    else:
        message = failure(create("image_table"), folder)
        assert message.startswith(f"{folder}: part {missing} of 3 is missing beside {form.format(numbers[0])}")
