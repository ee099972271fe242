"""Reading the small resolved files that stages depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pflcore.errors import UserError


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
    return record


def options(component: dict[str, Any]) -> dict[str, Any]:
    """A component's options without its name; lists become tuples, as options are immutable."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in component.items() if key != "name"
    }
