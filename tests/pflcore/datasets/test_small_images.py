"""Small images in files of arrays, CIFAR, MNIST-M and Digits-Five: every official form in miniature."""

import bz2
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support import cifar_files as cifar
from support import digit_files as made
from support.cifar_files import COARSE, FINE, PIXELS100
from support.digit_files import COLOUR, GREY, IDX, LABELS, SMALL, TEST, TRAIN
from support.mistakes import refuses
from support.official import Hostile, encoded, failure, plain, trust, write_files, write_tar, write_zip

from pflcore.datasets import DATASETS, digits5, small_images, stand_in
from pflcore.options import describe_options

EACH = TRAIN + TEST
DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made.shrink(monkeypatch)
    cifar.shrink(monkeypatch)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def create(name="digits5", **options):
    return DATASETS.create(name, **options)


def write_usps(folder, first=""):
    """Write LIBSVM's files, perhaps with another first line for the test set; they go before ``usps.h5``."""
    for part, name in enumerate(("usps.bz2", "usps.t.bz2")):
        rows = zip(LABELS[part], made.usps_values(part) * 2.0 - 1, strict=True)
        lines = [f"{label + 1} {' '.join(f'{n}:{v:g}' for n, v in enumerate(row, 1))} " for label, row in rows]
        text = "\n".join([first, *lines[1:], ""] if part and first else [*lines, ""])
        (folder / name).write_bytes(bz2.compress(text.encode()))
    (folder / "usps.h5").write_bytes(b"is not looked at")


def tar(name, files):
    """Return what writes an archive, with a folder of what it unpacks to beside it, which is not looked at."""

    def write(folder):
        write_tar(folder / name, {"evil": b"x", **files})
        (folder / min(files).split("/")[0]).mkdir()

    return write


def export(folder, name="cifar10"):
    for part, split in enumerate(("train-0", "test-0")):
        pixels, labels = KNOWN[name][0][part], KNOWN[name][1][part]
        images = [{"bytes": encoded(row.reshape(3, 32, 32)), "path": None} for row in pixels]
        columns = {"label": labels} if name == "cifar10" else {"fine_label": labels, "coarse_label": COARSE[part]}
        pq.write_table(pa.table({"img": images, **columns}), folder / f"{split}.parquet")


TEN, HUNDRED, M = cifar.members(), cifar.members100(), made.mnistm_files()
BATCHES = [cifar.images(number) for number in range(6)]
PIXELS10 = np.concatenate([pixels for pixels, _ in BATCHES[:5]]), BATCHES[5][0]
LABELS10 = np.concatenate([labels for _, labels in BATCHES[:5]]).tolist(), BATCHES[5][1]
# Images and labels, of training and of test.
KNOWN = dict.fromkeys(("svhn", "synthdigits", "mnistm"), (COLOUR, LABELS))
KNOWN |= {"mnist": (GREY, LABELS), "usps": (SMALL, LABELS)}
KNOWN |= {"cifar10": (PIXELS10, LABELS10), "cifar100": (PIXELS100, FINE)}
TAR10, TAR100, TAR_M = "cifar-10-python.tar.gz", "cifar-100-python.tar.gz", "mnist_m.tar.gz"
PARQUET = {"source": "parquet"}
EXPORT = "train-0.parquet, test-0.parquet (PNG images)"
# Dataset and options, what writes it, what a report calls it, and the file whose hash is checked, if any.
FORMS = [
    ("mnist", {}, lambda f: made.write_mnist(f / "raw"), ", ".join(f"{n}.gz" for n in IDX), f"raw/{IDX[0]}.gz"),
    ("mnist", {}, lambda f: made.write_mnist(f / "MNIST/raw", compressed=False), ", ".join(IDX), ""),
    ("svhn", {}, made.write_svhn, "train_32x32.mat, test_32x32.mat", "train_32x32.mat"),
    ("synthdigits", {}, made.write_synthdigits, "synth_train_32x32.mat, synth_test_32x32.mat", ""),
    ("usps", {}, write_usps, "usps.bz2, usps.t.bz2", "usps.bz2"),
    ("usps", {}, lambda f: made.write_usps_hdf5(f / "usps.h5"), "usps.h5", ""),
    ("mnistm", {}, tar(TAR_M, M), TAR_M, TAR_M),
    ("mnistm", {}, lambda f: write_files(f, M), "mnist_m", ""),
    ("cifar10", {}, tar(TAR10, TEN), TAR10, TAR10),
    ("cifar10", {}, lambda f: write_files(f, TEN), "cifar-10-batches-py", ""),
    ("cifar10", PARQUET, export, EXPORT, ""),
    ("cifar100", {}, tar(TAR100, HUNDRED), TAR100, TAR100),
    ("cifar100", {}, lambda f: write_files(f, HUNDRED), "cifar-100-python", ""),
    ("cifar100", PARQUET, lambda f: export(f, "cifar100"), EXPORT, ""),
]


@pytest.mark.parametrize(("name", "options", "write", "source", "hashed"), FORMS)
def test_every_form(folder, monkeypatch, name, options, write, source, hashed):
    dataset, (images, labels) = create(name, **options), KNOWN[name]
    assert failure(dataset, folder).startswith(f"{folder}: no ")
    write(folder)
    if hashed:
        assert failure(dataset, folder).startswith(f"{folder / hashed}: {'sha256' if 'cifar' in name else 'md5'} is ")
        trust(monkeypatch)
    before, samples = [*folder.rglob("*")], dataset.load(folder)
    pixels = np.concatenate(images)
    np.testing.assert_array_equal(samples.inputs, pixels.reshape(len(pixels), *dataset.original))
    assert samples.labels.tolist() == labels[0] + labels[1] and samples.class_names == dataset.class_names
    assert samples.train.tolist() == [True] * len(labels[0]) + [False] * len(labels[1]) and samples.source == source
    assert samples.inputs.flags.writeable and dataset.available(folder) and [*folder.rglob("*")] == before
    if name == "cifar100":
        assert samples.attributes["coarse"].values.tolist() == COARSE[0] + COARSE[1]


def test_coarse_classes_of_cifar100(folder):
    dataset = create("cifar100", size=224, normalise="half")
    assert (create("cifar10").class_names[3], dataset.class_names[23]) == ("cat", "cloud")
    write_files(folder, HUNDRED)
    samples = dataset.load(folder)
    assert samples.shape == (3, 224, 224) and samples.inputs.shape == (12, 3, 32, 32)
    assert samples.mean == samples.std == (0.5, 0.5, 0.5)
    assert samples.attributes["coarse"].names[10] == "large_natural_outdoor_scenes"
    elsewhere = "row 0: apple is in fruit_and_vegetables, not in food_containers"
    for coarse, problem in ((3, elsewhere), (20, "coarse: row 0: label 20 is outside 0..19")):
        write_files(folder, {"cifar-100-python/train": cifar.python100(0, [coarse, *COARSE[0][1:]])})
        assert failure(dataset, folder).startswith(f"{folder}/cifar-100-python: {problem}")
    export(folder, "cifar100")
    images = [plain((0, 0, 0), "PNG", (33, 32))]
    pq.write_table(pa.table({"img": images, "fine_label": [2], "coarse_label": [14]}), folder / "test-0.parquet")
    message = failure(create("cifar100", **PARQUET), folder)
    assert message.endswith("row 0: not a readable image (33x32 instead of 32x32 pixels)")
    generated, coarse = stand_in(dataset, 200, 100), dict(zip(FINE[0] + FINE[1], COARSE[0] + COARSE[1], strict=True))
    for label, value in zip(generated.labels, generated.attributes["coarse"].values, strict=True):
        assert coarse.get(label, value) == value


def test_svhns_extra_images_and_lines_of_usps(folder, monkeypatch):
    trust(monkeypatch)
    later = {option.name: option.later for option in describe_options(small_images.Svhn)}
    assert later == {"extra": False}, "without it the ids of all runs on SVHN are others"
    assert small_images.Svhn.extra_images == 531_131
    monkeypatch.setattr(small_images.Svhn, "extra_images", TEST)
    made.write_svhn(folder)
    assert create("svhn").available(folder) and not create("svhn", extra=True).available(folder)
    assert "extra_32x32.mat" in failure(create("svhn", extra=True), folder)
    made.write_matlab(folder / "extra_32x32.mat", 1)
    samples = create("svhn", extra=True).load(folder)
    np.testing.assert_array_equal(samples.inputs, np.concatenate([*COLOUR, COLOUR[1]]))
    assert samples.train.tolist() == [True] * EACH + [False] * TEST
    assert samples.source == "train_32x32.mat, extra_32x32.mat, test_32x32.mat"
    write_usps(folder, "10 2:1 256:-1")  # what is left out is 0
    samples = create("usps").load(folder)
    assert samples.labels[TRAIN] == 9
    assert samples.inputs[TRAIN].reshape(-1)[[0, 1, 2, 254, 255]].tolist() == [128, 255, 128, 128, 0]
    for line in ("1 1:0 2:1.5", "1 1:0 2:nan", "six 1:0"):
        write_usps(folder, line)
        assert failure(create("usps"), folder).startswith(f"{folder}/usps.t.bz2: cannot be read (")


def test_organs(folder, monkeypatch):
    cls, path, arrays = small_images.OrganAMnist, folder / "organamnist.npz", {}
    assert [sum(counts) for _, counts in cls.releases.values()] == [58_850, 58_830]
    monkeypatch.setattr(cls, "releases", {name: (source, (8, 4)) for name, (source, _) in cls.releases.items()})
    trust(monkeypatch)
    images, labels = made.pixels(0, 28, 28)[:12], [0, 10, 3, 4, 5, 9, 8, 7, 1, 2, 6, 10]
    for split, rows in (("train", slice(5)), ("val", slice(5, 8)), ("test", slice(8, 12))):
        arrays |= {f"{split}_images": images[rows], f"{split}_labels": np.array(labels[rows], np.uint8)[:, None]}
    np.savez(path, **arrays)
    samples = create("organamnist", size=224, channels=3).load(folder)
    np.testing.assert_array_equal(samples.inputs, np.stack([images] * 3, 1))
    assert samples.labels.tolist() == labels and samples.train.tolist() == [True] * 8 + [False] * 4
    assert samples.shape == (3, 224, 224) and samples.std == (0.5,) * 3 and samples.source == "organamnist.npz (v2)"
    for wrong in (0.5, 11, print):
        np.savez(path, **arrays | {"val_labels": np.array([[0], [1], [wrong]])})
        assert failure(create("organamnist"), folder).startswith(f"{path}: ")


@pytest.mark.parametrize("archive", [True, False])
def test_building_mnistm(folder, archive):
    made.write_mnist(folder.parent / "mnist", compressed=False)
    dataset, photographs = create("mnistm", source="built"), made.photographs()
    assert "put BSR_bsds500.tgz" in failure(dataset, folder)
    write_tar(folder / "BSR_bsds500.tgz", photographs) if archive else write_files(folder, photographs)
    samples, chosen = dataset.load(folder), []
    for image, digit, train in zip(samples.inputs, np.concatenate(GREY).astype(int), samples.train, strict=True):
        fits = [value for value in ((40, 200) if train else (130,)) if (image == np.abs(digit - value)).all()]
        assert len(fits) == 1, "every image is a digit's difference from one photograph of its split"
        chosen += fits
    assert set(chosen[:TRAIN]) == {200, 40} and samples.labels.tolist() == LABELS[0] + LABELS[1]
    assert samples.source == f"built from {', '.join(IDX)} and {'BSR_bsds500.tgz' if archive else 'BSDS500'} (seed 0)"
    assert (create("mnistm", source="built", seed=1).load(folder).inputs != samples.inputs).any()


def scaled(images):
    """Return what torchvision makes of images of colour [n, H, W, 3] or grey [n, H, W]: [n, 3, 28, 28]."""
    small = [np.asarray(Image.fromarray(pixels).resize((28, 28), Image.Resampling.BILINEAR)) for pixels in images]
    return np.stack([np.stack([pixels] * 3) if pixels.ndim == 2 else pixels.transpose(2, 0, 1) for pixels in small])


def test_the_sizes_of_digits_five_are_those_of_fedbn():
    train, test = 56_000 + 79_431 + 7_438 + 391_162 + 56_000, 14_000 + 19_858 + 1_860 + 97_791 + 14_000
    assert create().expected == create().counts == (train, test)
    assert create(source="fedbn", parts_used=10).expected == (5 * 7_438, test)
    train, test = 60_000 + 73_257 + 7_291 + 479_400 + 60_000, 10_000 + 26_032 + 2_007 + 9_553 + 10_000
    assert create(split="official").expected == (train, test)
    sizes = [1000, 501, 502, 503, 504, 5, 4, 3, 0, 12]  # a fifth of each class
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    counts = np.bincount(labels[~digits5.draw_train(labels, "SVHN")], minlength=10)
    assert counts.tolist() == [200, 100, 100, 101, 101, 1, 1, 1, 0, 2]


def test_domains_from_their_own_folders(folder, monkeypatch):
    trust(monkeypatch)
    five, root = folder.parent / "digits5", folder.parent
    made.write_mnist(root / "mnist", compressed=False)
    made.write_svhn(root / "svhn")
    made.write_usps_hdf5(root / "usps" / "usps.h5")
    made.write_synthdigits(root / "synthdigits")
    write_files(root / "mnistm", M | made.photographs())
    samples = create(split="official", mnistm="official").load(five)
    domain = samples.attributes["domain"]
    assert domain.names == DOMAINS and domain.values.tolist() == [n for n in range(5) for _ in range(EACH)]
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
    refuses("domain_list", create, domain_list=("USPS", "USPS"))


def test_fedbns_own_files(folder, monkeypatch):
    trust(monkeypatch)
    counts = (3, 4, 2, 5, 3)  # for testing; training files hold two and three images in turn
    published = zip(digits5.PUBLISHED.items(), counts, strict=True)
    small = {domain: (inside, shape, count) for (domain, (inside, shape, _)), count in published}
    monkeypatch.setattr(digits5, "PUBLISHED", small)
    monkeypatch.setattr(digits5, "PART_SIZE", 2.5)
    files, content = {"README": b"x", "__MACOSX/MNIST/._test.pkl": b"x"}, {}
    rng = np.random.default_rng(0)
    for domain, (inside, shape, tests) in enumerate(small.values()):
        for part in range(11):
            count = tests if part == 10 else 2 + part % 2
            images = rng.integers(0, 256, (count, *shape), np.uint8)
            content[domain, part] = images.squeeze(-1) if shape[-1] == 1 else images, rng.integers(0, 10, count)
            pkl = "test.pkl" if part == 10 else f"partitions/train_part{part}.pkl"
            files[f"{inside}/{pkl}"] = pickle.dumps(content[domain, part])
    for parts, root in ((1, ""), (10, "data/")):
        write_zip(folder / "digit_dataset.zip", {f"{root}{name}": data for name, data in files.items()})
        dataset = create(source="fedbn", parts_used=parts, domain_list=("USPS", *DOMAINS[:2], *DOMAINS[3:]))
        samples = dataset.load(folder)
        assert dataset.available(folder) and samples.source == f"FedBN's files, {parts} of 10 for training"
        used = [(domain, part) for domain in (2, 0, 1, 3, 4) for part in (*range(parts), 10)]
        np.testing.assert_array_equal(samples.inputs, np.concatenate([scaled(content[key][0]) for key in used]))
        assert samples.labels.tolist() == np.concatenate([content[key][1] for key in used]).tolist()
        lengths = [len(content[key][1]) for key in used]
        assert samples.train.tolist() == np.repeat([part < 10 for _, part in used], lengths).tolist()
        places = [(2, 0, 1, 3, 4).index(domain) for domain, _ in used]
        assert samples.attributes["domain"].values.tolist() == np.repeat(places, lengths).tolist()
    images, labels = content[1, 0]
    for problem, value in (
        ("images of float64", (images.astype(float), labels)),
        ("cannot be read (", (images, labels[:-1])),
        ("refused: the pickle asks for posix.system", Hostile(folder / "executed")),
        ("is missing", None),
    ):
        files["SVHN/partitions/train_part0.pkl"] = pickle.dumps(value)
        if value is None:
            del files["SVHN/partitions/train_part0.pkl"]
        path = write_zip(folder / "digit_dataset.zip", files)
        message = failure(create(source="fedbn"), folder)
        assert message.startswith(f"{path}") and "SVHN/partitions/train_part0.pkl" in message and problem in message
    assert not (folder / "executed").exists()
