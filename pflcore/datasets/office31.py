"""Office-31: one kind of object in three domains, from its official archive."""

from __future__ import annotations

from typing import ClassVar

from pflcore.datasets import DATASETS
from pflcore.datasets._domains import Archive, DomainImages
from pflcore.datasets._download import Source

_HOMEPAGE = "https://faculty.cc.gatech.edu/~judy/domainadapt/"
_DOMAINS = ("amazon", "dslr", "webcam")
_CLASSES = """
    back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet
    headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen phone printer
    projector punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can
"""


@DATASETS.register
class Office31(DomainImages):
    """Office-31, 4,110 colour images of office objects in 31 classes and 3 domains.

    The domains are amazon (2,817 images), dslr (498) and webcam (795), in the attribute ``domain``. Looked for are
    ``domain_adaptation_images.tar.gz`` and what it unpacks to, ``amazon/images/<class>/``, ``dslr/images/<class>/`` and
    ``webcam/images/<class>/``, directly or in ``domain_adaptation_images/``. Images are scaled to a square. There is no
    test set: all samples are training samples. The authors publish no hash; the one that is checked is what several
    public projects found.
    """

    citation = "K. Saenko et al., Adapting Visual Category Models to New Domains, ECCV 2010"
    licence = "none stated by the authors; cite the paper"
    homepage = _HOMEPAGE
    download_size = "76 MB"
    domains = _DOMAINS
    archives = (
        Archive(
            Source(_HOMEPAGE, "md5", "1b536d114869a5a8aa4580b89e9758fb", "domain_adaptation_images.tar.gz"),
            _DOMAINS,
            "76 MB",
        ),
    )
    unpacked = "domain_adaptation_images"
    between = ("images",)
    class_names = tuple(_CLASSES.split())
    counts = (4110, 0)
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"domain": _DOMAINS}
