"""Registry of the conditions under which federations train: :data:`CONDITIONS`."""

from pflcore.conditions._base import Condition, Draws
from pflcore.registry import Registry

CONDITIONS: Registry[Condition] = Registry("condition", "pflcore.conditions")

__all__ = ["CONDITIONS", "Condition", "Draws"]
