"""What can be looked at after the last round, one analysis per file."""

from pflcore.engine.analysis import Analysis
from pflcore.registry import Registry

__all__ = ["ANALYSES", "Analysis"]

ANALYSES: Registry[Analysis] = Registry("analysis", "pflcore.analyses")
