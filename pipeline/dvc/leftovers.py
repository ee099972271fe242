"""Remove what killed processes leave in DVC's files: DVC would stop at it, or wait for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pipeline.compile.generated import parse_yaml

_CLOCK_TOLERANCE = 2.0  # seconds by which the clocks of a disk and of this machine may differ


def remove_truncated_files(folder: Path, stage_files: Iterable[Path]) -> None:
    """Remove lock files and the file of marks, in `folder`, that a kill has truncated.

    All entries of a lock file are in the run cache. A file that a running DVC is just writing is whole a moment later.
    Raises :class:`UserError` for a lock file with a conflict of git, whose entries may be from another machine.
    """
    for path in {folder / "rwlock", *(file.with_name("dvc.lock") for file in stage_files)}:
        with suppress(FileNotFoundError):
            if not _is_complete(path):
                time.sleep(1)
                if not _is_complete(path):
                    if b"<<<<<<< " in path.read_bytes():
                        raise UserError(f"{path}: git left a conflict in it; `git checkout --ours {path}`, or --theirs")
                    path.unlink()


def remove_stale_marks(repo: Any) -> None:
    """Remove marks on files whose process has ended, even if a younger process has its number now."""
    import psutil
    from dvc.rwlock import _edit_rwlock

    path = Path(str(repo.tmp_dir), "rwlock")
    if not path.is_file():
        return
    hardlink = repo.config["core"].get("hardlink_lock", False)
    with _edit_rwlock(repo.tmp_dir, repo.fs, hardlink) as marks:
        written = path.stat().st_mtime + _CLOCK_TOLERANCE

        def is_alive(mark: dict[str, Any]) -> bool:
            with suppress(psutil.Error):
                return bool(psutil.Process(mark["pid"]).create_time() <= written)
            return False

        marks["write"] = {name: mark for name, mark in marks["write"].items() if is_alive(mark)}
        marks["read"] = {name: [*filter(is_alive, readers)] for name, readers in marks["read"].items()}


def _is_complete(path: Path) -> bool:
    """Return whether a lock file or the file of marks has the form that DVC writes."""
    from dvc.dvcfile import Lockfile
    from voluptuous import Invalid

    try:
        if path.name == "dvc.lock":
            text = path.read_bytes()
            return text.endswith(b"\n") and bool(Lockfile.SCHEMA(parse_yaml(text))["stages"])
        return json.loads(path.read_bytes()) is not None
    except (ValueError, Invalid, KeyError, TypeError):
        return False
