"""Human activities from the sensors of a smartphone, by person (UCI HAR)."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.preparation import track
from pflcore.data.samples import SPLITS, Attribute, Inputs, Samples, as_floats
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, ArrayDataset
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import GET_AGAIN, Files, reading
from pflcore.errors import UserError
from pflcore.options import option

_HOMEPAGE = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
_SENSORS = tuple(f"{sensor}_{axis}" for sensor in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
_TIMES, _FEATURES, _PERSONS = 128, 561, 30


@DATASETS.register
class Har(ArrayDataset):
    """Six activities of 30 persons, from the sensors of a smartphone at the waist (UCI HAR).

    A sample is 2.56 seconds of nine signals at 50 Hz, [9, 128]: acceleration without gravity (g), angular velocity
    (rad/s) and total acceleration (g), each along three axes; or the 561 features that the authors computed from them.
    The person is the attribute ``person``. UCI's training and test files have different persons, 21 and 9, and are
    joined here: with the partition ``natural`` each person is a client, and its ``test_share`` sets the test samples.
    Neighbouring samples of a person have half of their readings in common, so readings in the test set are in training.
    The archive is the one inside UCI's present download. UCI states no hash; others publish this one.
    """

    name = "har"
    citation = "Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN 2013"
    licence = "CC BY 4.0 by UCI's page; by its README no commercial use"
    homepage = _HOMEPAGE
    access = DOWNLOAD
    download_size = "61 MB"
    original = (len(_SENSORS), _TIMES)
    archive: ClassVar[Source] = Source(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
        "sha256",
        "2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
    )
    files = (archive.name, "UCI HAR Dataset/")
    class_names = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
    counts = (10_299, 0)
    attributes: ClassVar[dict[str, Any]] = {"person": tuple(str(number) for number in range(1, _PERSONS + 1))}

    inputs: str = option("signals", choices=("signals", "features"), help="The nine signals, or the 561 features.")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.original if self.inputs == "signals" else (_FEATURES,)

    def data_files(self, folder: Path) -> list[DataFile]:
        return [DataFile(self.name, folder, self.files, self.archive, self.download_size, automatic=True)]

    def load(self, folder: Path) -> Samples:
        advance = track("reading har", len(SPLITS))
        inputs, numbers = [], []
        parts = tuple(f"{split}/" for split in SPLITS)
        with self.open(folder, (self.archive,), "UCI HAR Dataset", parts) as (files, source):
            for split in SPLITS:
                inputs.append(self._inputs(files, split))
                numbers.append([_read(files, f"{split}/{name}_{split}.txt", 1)[:, 0] for name in ("y", "subject")])
                advance(1)
        labels, persons = (np.concatenate(columns).astype(np.int64) - 1 for columns in zip(*numbers, strict=True))
        floats = np.concatenate(inputs)
        if not len(floats) == len(labels) == len(persons):
            lengths = f"{len(floats)} inputs, {len(labels)} labels, {len(persons)} persons"
            raise UserError(f"{files.where}: {lengths}; {GET_AGAIN}")
        attributes = {"person": Attribute(persons, self.attributes["person"])}
        train = np.ones(len(labels), bool)
        return self.complete(floats, labels, train, where=files.where, source=source, attributes=attributes)

    def _inputs(self, files: Files, split: str) -> Inputs:
        if self.inputs == "features":
            return _read(files, f"{split}/X_{split}.txt", _FEATURES)
        names = [f"{split}/Inertial Signals/{sensor}_{split}.txt" for sensor in _SENSORS]
        with reading(files.where):
            return np.stack([_read(files, name, _TIMES) for name in names], axis=1)


def _read(files: Files, name: str, width: int) -> Inputs:
    """Return the numbers in a text file, float32 [lines, width]."""
    where, read = files.reader(name)
    with reading(where):
        numbers = np.loadtxt(BytesIO(read()), dtype=np.float64, ndmin=2)
        if numbers.shape[1] != width:
            raise ValueError(f"{numbers.shape[1]} numbers in a line, not {width}")
    return as_floats(numbers, where)
