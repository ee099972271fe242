"""Compile YAML specs to DVC pipelines and comparison tables. This module computes no gradient and imports no torch.

In Python it gives access to a study's results as DataFrames, its partitions and its trained models (docs/python.md):

import pipeline

frame = pipeline.open().results("quickstart")
"""

from importlib import import_module
from typing import Any

from pflcore.sources import note

note(__name__)

# These are imported on first access. pandas and torch would slow down the command line, and import statements would
# make these modules a part of every stage's code.
_STUDY, _TRAINING = "pipeline.library.study", "pipeline.library.training"
_OFFERED = {"NotUpToDate": _STUDY, "Study": _STUDY, "UserError": "pflcore.errors", "open": _STUDY, "train": _TRAINING}
__all__ = ["NotUpToDate", "Study", "UserError", "open", "train"]


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OFFERED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OFFERED})
