"""Whether the user's own images are still the files that the data stage has read.

The stage notes them in ``.pfl/raw/<data id>.json``: names, sizes and times, which are quick to compare, and a hash of
their content, which decides where those differ.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflcore.files import parse_json, write_text
from pipeline.spec.run import options
from pipeline.workspace import Workspace, dataset_path, raw_data_folder


def note_files(root: Path, data_id: str, record: dict[str, Any]) -> None:
    """Note the files that a dataset has just been read from, if they are the user's own."""
    from pflcore.datasets import DATASETS
    from pflcore.datasets.own_images import OwnImages

    chosen = options(dict(record))
    generated = chosen.pop("stand_in")
    dataset = DATASETS.create(record["name"], **chosen)
    if isinstance(dataset, OwnImages) and not generated:
        folder = dataset.root(raw_data_folder(root) / dataset.name)
        _write(root / ".pfl/raw" / f"{data_id}.json", folder, _content(folder))


def changed_folders(workspace: Workspace) -> list[str]:
    """Return a line for each folder of the user's own images that is not as it was when it was read."""
    stages = workspace.stages / "data" / "dvc.yaml"
    used = stages.read_text(encoding="utf-8") if stages.is_file() else ""
    lines = []
    for path in sorted((workspace.private / "raw").glob("*.json")):
        if path.stem not in used or not (workspace.root / dataset_path(path.stem)).is_file():
            continue
        noted = parse_json(path.read_bytes())
        folder = Path(noted["folder"])
        if not folder.is_dir():
            lines.append(f"{folder}: is gone; what was read from it stays in {dataset_path(path.stem)}")
        elif noted["listing"] != _listing(folder):
            if noted["content"] == _content(folder):
                _write(path, folder, noted["content"])
            else:
                lines.append(
                    f"{folder}: has changed since it was read; change the dataset's `version` to read it again"
                )
    return lines


def _write(path: Path, folder: Path, content: str) -> None:
    write_text(path, json.dumps({"folder": str(folder), "listing": _listing(folder), "content": content}))


def _listing(folder: Path) -> str:
    facts = ((name, path.stat()) for name, path in _files(folder))
    return _hash(f"{name} {found.st_size} {found.st_mtime_ns}" for name, found in facts)


def _content(folder: Path) -> str:
    return _hash(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in _files(folder))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    found = [Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names]
    return ((path.relative_to(folder).as_posix(), path) for path in sorted(found))


def _hash(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
