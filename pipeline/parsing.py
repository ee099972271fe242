"""YAML and TOML of files that may be damaged: their parsers raise whatever a wrong date, number or depth makes them."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 1000  # of what is in what; libyaml's loader runs off the stack at some ten thousand, which ends the process
_BLOCKS = re.compile(r"[ \-?]{1000}")  # what a line begins with that is as deep


def parse_yaml(text: str | bytes) -> Any:
    """What a generated YAML text says. Raises ``ValueError``, and nothing else, for whatever is none."""
    try:
        if _may_be_deep(text):
            _check_depth(text)
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def _may_be_deep(text: str | bytes) -> bool:
    """Whether it is worth looking; no generated text has so many brackets, or such long beginnings of lines."""
    words = text if isinstance(text, str) else text.decode("latin1")
    return words.count("[") + words.count("{") > _DEEPEST or bool(_BLOCKS.search(words))


def _check_depth(text: str | bytes) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text says. Raises ``ValueError``, and nothing else, for whatever is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
