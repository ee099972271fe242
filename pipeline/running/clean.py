"""``pfl clean``: artifacts that no spec asks for any more, and their removal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import cache_file, initialise
from pipeline.dvc.recorder import Recorder
from pipeline.spec.specs import find_specs
from pipeline.workspace import RUNS, Workspace

KINDS = ("data", "partitions", "selections", "tables", "weights")  # folders of artifacts, beside that of runs


def unused(workspace: Workspace) -> list[Path]:
    """Return files of artifacts, and checkpoints, of which no stage of any spec knows, sorted.

    Raises :class:`UserError` for an invalid spec, as nobody can tell what it would ask for.
    """
    root, specs = workspace.root, list(find_specs(workspace.specs))
    compilation = compile_workspace(workspace, specs, ledger=False)
    outs = {root / out for stage in compilation.stages for out in stage.outs}
    places = [root / RUNS, *(root / "artifacts" / kind for kind in KINDS)]
    made = (path for place in places for path in place.rglob("*") if path.is_file() or path.is_symlink())
    left = [path for path in made if not outs & {path, *path.parents}]
    for folder in workspace.private.glob("checkpoints/*"):
        if folder.name.rpartition("-")[0] not in compilation.runs:
            left += [path for path in folder.iterdir() if path.stat().st_size]  # a lock has nothing in it
    return sorted(left)


def remove(workspace: Workspace, paths: Iterable[Path]) -> None:
    """Remove files that are unused, and their copies in DVC's cache where this workspace has one of its own.

    Raises :class:`UserError` while another command works with artifacts.
    """
    initialise(workspace.root)
    workspace.private.mkdir(exist_ok=True)
    try:
        with (
            FileLock(workspace.private / "run.lock", timeout=0),
            Recorder.alone(workspace.root, "pfl clean", workspace.root / "artifacts"),
        ):
            for path in sorted({*paths} & {*unused(workspace)}):  # specs may have been edited meanwhile
                _remove(workspace.root, path)
    except Timeout:
        raise UserError("another pfl run is at work here, see `pfl status`; nothing is removed") from None


def _remove(root: Path, path: Path) -> None:
    if path.is_relative_to(root / "artifacts") and path.is_file():
        with path.open("rb") as file:
            copy = cache_file(root, hashlib.file_digest(file, "md5").hexdigest())
        if copy.is_relative_to(root):  # others may depend on what lies in a shared one
            copy.unlink(missing_ok=True)
    path.unlink()
    for folder in path.parents[: len(path.relative_to(root).parts) - 3]:  # but for those of a kind
        if not any(folder.iterdir()):
            folder.rmdir()
