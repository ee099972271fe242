"""Seals: a stage computes with the code that its command was compiled for, and records nothing of replaced inputs.

DVC hashes what a stage depends on when its command has ended. Whatever was edited, compiled or checked out meanwhile
would lend its name to a result that it did not make. So a command names the ids of records, which are their hashes, and
ends with a seal: digests of the code, of ``stages/code.yaml``. A process begins by making sure that it is of this code,
and imports all of it, so that a later edit reaches neither its result nor a checkpoint; when it ends, what it read must
still be what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pflcore import sources
from pflcore.errors import UserError
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import ENGINE, Part
from pipeline.workspace import Workspace

_AGAIN = "type the same command again"


@dataclass(frozen=True)
class Sealed:
    """A stage at work: what stands for its code, what it reads, and what these files looked like when it began."""

    seal: str
    inputs: tuple[Path, ...]
    found: dict[str, tuple[int, ...]]

    def confirm(self) -> None:
        """Raise :class:`UserError` if an input is not what it was when the stage began."""
        now = _stats(self.inputs)
        if replaced := [path for path, stat in self.found.items() if now.get(path) != stat]:
            raise UserError(f"{replaced[0]}: replaced while this stage read it, so nothing is recorded; {_AGAIN}")


@contextmanager
def sealed(
    code: Sequence[Part], seal: str | None, inputs: Iterable[str | Path] = (), content: str = ""
) -> Iterator[Sealed]:
    """Yield a stage at work, in the folder of the workspace; its inputs are confirmed at the end.

    `seal` is what its command ends with; None, by hand, is that of the code that lies here. It begins with `content`,
    the digest of what else the stage reads. Raises :class:`UserError` for another code, or a replaced input.
    """
    disk = Code(Path(sources.__file__).parent.parent, study_home() / ".pfl" / "fingerprints.json")
    fingerprints = {part: part.fingerprint(disk) for part in code}
    digests = {f"the code of {part.name}": part.digest(found) for part, found in fingerprints.items()}
    digests = {**({"its table": content} if content else {}), **digests}
    own = "-".join(digests.values())
    if seal not in (None, own):
        stated = zip(digests.items(), str(seal).split("-"), strict=False)
        name = next((name for (name, now), then in stated if now != then), "what it works with")
        message = f"{name} was edited after this stage was compiled, so it would not be what is recorded"
        raise UserError(f"{message}; {_AGAIN}")
    paths = tuple(map(Path, inputs))
    stage = Sealed(own, paths, _stats(paths))
    for part, fingerprint in fingerprints.items():
        since, remedy = "this stage began", _AGAIN
        if part.name == ENGINE:
            since, remedy = "regression runs had seen it", "type `make pins`"
        _load(disk, fingerprint, since, remedy)
    disk.remember()
    yield stage
    stage.confirm()


def study_home() -> Path:
    """Return the folder of specs and of a study's own entries around the current one, which has none on a node."""
    try:
        return Workspace.find().home
    except UserError:  # stages that were copied without their specs
        return Path()


def _load(code: Code, fingerprint: str, since: str, remedy: str) -> None:
    """Import all that a fingerprint names, and make sure that it is what it says."""
    fault = None
    for name in filter(code.has, code.names(fingerprint)):  # templates are read with their modules
        try:
            import_module(name)
        except Exception as error:
            fault = fault or error
    if altered := code.altered(fingerprint, sources.loaded()):
        raise UserError(f"{altered} was edited after {since}; undo the edit, or {remedy}")
    if fault:
        raise fault


def _stats(paths: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """Return what tells whether a file has been written or replaced, of each below some paths."""
    files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    stats = {file.as_posix(): file.stat() for file in files}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
