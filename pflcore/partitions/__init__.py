"""The registry of partitions of a dataset over clients, :data:`PARTITIONS`, by name; related ones share a file."""

from pflcore.partitions._base import Partition, partition
from pflcore.registry import Registry

PARTITIONS: Registry[Partition] = Registry("partition", "pflcore.partitions")

__all__ = ["PARTITIONS", "Partition", "partition"]
