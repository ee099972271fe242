"""YAML that may be damaged: its parser raises whatever a wrong date, number or depth makes it raise."""

from __future__ import annotations

import re
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 1000  # libyaml's loader runs off the stack at some ten thousand, which ends the process
_DEEP_BLOCKS = re.compile(rf"[ \-?]{{{_MAX_DEPTH}}}")  # how a line begins that is as deep


def parse_yaml(text: str | bytes) -> Any:
    """Return what a generated YAML text says. Raises ``ValueError``, and nothing else, for whatever is no YAML."""
    try:
        check_depth(text if isinstance(text, str) else text.decode("latin1"))
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def check_depth(text: str) -> None:
    """Raise ``ValueError`` where lists and mappings are nested deeper than a loader can bear."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH or _DEEP_BLOCKS.search(text):
        raise ValueError("nested too deeply")
