"""Registry of the federated learning methods; a file has one method or a family of methods."""

from pflcore.method import Method
from pflcore.registry import Registry

__all__ = ["METHODS", "Method"]

METHODS: Registry[Method] = Registry("method", "pflcore.methods")
