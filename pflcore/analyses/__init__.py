"""What can be looked at after the last round: analyses, found by name; families share a file."""

from pflcore.engine.analysis import Analysis
from pflcore.registry import Registry

__all__ = ["ANALYSES", "Analysis"]

ANALYSES: Registry[Analysis] = Registry("analysis", "pflcore.analyses")
