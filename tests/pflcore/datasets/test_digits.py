"""Small sets of images, MNIST-M and Digits-Five: official files in miniature."""

from __future__ import annotations

import bz2
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import digit_files as made
from support.digit_files import COLOUR, GREY, IDX, LABELS, SMALL, TEST, TRAIN
from support.official import Files, Hostile, failure, trust, write_files, write_tar, write_zip

from pflcore.datasets import DATASETS, Dataset, digits5, small_images
from pflcore.errors import UserError
from pflcore.options import describe_options

EACH = TRAIN + TEST
DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made.shrink(monkeypatch)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def create(name: str = "digits5", **options: Any) -> Dataset:
    return DATASETS.create(name, **options)


def usps_text(part: int) -> str:
    rows = zip(made.usps_values(part) * 2.0 - 1, LABELS[part], strict=True)
    return "".join(f"{label + 1} {' '.join(f'{n}:{v:g}' for n, v in enumerate(row, 1))} \n" for row, label in rows)


def write_usps(folder: Path, first: str = "") -> None:
    """Write LIBSVM's files, perhaps with another first line for the test set; they go before ``usps.h5``."""
    texts = usps_text(0), first + usps_text(1)[usps_text(1).index("\n") if first else 0 :]
    for name, text in zip(("usps.bz2", "usps.t.bz2"), texts, strict=True):
        (folder / name).write_bytes(bz2.compress(text.encode()))
    (folder / "usps.h5").write_bytes(b"is not looked at")


# The dataset, what writes it, its images, what a report calls it, and the file whose hash is checked, if any.
FORMS: list[tuple[str, Any, list[np.ndarray], str, str]] = [
    ("mnist", lambda f: made.write_mnist(f / "raw"), GREY, ", ".join(f"{n}.gz" for n in IDX), f"raw/{IDX[0]}.gz"),
    ("mnist", lambda f: made.write_mnist(f / "MNIST/raw", compressed=False), GREY, ", ".join(IDX), ""),
    ("svhn", made.write_svhn, COLOUR, "train_32x32.mat, test_32x32.mat", "train_32x32.mat"),
    ("synthdigits", made.write_synthdigits, COLOUR, "synth_train_32x32.mat, synth_test_32x32.mat", ""),
    ("usps", write_usps, SMALL, "usps.bz2, usps.t.bz2", "usps.bz2"),
    ("usps", lambda f: made.write_usps_hdf5(f / "usps.h5"), SMALL, "usps.h5", ""),
    ("mnistm", lambda f: write_tar(f / "mnist_m.tar.gz", made.mnistm_files()), COLOUR, *["mnist_m.tar.gz"] * 2),
    ("mnistm", lambda f: write_files(f, made.mnistm_files()), COLOUR, "mnist_m", ""),
]


@pytest.mark.parametrize(("name", "write", "images", "source", "hashed"), FORMS)
def test_every_form(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Any, images: Any, source: str, hashed: str
) -> None:
    dataset = create(name)
    assert failure(dataset, folder).startswith(f"{folder}: no data here")
    write(folder)
    if hashed:
        assert failure(dataset, folder).startswith(f"{folder / hashed}: md5 is ")
        trust(monkeypatch)
    samples = dataset.load(folder)
    np.testing.assert_array_equal(samples.inputs, np.concatenate(images))
    assert samples.labels.tolist() == LABELS[0] + LABELS[1] and samples.class_names == tuple("0123456789")
    assert samples.train.tolist() == [True] * TRAIN + [False] * TEST and samples.source == source
    assert samples.inputs.flags.writeable and dataset.found(folder)


def test_the_extra_images_of_svhn_train_after_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch)
    later = {one.name: one.later for one in describe_options(small_images.Svhn)}
    assert later == {"extra": False}, "without it the ids of all runs on SVHN are others"
    assert (create("svhn").expected, create("svhn", extra=True).extra_images) == ((TRAIN, TEST), 531_131)
    monkeypatch.setattr(small_images.Svhn, "extra_images", TEST)
    made.write_svhn(folder)
    assert "extra_32x32.mat" in failure(create("svhn", extra=True), folder)
    made.write_matlab(folder / "extra_32x32.mat", 1)
    samples = create("svhn", extra=True).load(folder)
    np.testing.assert_array_equal(samples.inputs, np.concatenate([*COLOUR, COLOUR[1]]))
    assert samples.labels.tolist() == LABELS[0] + LABELS[1] * 2
    assert samples.train.tolist() == [True] * (TRAIN + TEST) + [False] * TEST
    assert samples.source == "train_32x32.mat, extra_32x32.mat, test_32x32.mat"


def test_lines_of_usps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch)
    write_usps(folder, "10 2:1 256:-1")  # what is left out is 0
    samples = create("usps").load(folder)
    assert samples.labels[TRAIN] == 9
    assert samples.inputs[TRAIN].reshape(-1)[[0, 1, 2, 254, 255]].tolist() == [128, 255, 128, 128, 0]
    for line in ("1 1:0 2:1.5", "1 1:0 2:nan", "six 1:0"):
        write_usps(folder, line)
        assert failure(create("usps"), folder).startswith(f"{folder}/usps.t.bz2: cannot be read (")


@pytest.mark.parametrize("archive", [True, False])
def test_building_mnistm(folder: Path, archive: bool) -> None:
    made.write_mnist(folder.parent / "mnist", compressed=False)
    dataset = create("mnistm", source="built")
    assert "put BSR_bsds500.tgz" in failure(dataset, folder)
    photographs = made.photographs()
    write_tar(folder / "BSR_bsds500.tgz", photographs) if archive else write_files(folder, photographs)
    samples, chosen = dataset.load(folder), []
    rows = zip(samples.inputs, np.concatenate(GREY).astype(int), samples.train, strict=True)
    for image, digit, train in rows:
        fits = [value for value in ((40, 200) if train else (130,)) if (image == np.abs(digit - value)).all()]
        assert len(fits) == 1, "every image is a digit's difference from one photograph of its split"
        chosen += fits
    assert set(chosen[:TRAIN]) == {200, 40} and samples.labels.tolist() == LABELS[0] + LABELS[1]
    assert samples.source == f"built from {', '.join(IDX)} and {'BSR_bsds500.tgz' if archive else 'BSDS500'} (seed 0)"
    assert (create("mnistm", source="built", seed=1).load(folder).inputs != samples.inputs).any()


def test_organs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = small_images.OrganAMnist
    assert [sum(counts) for _, counts in cls.releases.values()] == [58_850, 58_830]
    monkeypatch.setattr(cls, "releases", {name: (one, (8, 4)) for name, (one, _) in cls.releases.items()})
    trust(monkeypatch)
    images, labels, path = (
        made.pixels(0, 28, 28)[:12],
        [0, 10, 3, 4, 5, 9, 8, 7, 1, 2, 6, 10],
        folder / "organamnist.npz",
    )
    arrays: dict[str, Any] = {}
    for split, rows in (("train", slice(5)), ("val", slice(5, 8)), ("test", slice(8, 12))):
        arrays |= {f"{split}_images": images[rows], f"{split}_labels": np.array(labels[rows], np.uint8)[:, None]}
    np.savez(path, **arrays)
    samples = create("organamnist", size=224, channels=3).load(folder)
    np.testing.assert_array_equal(samples.inputs, np.stack([images] * 3, 1))
    assert samples.labels.tolist() == labels and samples.train.tolist() == [True] * 8 + [False] * 4
    assert samples.shape == (3, 224, 224) and samples.std == (0.5,) * 3 and samples.source == "organamnist.npz (v2)"
    for values in ([[0.5], [1], [2]], [[0], [1], [11]], [[print], [1], [2]]):
        np.savez(path, **arrays | {"val_labels": np.array(values)})
        assert failure(create("organamnist"), folder).startswith(f"{path}: ")


# --- Digits-Five -----------------------------------------------------------------------------------------------------


def scaled(images: np.ndarray) -> np.ndarray:
    """Return what torchvision makes of images of colour [n, H, W, 3] or grey [n, H, W]: [n, 3, 28, 28]."""
    small = [np.asarray(Image.fromarray(one).resize((28, 28), Image.Resampling.BILINEAR)) for one in images]
    return np.stack([np.stack([one] * 3) if one.ndim == 2 else one.transpose(2, 0, 1) for one in small])


def test_the_sizes_are_those_of_fedbn() -> None:
    test = 14_000 + 19_858 + 1_860 + 97_791 + 14_000
    assert create().expected == create().counts == (56_000 + 79_431 + 7_438 + 391_162 + 56_000, test)
    assert create(source="fedbn", parts_used=10).expected == (5 * 7_438, test)
    official = create(split="official").expected
    assert official == (60_000 + 73_257 + 7_291 + 479_400 + 60_000, 10_000 + 26_032 + 2_007 + 9_553 + 10_000)
    sizes = [1000, 501, 502, 503, 504, 5, 4, 3, 0, 12]  # a fifth of each class
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    held = np.bincount(labels[~digits5.draw_train(labels, "SVHN")], minlength=10)
    assert held.tolist() == [200, 100, 100, 101, 101, 1, 1, 1, 0, 2]


def test_domains_from_their_own_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch)
    five, root = folder.parent / "digits5", folder.parent
    made.write_mnist(root / "mnist", compressed=False)
    made.write_svhn(root / "svhn")
    made.write_usps_hdf5(root / "usps" / "usps.h5")
    made.write_synthdigits(root / "synthdigits")
    write_files(root / "mnistm", made.mnistm_files() | made.photographs())
    samples = create(split="official", mnistm="official").load(five)
    domain = samples.attributes["domain"]
    assert domain.names == DOMAINS and domain.values.tolist() == [n for n in range(5) for _ in range(EACH)]
    assert samples.labels.tolist() == (LABELS[0] + LABELS[1]) * 5
    assert samples.train.tolist() == ([True] * TRAIN + [False] * TEST) * 5
    grey, colour = np.concatenate(GREY)[:, 0], scaled(np.concatenate(COLOUR).transpose(0, 2, 3, 1))
    expected = [scaled(grey), colour, scaled(np.concatenate(SMALL)[:, 0]), colour, colour]
    np.testing.assert_array_equal(samples.inputs, np.concatenate(expected))
    assert "; USPS: usps.h5; " in samples.source and samples.source.endswith("MNIST-M: mnist_m")
    pooled = create().load(five)
    tests = [~pooled.train[domain.values == number] for number in range(5)]
    assert [int(test.sum()) for test in tests] == [5] * 5 and pooled.source.endswith("and BSDS500 (seed 0)")
    assert len({tuple(np.flatnonzero(test)) for test in tests}) > 1, "every domain has a draw of its own"
    # Two domains need no others, and what a person has to get is named first.
    for name in ("svhn", "synthdigits"):
        (root / name).rename(root / f"no {name}")
    two = create(domain_list=("MNIST-M", "USPS")).load(five)
    rows = np.r_[4 * EACH : 5 * EACH, 2 * EACH : 3 * EACH]
    np.testing.assert_array_equal(two.inputs, pooled.inputs[rows])
    assert two.attributes["domain"].names == ("MNIST-M", "USPS") and two.train.tolist() == pooled.train[rows].tolist()
    assert failure(create(), five).startswith(f"{root / 'synthdigits'}: ") and not five.exists()
    with pytest.raises(UserError, match="domain_list"):
        create(domain_list=("USPS", "USPS"))


FOLDERS = {"MNIST": (28, 28), "SVHN": (32, 32, 3), "USPS": (16, 16), "SynthDigits": (32, 32, 3), "MNIST_M": (28, 28, 3)}
TESTS = (3, 4, 2, 5, 3)
PART = 2.5  # so that training files hold two and three images in turn


def pickled(domain: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels of a training file, or of the test file as part 10."""
    count = TESTS[domain] if part == 10 else int(PART * (part + 1)) - int(PART * part)
    images = np.random.default_rng([domain, part]).integers(0, 256, (count, *[*FOLDERS.values()][domain]), np.uint8)
    return images, (np.arange(count) + 3 * domain + part) % 10


def write_published(monkeypatch: pytest.MonkeyPatch, folder: Path, root: str = "", svhn: bytes | None = None) -> Path:
    """Write FedBN's archive, the first training file of SVHN perhaps another one."""
    trust(monkeypatch)
    rows = zip(DOMAINS, FOLDERS.items(), TESTS, strict=True)
    known = {domain: (name, (*shape, 1)[:3], tests) for domain, (name, shape), tests in rows}
    monkeypatch.setattr(digits5, "PUBLISHED", known)
    monkeypatch.setattr(digits5, "PART_SIZE", PART)
    files: Files = {"README": b"x", "__MACOSX/MNIST/._test.pkl": b"x"}
    for domain, name in enumerate(FOLDERS):
        for part in range(11):
            pkl = "test.pkl" if part == 10 else f"partitions/train_part{part}.pkl"
            files[f"{root}{name}/{pkl}"] = pickle.dumps(pickled(domain, part))
    files |= {} if svhn is None else {"SVHN/partitions/train_part0.pkl": svhn}
    return write_zip(folder / "digit_dataset.zip", {name: data for name, data in files.items() if data})


@pytest.mark.parametrize(("parts", "root"), [(1, ""), (10, "data/")])
def test_fedbns_own_files(folder: Path, monkeypatch: pytest.MonkeyPatch, parts: int, root: str) -> None:
    write_published(monkeypatch, folder, root)
    dataset = create(source="fedbn", parts_used=parts, domain_list=("USPS", *DOMAINS[:2], *DOMAINS[3:]))
    samples, end = dataset.load(folder), 0
    assert dataset.found(folder) and samples.source == f"FedBN's files, {parts} of 10 for training"
    for number, domain in enumerate((2, 0, 1, 3, 4)):
        for part in [*range(parts), 10]:
            images, labels = pickled(domain, part)
            rows = slice(end, end := end + len(images))
            np.testing.assert_array_equal(samples.inputs[rows], scaled(images))
            assert samples.labels[rows].tolist() == labels.tolist()
            assert samples.train[rows].tolist() == [part < 10] * len(images)
            assert set(samples.attributes["domain"].values[rows]) == {number}
    assert end == len(samples)


def test_damaged_pickles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = pickled(1, 0)
    for problem, data in {
        "is missing": b"",
        "images of float64": pickle.dumps((images.astype(float), labels)),
        "cannot be read (": pickle.dumps((images, labels[:-1])),
        "refused: the pickle asks for posix.system": pickle.dumps(Hostile(folder / "executed")),
    }.items():
        path = write_published(monkeypatch, folder, svhn=data)
        message = failure(create(source="fedbn"), folder)
        assert message.startswith(f"{path}") and "SVHN/partitions/train_part0.pkl" in message and problem in message
    assert not (folder / "executed").exists()
