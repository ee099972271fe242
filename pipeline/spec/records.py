"""Records: the settings that stages work with, a line each in ``stages/records.json``, under ids that are their hashes.

So whoever has an id, as every command of a stage does, can tell whether the record is the one that was compiled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.json_text import parse_json
from pipeline.spec.run import Run, short_hash, weights_id


def read_records(path: Path, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the records of runs, federations, datasets, selections and pretrained weights by their ids."""
    wanted = list(ids)
    lines = dict(_lines(path, set(wanted)))
    records = {}
    for id_ in wanted:
        if id_ not in lines:
            raise UserError(f"{path}: nothing of {id_}; run `pfl compile`")
        try:
            records[id_] = json.loads(lines[id_])
        except ValueError:
            raise UserError(f"{path}: {id_}: edited by hand; run `pfl compile`") from None
    return records


def read_record(path: Path, id_: str) -> dict[str, Any]:
    """Return one of the records; raise as :func:`read_records`, and when it is not the one that the id is a hash of."""
    record = read_records(path, [id_])[id_]
    try:
        if _hash(record) == id_.rpartition("-")[2]:
            return record
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path}: {id_}: edited by hand; run `pfl compile`")


def read_run(path: Path, id_: str) -> Run:
    """Return a run; raise as :func:`read_records`."""
    return Run(read_record(path, id_))


def read_chosen(path: Path) -> dict[str, Any]:
    """Return what a selection chose, ``training.lr`` → value; raise :class:`UserError` if it is missing or damaged."""
    try:
        chosen: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))["chosen"]
        if not all("." in name for name in chosen):
            raise TypeError(chosen)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not what a select stage writes ({type(error).__name__}); delete it and run again"
        ) from None
    return chosen


def _hash(record: dict[str, Any]) -> str:
    """Return what the id of a record ends with."""
    if "trials" in record:
        return short_hash([record["space"], [[trial["chosen"], trial["runs"]] for trial in record["trials"]]])
    return weights_id(record["content"]) if "content" in record else short_hash(record)


def _lines(path: Path, ids: set[str]) -> Iterator[tuple[str, str]]:
    """Yield id and record of the lines that are asked for, which are few of the thousands that a study may have."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`")
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            id_, _, record = line.partition(": ")
            if (name := id_.strip('"')) in ids:
                yield name, record.rstrip(",\n")
