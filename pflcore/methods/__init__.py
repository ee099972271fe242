"""Federated learning methods, found by name; families share a file."""

from pflcore.method import Method
from pflcore.registry import Registry

__all__ = ["METHODS", "Method"]

METHODS: Registry[Method] = Registry("method", "pflcore.methods")
