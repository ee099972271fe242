"""PASCAL VOC 2012 from its official archive, or any images of one's own in its layout."""

from __future__ import annotations

from pflcore.datasets import DATASETS
from pflcore.datasets._download import Source
from pflcore.datasets._voc import HOST, Voc


@DATASETS.register
class Voc2012(Voc):
    """PASCAL VOC 2012, 5,717 + 5,823 photographs with 27,450 boxes of 20 classes.

    The list train is the training set and val the test set, as the annotations of the official test set are not
    public. Looked for are the official archive, then ``VOCdevkit/VOC2012/``, ``VOC2012/``, and ``Annotations/``,
    ``ImageSets/`` and ``JPEGImages/`` directly in the folder; the archive is downloaded when none is there. With the
    option `class_list` data of one's own in this layout is read.

    Images are scaled to a square and boxes with them. The label of an image is the class of its largest object that is
    not marked difficult, or of its largest object when all are. Boxes in pixels count from 1 and include both ends;
    shares of the width and height are kept. An image without an object is an error.
    """

    homepage = f"{HOST}/voc2012/"
    download_size = "2.0 GB"
    counts = (5717, 5823)
    splits = ("train", "val")
    year_folder = "VOC2012"
    archives = (Source(f"{HOST}/voc2012/VOCtrainval_11-May-2012.tar", "md5", "6cd6e144f989b92b3379bac3b3de84fd"),)
    files = (archives[0].name, "VOCdevkit/VOC2012/", "VOC2012/", "Annotations/")
