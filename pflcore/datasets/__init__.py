"""The registry of datasets, :data:`DATASETS`, by name; related datasets share a file."""

from pflcore.datasets._base import Dataset
from pflcore.datasets._stand_in import stand_in, stand_in_counts
from pflcore.registry import Registry

DATASETS: Registry[Dataset] = Registry("dataset", "pflcore.datasets")

__all__ = ["DATASETS", "Dataset", "stand_in", "stand_in_counts"]
