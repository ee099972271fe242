"""A small catalog for tests of the spec language, so that they depend on no real method and never import torch."""

from dataclasses import make_dataclass

from pflcore.options import option
from pflcore.registry import Entry
from pipeline.spec.catalog import Catalog, describe_entry
from pipeline.spec.resolve import resolve
from pipeline.spec.run import SETTINGS
from pipeline.spec.specs import load_spec
from support.official import write_files


def _entry(doc, options=None, **facts):
    """A class with this docstring, options by name as (type, option), and class attributes."""
    found = [(name, *option) for name, option in (options or {}).items()]
    namespace = {"__doc__": doc, **facts}
    return make_dataclass("Entry", found, bases=(Entry,), namespace=namespace, frozen=True, kw_only=True)


_SOURCE = option("original", help="Which distribution of the data is read.", choices=("original", "mirror"))
_VARIANT = option("as_written", help="Reading of the paper.", choices=("as_written", "as_released"))
_DIRICHLET = {
    "alpha": (float, option(0.3, help="Concentration.", gt=0)),
    "min_samples": (int, option(10, help="Fewest samples of a client.", ge=1)),
    "validation_share": (float, option(0.0, help="Held back.", ge=0, lt=1, later=True)),
}
_PATHOLOGICAL = {
    "classes_per_client": (int, option(2, help="Classes of a client.", ge=1)),
    "shrink": (float, option(1.0, help="Share that is kept.", gt=0, le=1, later=True)),
}
_CONVNET = {
    "channels": (tuple[int, ...], option((16, 32), help="Channels of the convolutions.", ge=1)),
    "pool": (float, option(2.0, help="Pooling factor.", choices=(1.0, 2.0))),
}
_VIT = {
    "depth": (int, option(8, help="Blocks.", ge=1)),
    "dropout": (float | None, option(None, help="Dropout; null is none.", ge=0, lt=1)),
}
_FEDTP = {
    "embedding": (int, option(32, help="Length of a client's embedding.", ge=1)),
    "server_lr": (float, option(0.01, help="Learning rate of the server.", gt=0)),
    "normalised": (bool, option(False, help="Whether embeddings have unit length.")),
    "variant": (str, _VARIANT),
}
_MAPS = {
    "clients": (tuple[int, ...], option((0, 1), help="Whose models.", ge=0)),
    "images": (int, option(2, help="Images of each.", ge=1)),
}
_FEDPER = {"layers": (int, option(help="How many layers are personal.", ge=1))}
_CITED = {"citation": "Arivazhagan et al., 2019", "personal": ("head",)}
_TEN, _HUNDRED = (tuple(map(str, range(count))) for count in (10, 100))
ENTRIES = {
    "dataset": {
        "ten": _entry("Ten classes of small images.", class_names=_TEN),
        "hundred": _entry("A hundred classes of small images.", {"source": (str, _SOURCE)}, class_names=_HUNDRED),
    },
    "partition": {
        "dirichlet": _entry("Class shares drawn from a distribution.", _DIRICHLET, smoke={"min_samples": 1}),
        "pathological": _entry("A few classes per client.", _PATHOLOGICAL),
    },
    "backbone": {
        "convnet": _entry("Two convolutions.", _CONVNET),
        "vit": _entry("A Transformer.", _VIT, smoke={"depth": 1}, groups={"qkv": r"attention\.qkv", "head": r"head\."}),
    },
    "method": {
        "fedavg": _entry("Averaging of everything."),
        "fedper": _entry("A personal head.\n\nThe rest is averaged.", _FEDPER, **_CITED),
        "fedtp": _entry("Generated attention.", _FEDTP, smoke={"embedding": 8}),
    },
    "condition": {
        "none": _entry("Nothing."),
        "storm": _entry("Something.", {"force": (float, option(0.5, help="How much.", gt=0))}),
    },
    "analysis": {
        "maps": _entry(
            "Where models look.", _MAPS, title="Maps of attention", smoke={"images": 1}, client_options=("clients",)
        ),
        "weights": _entry("What was learned.", title="Learned weights"),
    },
}


def _described(classes):
    return {name: describe_entry(name, cls) for name, cls in classes.items()}


CATALOG = Catalog({kind: _described(classes) for kind, classes in ENTRIES.items()}, _described(SETTINGS))
BASE = "{dataset: ten, partition: dirichlet, clients: 20, backbone: vit, method: fedtp}"
"""A complete run in flow style."""


def write_specs(folder, files):
    """Write files by path, below `folder`; return its folder of specs."""
    return write_files(folder, files) / "specs"


def resolved(folder, text, profile="paper", **others):
    """Resolve one spec given as text; `others` are files beside it, by name with `_` for the dot."""
    files = {f"specs/{name.replace('_', '.')}": content for name, content in others.items()}
    specs = write_specs(folder, {**files, "specs/a.yaml": text})
    return resolve(load_spec(specs / "a.yaml", specs, CATALOG), CATALOG, profile)
