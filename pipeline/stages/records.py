"""Reading the small resolved files that stages depend on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pflcore.errors import UserError

_COMPONENTS = ("dataset", "partition", "backbone", "method")
_SETTINGS = ("training", "evaluation")
T = TypeVar("T")


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """A generated YAML file with at least the given keys.

    Raises:
        UserError: It is missing, or not what `pfl compile` writes.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`, or name a file below stages/")
    try:
        record = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML ({error}); run `pfl compile`") from None
    if not isinstance(record, dict) or any(key not in record for key in keys):
        raise UserError(f"{path}: expected the keys {', '.join(keys)}; run `pfl compile`")
    for key in keys:
        needed = {"name"} if key in _COMPONENTS else set()
        if key in _COMPONENTS + _SETTINGS and not (isinstance(record[key], dict) and needed <= set(record[key])):
            raise UserError(f"{path}: {key}: {record[key]!r} is not what `pfl compile` writes; run it")
    return record


def read_resolved(path: Path) -> dict[str, Any]:
    """A resolved table. Raises :class:`UserError` when it is missing, or not what `pfl compile` writes."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); run `pfl compile`") from None
    if not isinstance(table, dict) or not {"spec", "title", "cells", "runs"} <= set(table):
        raise UserError(f"{path}: not a resolved table; run `pfl compile`")
    return table


def settings(kind: Callable[..., T], values: dict[str, Any], path: Path) -> T:
    """A group of settings from the record in `path`. Raises :class:`UserError` for an unknown or invalid one."""
    try:
        return kind(**options(values))
    except TypeError as error:
        raise UserError(f"{path}: {error}; run `pfl compile`") from None


def options(component: dict[str, Any]) -> dict[str, Any]:
    """Options, of a component without its name; lists become tuples, as options are immutable."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in component.items() if key != "name"
    }
