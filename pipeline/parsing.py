"""Parsing of YAML that may be damaged. PyYAML raises many kinds of errors for wrong dates, numbers and depths."""

from __future__ import annotations

import re
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 1000  # at about ten thousand libyaml's loader overflows the stack, which ends the process
_DEEP_BLOCKS = re.compile(rf"[ \-?]{{{_MAX_DEPTH}}}")  # the beginning of a line that is nested as deeply


def parse_yaml(text: str | bytes) -> Any:
    """Return the content of a generated YAML text. Raises ``ValueError``, and no other error, if it is not YAML."""
    try:
        check_depth(text if isinstance(text, str) else text.decode("latin1"))
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def check_depth(text: str) -> None:
    """Raise ``ValueError`` if lists and mappings are nested too deeply for a loader."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH or _DEEP_BLOCKS.search(text):
        raise ValueError("nested too deeply")
