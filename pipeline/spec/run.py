"""A run: one method trained on one federation, fully resolved. Its id is a hash of all that it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal data, equal text. Raises ``ValueError`` for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def describe_component(record: dict[str, Any]) -> str:
    """A component of a run in words: its name, and its options as far as they say anything (not null, not 0)."""
    told = ", ".join(f"{key} {value}" for key, value in record.items() if key != "name" and value)
    return str(record["name"]) + (f" ({told})" if told else "")


def short_hash(value: Any) -> str:
    """Eight hex digits of the SHA-256 of canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:8]


@dataclass(frozen=True, eq=False)
class Run:
    """A run, given by its record.

    Ids hold only ``[a-z0-9_.-]``, since entries are named like Python modules. Runs are equal when their records are.

    Args:
        record: dataset, partition, backbone and method (each a mapping with `name`), clients, seed, training,
            evaluation and profile, with defaults written out, but for options marked `later`. Not to be modified.
    """

    record: dict[str, Any]

    @cached_property
    def id(self) -> str:
        """``<method>-<backbone>-<dataset>-<8 hex digits>``."""
        return f"{self.method}-{self.backbone}-{self.dataset}-{short_hash(self.record)}"

    @cached_property
    def federation(self) -> dict[str, Any]:
        """What determines who holds which samples; runs that share it share the partition artifact."""
        return {field: self.record[field] for field in ("dataset", "partition", "clients", "seed")}

    @cached_property
    def federation_id(self) -> str:
        """``<dataset>-<partition>-n<clients>-s<seed>-<8 hex digits>``."""
        clients, seed = self.record["clients"], self.record["seed"]
        return f"{self.dataset}-{self.partition}-n{clients}-s{seed}-{short_hash(self.federation)}"

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
        """Name of the dataset."""
        return str(self.record["dataset"]["name"])

    @property
    def partition(self) -> str:
        """Name of the partition scheme."""
        return str(self.record["partition"]["name"])

    @property
    def backbone(self) -> str:
        """Name of the backbone."""
        return str(self.record["backbone"]["name"])

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.record["method"]["name"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.id)
