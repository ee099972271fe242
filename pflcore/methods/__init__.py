"""Federated learning methods: those that only say what is personal in `simple`, most others one per file."""

from pflcore.method import Method
from pflcore.registry import Registry

__all__ = ["METHODS", "Method"]

METHODS: Registry[Method] = Registry("method", "pflcore.methods")
