"""Check whether the user's own data files are still those that the data stage has read.

The stage writes a note to ``.pfl/raw/<data id>.json``: a hash of names, sizes and times, which is quick to compare, and
a hash of the content, which decides if the first one differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pflcore.files import digest_of, files_below, write_text
from pipeline.spec.run import Run, options
from pipeline.workspace import Workspace, dataset_path, raw_data_folder


class Note(BaseModel):
    """The state of a folder when the data stage read it."""

    folder: Path
    listing: str  # hash of names, sizes and times
    content: str  # hash of names and content
    changed: str = ""  # a listing that is known to have other content

    def write(self, root: Path, data_id: str) -> None:
        write_text(root / ".pfl/raw" / f"{data_id}.json", self.model_dump_json())


def make_note(root: Path, record: dict[str, Any]) -> Note | None:
    """Return a note of the folder that a dataset will be read from; None unless it is there, with the user's own files.
    If it is not there, the data stage says what to do."""
    folder = _user_folder(root, record)
    if folder is None or not folder.is_dir():
        return None
    return Note(folder=folder, listing=_listing_hash(folder), content=digest_of(folder))


def _user_folder(root: Path, record: dict[str, Any]) -> Path | None:
    """Return the folder that a dataset with the user's own files is read from; None for any other dataset."""
    from pflcore.datasets import DATASETS
    from pflcore.datasets._user_files import UserFiles

    chosen = options(dict(record))
    generated = chosen.pop("stand_in")
    dataset = DATASETS.create(record["name"], **chosen)
    if generated or not isinstance(dataset, UserFiles):
        return None
    return dataset.root(raw_data_folder(root) / dataset.name)


def missing_folders(workspace: Workspace, runs: Iterable[Run]) -> list[str]:
    """Return a line for each folder of the user's own files that is not there, though runs have to be made from it."""
    records, root = {run.data_id: run.unencoded.record["dataset"] for run in runs}, workspace.root
    unread = (record for name, record in records.items() if not (root / dataset_path(name)).is_file())
    folders = dict.fromkeys(_user_folder(root, record) for record in unread)
    missing = [folder for folder in folders if folder and not folder.is_dir()]
    return [f"{folder}: not there; put the data there before `pfl run`" for folder in missing]


def changed_folders(workspace: Workspace) -> list[str]:
    """Return a line for each folder of the user's own files that is gone or has changed since it was read."""
    stages = workspace.stages / "data" / "dvc.yaml"
    used = stages.read_text(encoding="utf-8") if stages.is_file() else ""
    lines = []
    for path in sorted((workspace.private / "raw").glob("*.json")):
        data_id = path.stem
        if data_id not in used or not (workspace.root / dataset_path(data_id)).is_file():
            continue
        try:
            note = Note.model_validate_json(path.read_bytes())
        except ValidationError:  # a damaged note is ignored
            continue
        if not note.folder.is_dir():
            lines.append(f"{note.folder}: is gone; what was read from it stays in {dataset_path(data_id)}")
            continue
        listing = _listing_hash(note.folder)
        if listing not in (note.listing, note.changed):  # the content decides, and is compared once
            unchanged = digest_of(note.folder) == note.content
            note = note.model_copy(update={"listing" if unchanged else "changed": listing})
            note.write(workspace.root, data_id)
        if listing != note.listing:
            problem = "has changed since it was read; change the dataset's `version` to read it again"
            lines.append(f"{note.folder}: {problem}")
    return lines


def _listing_hash(folder: Path) -> str:
    stats = ((name, path.stat()) for name, path in files_below(folder))
    lines = (f"{name} {file_stat.st_size} {file_stat.st_mtime_ns} {file_stat.st_ctime_ns}" for name, file_stat in stats)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
