"""Partitions of a dataset over clients: one module per scheme, found by name through :data:`PARTITIONS`."""

from __future__ import annotations

from pflcore.partitions._base import Partition, partition
from pflcore.registry import Registry

PARTITIONS: Registry[Partition] = Registry("partition", "pflcore.partitions")

__all__ = ["PARTITIONS", "Partition", "partition"]
