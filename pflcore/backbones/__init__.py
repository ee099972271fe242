"""Model architectures, one per file."""

from pflcore.backbones._base import Backbone
from pflcore.registry import Registry

__all__ = ["BACKBONES", "Backbone"]

BACKBONES: Registry[Backbone] = Registry("backbone", "pflcore.backbones")
