"""PASCAL VOC 2007 and 2012 together, as detectors are trained on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._download import DataFile
from pflcore.datasets._images import Form
from pflcore.datasets._voc import LARGEST, RULE_HELP, RULES, Voc, read_splits
from pflcore.datasets.voc2007 import Voc2007
from pflcore.datasets.voc2012 import Voc2012
from pflcore.options import option


@DATASETS.register
class VocDetection(Voc):
    """PASCAL VOC 2007 and 2012 together, 10,728 + 5,823 photographs with boxes.

    Training images are trainval of 2007 and train of 2012, test images are val of 2012.
    Both are read from the folders of ``voc2007`` and ``voc2012``, in any of the forms that these take, and downloaded
    there. Of 2007 the archive of the test set is not needed. pFedLA's "2007 and 2012, tested on 2012" has its test
    images in training; here no image is in both.

    The targets of a detector are the boxes. In partitions an image counts for one class, by `counts_as`.
    """

    homepage = "http://host.robots.ox.ac.uk/pascal/VOC/"
    download_size = "2.4 GB"
    counts = (10_728, 5_823)

    counts_as: str = option(LARGEST, choices=RULES, help=RULE_HELP)

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return those of both years, in their own folders."""
        years = self._years()
        return [replace(file, what=year.name) for year in years for file in year.data_files(folder.parent / year.name)]

    def load(self, folder: Path) -> Samples:
        """Read both years from their folders beside `folder`, downloading what is not there."""
        earlier, later = self._years()
        with (
            earlier.open(folder.parent / earlier.name, earlier.archives[:1]) as old,
            later.open(folder.parent / later.name) as new,
        ):
            train = [(old, earlier.splits[0]), (new, later.splits[0])]
            return read_splits(self, train, (new, later.splits[1]), self.counts_as, Form(self.shape, resize=True))

    def _years(self) -> tuple[Voc2007, Voc2012]:
        return Voc2007(size=self.size, class_list=self.class_list), Voc2012(size=self.size, class_list=self.class_list)
