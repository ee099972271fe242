"""Records: the settings that stages work with, a line each in ``stages/records.json``, under ids that are their hashes.

So whoever has an id, as every command of a stage does, can tell whether the record is the one that was compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.files import parse_json, read_file
from pipeline.spec.run import Run, short_hash, weights_id

_MOST = 1 << 28  # bytes; the records of 5,000 runs have a fortieth


def read_records(path: Path, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the records of runs, federations, datasets, selections and pretrained weights by their ids."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`")
    try:
        records = parse_json(read_file(path, _MOST).decode())
        found = {id_: records.get(id_) for id_ in ids}
    except (ValueError, AttributeError):
        raise UserError(f"{path}: edited by hand; run `pfl compile`") from None
    for id_, record in found.items():
        if not isinstance(record, dict):
            raise UserError(f"{path}: nothing of {id_}; run `pfl compile`")
    return found


def read_record(path: Path, id_: str) -> dict[str, Any]:
    """Return one of the records; raise :class:`UserError` also when it is not the one that the id is a hash of."""
    record = read_records(path, [id_])[id_]
    try:
        content: Any = record
        if "trials" in record:
            content = [record["space"], [[trial["chosen"], trial["runs"]] for trial in record["trials"]]]
        if (weights_id(record["content"]) if "content" in record else short_hash(content)) == id_.rpartition("-")[2]:
            return record
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path}: {id_}: edited by hand; run `pfl compile`")


def read_run(path: Path, id_: str) -> Run:
    """Return a run; raise as :func:`read_record`."""
    return Run(read_record(path, id_))


def read_chosen(path: Path) -> dict[str, Any]:
    """Return what a selection chose, ``training.lr`` → value; raise :class:`UserError` if it is missing or damaged."""
    try:
        chosen: dict[str, Any] = parse_json(read_file(path, _MOST).decode())["chosen"]
        if not all("." in name for name in chosen):
            raise TypeError(chosen)
    except (ValueError, KeyError, TypeError) as error:
        fault = f"not what a select stage writes ({type(error).__name__})"
        raise UserError(f"{path}: {fault}; delete it and run again") from None
    return chosen
