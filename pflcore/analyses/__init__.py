"""The registry of analyses, which a run computes after its last round, by name; related ones share a file."""

from pflcore.engine.analysis import Analysis
from pflcore.registry import Registry

__all__ = ["ANALYSES", "Analysis"]

ANALYSES: Registry[Analysis] = Registry("analysis", "pflcore.analyses")
