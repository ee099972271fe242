"""PASCAL VOC 2007 from its official archives, or any images of one's own in its layout."""

from __future__ import annotations

from pflcore.datasets import DATASETS
from pflcore.datasets._download import Source
from pflcore.datasets._voc import HOST, Voc


@DATASETS.register
class Voc2007(Voc):
    """PASCAL VOC 2007, 5,011 + 4,952 photographs with 24,640 boxes of 20 classes.

    The list trainval is the training set and test the test set. Looked for are both official archives, then
    ``VOCdevkit/VOC2007/``, ``VOC2007/``, and ``Annotations/``, ``ImageSets/`` and ``JPEGImages/`` directly in the
    folder; the archives are downloaded when none is there. With the option `class_list` data of one's own in this
    layout is read.

    Images are scaled to a square and boxes with them. The label of an image is the class of its largest object that is
    not marked difficult, or of its largest object when all are. Boxes in pixels count from 1 and include both ends;
    shares of the width and height are kept. An image without an object is an error.
    """

    homepage = f"{HOST}/voc2007/"
    download_size = "890 MB"
    counts = (5011, 4952)
    splits = ("trainval", "test")
    year_folder = "VOC2007"
    archives = (
        Source(f"{HOST}/voc2007/VOCtrainval_06-Nov-2007.tar", "md5", "c52e279531787c972589f7e41ab4ae64"),
        Source(f"{HOST}/voc2007/VOCtest_06-Nov-2007.tar", "md5", "b6e924de25625d8de591ea690078ad9f"),
    )
    files = (*(source.name for source in archives), "VOCdevkit/VOC2007/", "VOC2007/", "Annotations/")
