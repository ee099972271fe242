"""Synthetic digits of Ganin and Lempitsky from their MATLAB files."""

from __future__ import annotations

from pathlib import Path

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import FOLDER, Dataset
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets.svhn import read_matlab

_FILES = ("synth_train_32x32.mat", "synth_test_32x32.mat")


@DATASETS.register
class SynthDigits(Dataset):
    """Synthetic digits, 479,400 + 9,553 colour images of 32x32, rendered from fonts.

    The authors' page leads to ``SynthDigits.zip`` on a file sharing service; unpack ``synth_train_32x32.mat`` and
    ``synth_test_32x32.mat`` from it into the dataset's folder. No hash of them is published. Mean and std are 0.5.
    """

    citation = "Y. Ganin and V. Lempitsky, Unsupervised Domain Adaptation by Backpropagation, ICML 2015"
    licence = "none stated by the authors; cite the paper"
    homepage = "http://yaroslav.ganin.net/"
    download_size = "1.5 GB unpacked"
    access = FOLDER
    files = _FILES[:1]
    original = (3, 32, 32)
    class_names = tuple("0123456789")
    counts = (479_400, 9_553)
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return both files."""
        return [DataFile(name, folder, (name,), Source(self.homepage, file=name)) for name in _FILES]

    def load(self, folder: Path) -> Samples:
        """Read from `folder`."""
        paths = [folder / name for name in _FILES]
        if not any(path.is_file() for path in paths):
            raise self.absent(folder, " and ".join(_FILES))
        return self.complete(*self.join(read_matlab(paths)), where=str(folder), source=", ".join(_FILES))
