"""Office-Home: one kind of object in four domains, from its official archive."""

from __future__ import annotations

from typing import ClassVar

from pflcore.datasets import DATASETS
from pflcore.datasets._domains import Archive, DomainImages
from pflcore.datasets._download import Source

_HOMEPAGE = "https://www.hemanthdv.org/officeHomeDataset.html"
_ARCHIVE = "OfficeHomeDataset_10072016"
_DOMAINS = ("Art", "Clipart", "Product", "Real World")
_CLASSES = """
    Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer Couch
    Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer Helmet
    Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil
    Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon
    TV Table Telephone ToothBrush Toys Trash_Can Webcam
"""


@DATASETS.register
class OfficeHome(DomainImages):
    """Office-Home, 15,588 colour images of everyday objects in 65 classes and 4 domains.

    The domains are Art (2,427 images), Clipart (4,365), Product (4,439) and Real World (4,357), in the attribute
    ``domain``. Looked for are ``OfficeHomeDataset_10072016.zip`` and what it unpacks to, ``<domain>/<class>/``,
    directly or in ``OfficeHomeDataset_10072016/``. Images are scaled to a square, as in FedPerfix. There is no test
    set: all samples are training samples. The authors publish no hash; the one that is checked is what several public
    projects found.
    """

    citation = "H. Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017"
    licence = "non-commercial research and education only (fair use notice of the authors)"
    homepage = _HOMEPAGE
    download_size = "1.1 GB"
    domains = _DOMAINS
    archives = (
        Archive(Source(_HOMEPAGE, "md5", "b1c14819770c4448fd5b6d931031c91c", f"{_ARCHIVE}.zip"), _DOMAINS, "1.1 GB"),
    )
    unpacked = _ARCHIVE
    class_names = tuple(_CLASSES.split())
    counts = (15_588, 0)
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": _DOMAINS}
