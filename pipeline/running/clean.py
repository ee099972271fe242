"""``pfl clean``: find and remove artifacts that no spec needs any more."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from pflcore.errors import UserError
from pflcore.files import digest_of, parse_json
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import cache_file, initialise
from pipeline.dvc.recorder import Recorder
from pipeline.spec.run import ABSENT
from pipeline.spec.specs import find_specs
from pipeline.workspace import RUNS, Workspace

KINDS = ("data", "partitions", "selections", "tables", "weights")  # folders of artifacts, besides the one of runs


def unused(workspace: Workspace) -> list[Path]:
    """Return the files of artifacts and the checkpoints that belong to no stage of any spec, sorted.

    Raises :class:`UserError` if a spec is invalid or pretrained weights are missing: then the stages are not known.
    """
    root, specs = workspace.root, list(find_specs(workspace.specs))
    compilation = compile_workspace(workspace, specs, ledger=False)
    for run in compilation.runs.values():
        if missing := [content.removeprefix(ABSENT) for content in run.weights if content.startswith(ABSENT)]:
            raise UserError(f"{missing[0]}: is missing, so it is unknown which runs began with it; put it back first")
    outs = {root / out for stage in compilation.stages for out in stage.outs}
    folders = [root / RUNS, *(root / "artifacts" / kind for kind in KINDS)]
    paths = (path for folder in folders for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    unused_files = [path for path in paths if not outs & {path, *path.parents}]
    for folder in workspace.private.glob("checkpoints/*"):
        if folder.is_dir() and folder.name.rpartition("-")[0] not in compilation.runs:
            files = (path for path in folder.iterdir() if path.is_file())
            unused_files += [path for path in files if path.stat().st_size]  # locks are empty
    return sorted(unused_files)


def remove(workspace: Workspace, paths: Iterable[Path]) -> list[Path]:
    """Remove those of the files that are unused, and their copies in the workspace's own DVC cache; return them.

    Raises :class:`UserError` if another command is working with artifacts.
    """
    initialise(workspace.root)
    workspace.private.mkdir(exist_ok=True)
    try:
        with (
            FileLock(workspace.private / "run.lock", timeout=0),
            Recorder.exclusive(workspace.root, "pfl clean", workspace.root / "artifacts"),
        ):
            removed = sorted({*paths} & {*unused(workspace)})  # specs may have been edited meanwhile
            other_hashes = _contents(workspace.root, removed) | _added_by_user(workspace.root)
            for path in removed:
                _remove(workspace.root, path, other_hashes)
            return removed
    except Timeout:
        raise UserError("another pfl run is at work here, see `pfl status`; nothing is removed") from None


def _contents(root: Path, removed: list[Path]) -> set[str]:
    """Return the hashes of artifacts that stay and have the size, so perhaps the content, of a removed one."""
    sizes = {path.stat().st_size for path in removed if path.is_file()}
    remaining = {path for path in (root / "artifacts").rglob("*") if path.is_file()} - {*removed}
    return {digest_of(path, "md5") for path in remaining if path.stat().st_size in sizes}


def _added_by_user(root: Path) -> set[str]:
    """Return hashes of the files that ``dvc add`` tracks."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        outs = [out for stage in repo.index.stages if not stage.cmd for out in stage.outs if out.hash_info]
        hashes = {str(out.hash_info.value) for out in outs}
    for name in [name for name in hashes if name.endswith(".dir")]:
        listing = cache_file(root, name)
        if listing.is_file():
            hashes |= {entry["md5"] for entry in parse_json(listing.read_bytes())}
    return hashes


def _remove(root: Path, path: Path, shared: set[str]) -> None:
    if path.is_relative_to(root / "artifacts") and path.is_file() and (content := digest_of(path, "md5")) not in shared:
        copy = cache_file(root, content)
        if copy.is_relative_to(root):  # other projects may depend on files of a shared cache
            copy.unlink(missing_ok=True)
    path.unlink()
    for folder in path.parents[: len(path.relative_to(root).parts) - 3]:  # `artifacts/<kind>` itself stays
        if not any(folder.iterdir()):
            folder.rmdir()
