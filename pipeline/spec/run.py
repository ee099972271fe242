"""A run: one method trained on one federation, fully resolved. Its id is a hash of all that it is.

What trains a run imports this, so it holds no more than a run is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pflcore.registry import KINDS
from pflcore.settings import Evaluation, Training

LISTS = {"analyses": "analysis"}
"""Fields of a run that are lists of entries, each of them at most once, and the kind of these."""
COMPONENTS = tuple(kind for kind in KINDS if kind not in LISTS.values())
"""The kinds of which a run has one entry, in a field that is called like the kind."""
SETTINGS: dict[str, type] = {"training": Training, "evaluation": Evaluation}
"""Its parts that have none, and what they are made of."""
FEDERATION = ("dataset", "partition", "clients", "seed")
"""The fields of a run that say who holds which samples."""
ABSENT = "absent:"
"""How the pretrained weights of a run begin whose file is not there."""
RUN_FIELDS = (*FEDERATION, "backbone", "method", "training", "evaluation", *LISTS)
"""The fields of a run in the order in which it is written; an empty list is left out."""


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal data, equal text. Raises ``ValueError`` for NaN, infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def describe_component(record: dict[str, Any]) -> str:
    """Return the name of a component of a run, and its options as far as they say anything (not null, not 0)."""
    words = ", ".join(f"{key} {value}" for key, value in record.items() if key != "name" and value)
    return str(record["name"]) + (f" ({words})" if words else "")


def options(part: dict[str, Any]) -> dict[str, Any]:
    """Return what a part of a run says beside its name; lists become tuples, as options are immutable."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in part.items() if key != "name"}


def short_hash(value: Any) -> str:
    """Return eight hex digits of the SHA-256 of canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:8]


def weights_id(content: str) -> str:
    """Return what pretrained weights are called, given :attr:`Run.pretrained`."""
    return short_hash({"pretrained": content})


@dataclass(frozen=True, eq=False)
class Run:
    """A run, given by its record, which is not to be modified. Runs are equal when their records are.

    The record has dataset, partition, backbone and method (each a mapping with `name`), clients, seed, training,
    evaluation, analyses (a list of such mappings, if there are any), profile and, if it is tuned, the id of a
    selection, with defaults written out, but for options marked `later`. Ids hold only ``[a-z0-9_.-]``.
    """

    record: dict[str, Any]

    @cached_property
    def id(self) -> str:
        """``<method>-<backbone>-<dataset>-<8 hex digits>``."""
        return f"{self.method}-{self.backbone}-{self.dataset}-{short_hash(self.record)}"

    @cached_property
    def federation(self) -> dict[str, Any]:
        """What determines who holds which samples; runs that share it share the partition artifact."""
        return {field: self.record[field] for field in FEDERATION}

    @cached_property
    def federation_id(self) -> str:
        """``<dataset>-<partition>-n<clients>-s<seed>-<8 hex digits>``."""
        return f"{self.dataset}-{self.partition}-n{self.clients}-s{self.seed}-{short_hash(self.federation)}"

    @cached_property
    def data(self) -> dict[str, Any]:
        """What determines the dataset artifact."""
        return {"dataset": self.record["dataset"]}

    @cached_property
    def data_id(self) -> str:
        """``<dataset>-<8 hex digits>``."""
        return f"{self.dataset}-{short_hash(self.data)}"

    @property
    def dataset(self) -> str:
        return str(self.record["dataset"]["name"])

    @property
    def partition(self) -> str:
        return str(self.record["partition"]["name"])

    @property
    def backbone(self) -> str:
        return str(self.record["backbone"]["name"])

    @property
    def method(self) -> str:
        return str(self.record["method"]["name"])

    @property
    def clients(self) -> int:
        return int(self.record["clients"])

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @cached_property
    def training(self) -> Training:
        """How it is trained. Raises as :attr:`evaluation`."""
        return Training(**options(self.record["training"]))

    @cached_property
    def evaluation(self) -> Evaluation:
        """When it is measured. Raises ``TypeError`` for a setting that there is not, :class:`UserError` for a value."""
        return Evaluation(**options(self.record["evaluation"]))

    @property
    def analyses(self) -> dict[str, dict[str, Any]]:
        """The analyses that it makes, by name, with their options."""
        return {one["name"]: options(one) for one in self.record.get("analyses", ())}

    @property
    def tuned(self) -> str | None:
        """The selection whose choice is laid over its settings when it is trained."""
        selection: str | None = self.record.get("tuned")
        return selection

    def with_chosen(self, chosen: Mapping[str, Any]) -> Run:
        """Return it with chosen values in place of its own: ``training.lr`` → value."""
        record = dict(self.record)
        for name, value in chosen.items():
            part, _, option = name.partition(".")
            record[part] = {**record[part], option: value}
        return Run(record)

    @property
    def pretrained(self) -> str | None:
        """What is in the file of weights that its backbone begins with: ``sha256:<64 hex digits>``."""
        content: str | None = self.record["backbone"].get("pretrained")
        return content

    def options(self, component: str) -> dict[str, Any]:
        """Return what it says of one of :data:`COMPONENTS` beside its name, less :attr:`pretrained`."""
        return {name: value for name, value in options(self.record[component]).items() if name != "pretrained"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.id)
