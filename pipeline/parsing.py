"""YAML and TOML of files that may be damaged: their parsers raise whatever a wrong date, number or depth makes them."""

from __future__ import annotations

import tomllib
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str | bytes) -> Any:
    """What a generated YAML text says. Raises ``ValueError``, and nothing else, for whatever is none."""
    try:
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text says. Raises ``ValueError``, and nothing else, for whatever is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
