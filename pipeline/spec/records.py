"""Reading the small resolved records that stages depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.json_text import parse_json
from pflcore.reading import read_file
from pipeline.parsing import parse_yaml
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS, Run

_MOST = 1 << 20  # bytes; a record has some 2,000


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """A generated YAML file with at least the given keys.

    Raises:
        UserError: It is missing, or not what `pfl compile` writes.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`, or name a file below stages/")
    try:
        record = parse_yaml(read_file(path, _MOST))
    except ValueError as error:
        raise UserError(f"{path}: not YAML ({error}); run `pfl compile`") from None
    if not isinstance(record, dict) or any(key not in record for key in keys):
        raise UserError(f"{path}: expected the keys {', '.join(keys)}; run `pfl compile`")
    for key in keys:
        needed = {"name"} if key in COMPONENTS else set()
        if key in (*COMPONENTS, *SETTINGS) and not (isinstance(record[key], dict) and needed <= set(record[key])):
            raise UserError(f"{path}: {key}: {record[key]!r} is not what `pfl compile` writes; run it")
    return record


def read_chosen(folder: Path, selection: str) -> dict[str, Any]:
    """What a selection has chosen, ``training.lr`` → value. Raises :class:`UserError` when it is missing or damaged."""
    path = folder / f"{selection}.json"
    try:
        chosen: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))["chosen"]
        if not all("." in name for name in chosen):
            raise TypeError(chosen)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not what a select stage writes ({type(error).__name__}); delete it and run again"
        ) from None
    return chosen


def read_run(path: Path) -> Run:
    """A resolved run whose settings are valid. Raises as :func:`read_record`."""
    run = Run(read_record(path, *(field for field in RUN_FIELDS if field not in LISTS)))
    try:
        for name in SETTINGS:
            getattr(run, name)
    except (TypeError, UserError) as error:
        raise UserError(f"{path}: {error}; run `pfl compile`") from None
    return run
