"""Seals: a stage runs the code that its command was compiled for, and records nothing if its inputs were replaced.

DVC hashes the dependencies of a stage after its command has ended. A file that was edited, compiled or checked out in
the meantime would be recorded as the source of a result that it did not make. A command therefore has the ids of
records, which contain their hashes, and ends with a seal: digests of code from ``stages/code.yaml``. A stage first
checks that the code on disk has these digests. It then imports all of this code, so that a later edit changes neither
its result nor a checkpoint. When it ends, its inputs must not have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from pflcore import sources
from pflcore.errors import UserError
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import ENGINE, Part
from pipeline.workspace import Workspace

_RETRY = "type the same command again"


@contextmanager
def sealed(
    code: Sequence[Part], seal: str | None, inputs: Iterable[str | Path] = (), content: str = ""
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the seal of a running stage, whose current folder is the workspace, and a function that confirms its
    inputs: it raises :class:`UserError` if a file was replaced, written or removed. At the end it is called, too.

    `seal` is the end of the stage's command; None, for a stage started by hand, accepts the code on disk. A seal begins
    with `content`, the digest of what else the stage reads. Raises :class:`UserError` if code or inputs have changed.
    """
    disk = Code(Path(sources.__file__).parent.parent, study_home() / ".pfl" / "fingerprints.json")
    fingerprints = {part: part.fingerprint(disk) for part in code}
    digests = {"its table": content} if content else {}
    digests |= {f"the code of {part.name}": part.digest(fingerprint) for part, fingerprint in fingerprints.items()}
    current = "-".join(digests.values())
    if seal not in (None, current):
        pairs = zip(digests.items(), str(seal).split("-"), strict=False)
        name = next((name for (name, digest), expected in pairs if digest != expected), "what it works with")
        message = f"{name} was edited after this stage was compiled, so it would not be what is recorded"
        raise UserError(f"{message}; {_RETRY}")
    paths = tuple(map(Path, inputs))
    stats = _stats(paths)

    def confirm() -> None:
        new_stats = _stats(paths)
        for path, stat in stats.items():
            if new_stats.get(path) != stat:
                raise UserError(f"{path}: replaced while this stage read it, so nothing is recorded; {_RETRY}")

    for part, fingerprint in fingerprints.items():
        since, remedy = "this stage began", _RETRY
        if part.name == ENGINE:
            since, remedy = "regression runs had seen it", "type `make pins`"
        _load(disk, fingerprint, since, remedy)
    disk.save_cache()
    yield current, confirm
    confirm()


def study_home() -> Path:
    """Return the study's folder around the current one; on a cluster's node, which has no specs, the current one."""
    try:
        return Workspace.find().home
    except UserError:  # stages that were copied without their specs
        return Path()


def _load(code: Code, fingerprint: str, since: str, remedy: str) -> None:
    """Import all modules of a fingerprint. Raises :class:`UserError` if an imported source has another hash."""
    first_error = None
    names = (line.split()[0] for line in fingerprint.splitlines())
    for name in filter(code.has, names):  # templates are read with their modules
        try:
            import_module(name)
        except Exception as error:
            first_error = first_error or error
    if edited := code.first_mismatch(fingerprint, sources.loaded()):
        raise UserError(f"{edited} was edited after {since}; undo the edit, or {remedy}")
    if first_error:
        raise first_error


def _stats(paths: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """Return inode, size in bytes and modification time in ns of each file at or below `paths`."""
    files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    stats = {file.as_posix(): file.stat() for file in files}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
