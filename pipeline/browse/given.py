"""Options as they are given on the command line: ``key=value``, with the value in YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pflcore.errors import UserError
from pipeline.parsing import parse_yaml


def given_options(words: Sequence[str], name: str) -> dict[str, Any]:
    """Return the values by key. Raises :class:`UserError` for a word that is none; `name` is whose options they are."""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"--set {word!r} must be option=value, with an option of {name!r}")
        try:
            values[key] = parse_yaml(value)
        except ValueError:
            raise UserError(f"--set {word!r}: the value is not YAML") from None
    return values
