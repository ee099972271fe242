"""A small catalog for tests of the spec language, so that they depend on no real method and never import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pflcore.options import option
from pflcore.registry import Entry
from pipeline.spec.catalog import Catalog, describe_entry
from pipeline.spec.resolve import resolve
from pipeline.spec.run import SETTINGS
from pipeline.spec.specs import load_spec


class Ten(Entry):
    """Ten classes of small images."""

    class_names: ClassVar[tuple[str, ...]] = tuple(map(str, range(10)))


class Hundred(Entry):
    """A hundred classes of small images."""

    class_names: ClassVar[tuple[str, ...]] = tuple(map(str, range(100)))
    source: str = option("original", help="Which distribution of the data is read.", choices=("original", "mirror"))


class Dirichlet(Entry):
    """Class shares drawn from a Dirichlet distribution."""

    smoke: ClassVar[dict[str, Any]] = {"min_samples": 1}
    alpha: float = option(0.3, help="Concentration.", gt=0)
    min_samples: int = option(10, help="Fewest samples of a client.", ge=1)
    validation_share: float = option(0.0, help="Held back.", ge=0, lt=1, later=True)


class Pathological(Entry):
    """A few classes per client."""

    classes_per_client: int = option(2, help="Classes of a client.", ge=1)
    shrink: float = option(1.0, help="Share that is kept.", gt=0, le=1, later=True)


class ConvNet(Entry):
    """Two convolutions."""

    channels: tuple[int, ...] = option((16, 32), help="Channels of the convolutions.", ge=1)
    pool: float = option(2.0, help="Pooling factor.", choices=(1.0, 2.0))


class Vit(Entry):
    """A vision Transformer."""

    smoke: ClassVar[dict[str, Any]] = {"depth": 1}
    groups: ClassVar[dict[str, str]] = {"qkv": r"attention\.qkv", "head": r"head\."}
    depth: int = option(8, help="Blocks.", ge=1)
    dropout: float | None = option(None, help="Dropout; null is none.", ge=0, lt=1)


class FedAvg(Entry):
    """Averaging of everything."""


class FedPer(Entry):
    """A personal head.

    The rest is averaged.
    """

    citation: ClassVar[str] = "Arivazhagan et al., 2019"
    personal: ClassVar[tuple[str, ...]] = ("head",)
    layers: int = option(help="How many layers are personal.", ge=1)


class FedTP(Entry):
    """Generated attention."""

    smoke: ClassVar[dict[str, Any]] = {"embedding": 8}
    embedding: int = option(32, help="Length of a client's embedding.", ge=1)
    server_lr: float = option(0.01, help="Learning rate of the server.", gt=0)
    normalised: bool = option(False, help="Whether embeddings have unit length.")
    variant: str = option("as_written", help="Reading of the paper.", choices=("as_written", "as_released"))


class Maps(Entry):
    """Where models look."""

    title: ClassVar[str] = "Maps of attention"
    smoke: ClassVar[dict[str, Any]] = {"images": 1}
    client_options: ClassVar[tuple[str, ...]] = ("clients",)
    clients: tuple[int, ...] = option((0, 1), help="Whose models.", ge=0)
    images: int = option(2, help="Images of each.", ge=1)


class Weights(Entry):
    """What was learned."""

    title: ClassVar[str] = "Learned weights"


ENTRIES = {
    "dataset": (Ten, Hundred),
    "partition": (Dirichlet, Pathological),
    "backbone": (ConvNet, Vit),
    "method": (FedAvg, FedPer, FedTP),
    "analysis": (Maps, Weights),
}


def _described(classes):
    return {name: describe_entry(name, cls) for name, cls in classes.items()}


def _named(classes):
    return {cls.__name__.lower(): dataclass(frozen=True, kw_only=True)(cls) for cls in classes}


CATALOG = Catalog({kind: _described(_named(classes)) for kind, classes in ENTRIES.items()}, _described(SETTINGS))
BASE = "{dataset: ten, partition: dirichlet, clients: 20, backbone: vit, method: fedtp}"
"""A complete run in flow style."""


def write_specs(folder, files):
    """Write files by path, below `folder`; return its folder of specs."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "specs"


def resolved(folder, text, profile="paper", **others):
    """Resolve one spec given as text; `others` are files beside it, by name with `_` for the dot."""
    files = {f"specs/{name.replace('_', '.')}": content for name, content in others.items()}
    specs = write_specs(folder, {**files, "specs/a.yaml": text})
    return resolve(load_spec(specs / "a.yaml", specs, CATALOG), CATALOG, profile)
