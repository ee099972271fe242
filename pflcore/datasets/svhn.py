"""SVHN from its official MATLAB files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from pflcore.data.preparation import track
from pflcore.data.samples import Bytes, Rows, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import DOWNLOAD, Dataset
from pflcore.datasets._download import Source
from pflcore.datasets._files import reading
from pflcore.options import option

_HOST = "http://ufldl.stanford.edu/housenumbers"
_EXTRA = 531_131


@DATASETS.register
class Svhn(Dataset):
    """Street View House Numbers, 73,257 + 26,032 cropped digits, colour images of 32x32.

    The files ``train_32x32.mat`` and ``test_32x32.mat``, and with `extra` also ``extra_32x32.mat``, are downloaded when
    they are not there. They write the digit 0 as label 10. Mean and std are those of the training images.
    """

    citation = (
        "Y. Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop 2011"
    )
    licence = "for non-commercial use only"
    homepage = f"{_HOST}/"
    download_size = "246 MB; with the extra images 1.6 GB"
    access = DOWNLOAD
    files = ("train_32x32.mat",)
    original = (3, 32, 32)
    class_names = tuple("0123456789")
    counts = (73_257, 26_032)
    mean = (0.4377, 0.4438, 0.4728)
    std = (0.1980, 0.2010, 0.1970)
    sources: ClassVar[dict[str, Source]] = {
        "train": Source(f"{_HOST}/train_32x32.mat", "md5", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        "extra": Source(f"{_HOST}/extra_32x32.mat", "md5", "a93ce644f1a588dc4d68dda5feec44a7"),
        "test": Source(f"{_HOST}/test_32x32.mat", "md5", "eb5a983be6a315427106f1b164d9cef3"),
    }

    extra: bool = option(
        False, help="Whether the 531,131 further, easier images are training images, after the others."
    )

    @property
    def expected(self) -> tuple[int, int]:
        """Return the number of training and test samples with the present options."""
        train, test = self.counts
        return train + _EXTRA * self.extra, test

    def load(self, folder: Path) -> Samples:
        """Read from `folder`, downloading the files that are missing."""
        sources = [source for name, source in self.sources.items() if self.extra or name != "extra"]
        paths = [source.obtain(folder) for source in sources]
        pixels, labels, train = self.join(read_matlab(paths))
        labels[labels == 10] = 0
        return self.complete(pixels, labels, train, where=str(folder), source=", ".join(path.name for path in paths))


def read_matlab(paths: Sequence[Path]) -> list[tuple[Bytes, Rows]]:
    """Read MATLAB files up to version 7 with ``X`` [H, W, C, n] and ``y`` [n, 1]; return [n, C, H, W] and [n] of each.

    Raises:
        UserError: A file that is absent, damaged or of another content.
    """
    import scipy.io

    parts = []
    advance = track(f"reading {', '.join(path.name for path in paths)}", len(paths))
    for path in paths:
        with reading(path), path.open("rb") as file:
            arrays = scipy.io.loadmat(file, variable_names=["X", "y"])
            labels = arrays["y"].reshape(-1)
            parts.append((arrays["X"].transpose(3, 2, 0, 1), labels.astype(np.int64)))
        advance(1)
    return parts
