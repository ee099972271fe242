"""Seals: a stage computes with the code, from the files and for the record that its command was compiled for.

DVC hashes what a stage depends on when its command has ended. Whatever was edited, compiled or checked out meanwhile
would lend its name to a result that it did not make. So every command ends with a seal, a hash of the small files that
its stage was compiled from: a resolved record or table, and fingerprints of code. DVC records a command as it was when
it was read, and goes by it when it looks for earlier results; so what has been recorded can only be found again by
those very files. That they are what a process works with is checked here. It begins by importing all modules that its
fingerprints name, so that an edit from then on reaches neither its result nor a checkpoint; when it ends, the files
must still be what they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from pflcore import sources
from pflcore.errors import UserError
from pflcore.registry import use_study
from pipeline.compile.engine import ENGINE, TITLE, Engine
from pipeline.compile.fingerprint import Code
from pipeline.parsing import parse_yaml
from pipeline.workspace import KEPT_STAGES, TABLES, Workspace

AGAIN = "type the same command again"
_CODE = "stages/code/"
_RECORDING = 2  # counted on when what was recorded before cannot be trusted: no entry of before is found again


def seal(hashes: Mapping[str, str]) -> str:
    """Twelve hex digits that stand for the small files that a stage was compiled from: path → :func:`text_hash`."""
    return text_hash(json.dumps([_RECORDING, *sorted(hashes.items())]))[:12]


def text_hash(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def command(kind: str, files: Sequence[str], mark: str) -> str:
    """What DVC runs for a stage."""
    return " ".join(["pfl stage", kind, *files, "--seal", mark])


@contextmanager
def sealed(kind: str, files: Sequence[Path], mark: str | None) -> Iterator[Sealed]:
    """The time in which a stage works, in the folder of the workspace.

    Args:
        kind: The stage's kind.
        files: The resolved files that its command names.
        mark: The seal that its command ends with; None, by hand, is that in the stage file.

    Yields:
        The stage. It is confirmed at the end; when that fails, what the stage wrote is removed.

    Raises:
        UserError: A file is not what the command was compiled from, or this process has imported other code; or
            something was replaced while the stage worked.
    """
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: no such file; run `pfl compile`, or name a file below stages/")
    stage = Sealed(kind, files, mark)
    stage.begin()
    yield stage
    try:
        stage.confirm()
    except UserError:
        for out in map(Path, stage.entry.outs):
            if out.resolve().is_relative_to(Path.cwd()):
                rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        raise


class _Entry(NamedTuple):
    """What a stage file says of a stage."""

    cmd: str
    deps: list[str]
    outs: list[str]


class Sealed:
    """A stage as its stage file has it, and what it was made of when it began."""

    def __init__(self, kind: str, files: Sequence[Path], mark: str | None) -> None:
        self.kind = kind
        self.file = _stage_file(kind, files[0])
        self.named = ", ".join(map(str, files))
        self.command = command(kind, [file.as_posix() for file in files], mark or "")
        entry = self._entry()
        if entry is None and not mark:
            raise UserError(f"{self.named}: no stage of {self.file}; run `pfl compile`, or name a file below stages/")
        if entry is None:
            raise UserError(f"{self.file}: compiled anew after DVC had read it; {AGAIN}")
        self.entry, self.command = entry, entry.cmd
        self.inputs = [Path(dep) for dep in entry.deps if not dep.startswith("stages/")]
        self.texts = {dep: _text(Path(dep)) for dep in entry.deps if dep.startswith("stages/")}
        self.looks = self._looks()
        home = _home()
        use_study(home)
        self.code = Code(Path(sources.__file__).parent.parent, home / ".pfl" / "fingerprints.json")

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the code that the stage works with, by the paths of their files, whatever lies there by now."""
        return {path: text for path, text in self.texts.items() if path.startswith(_CODE)}

    def begin(self) -> None:
        """Make sure of the record, and import the code. Raises as :func:`sealed`."""
        if seal({path: text_hash(text) for path, text in self.texts.items()}) != self.command.split()[-1]:
            raise UserError(f"{self.named}: edited by hand, or of another commit than {self.file}; run `pfl compile`")
        for path, text in self.texts.items():
            if path == ENGINE:
                engine = Engine.recorded(self.code)
                if text != f"{TITLE}\n":
                    raise UserError(f"{path}: not the {TITLE} of the code that is here; run `pfl compile`")
                made, remedy = "regression runs had seen it", f"type `make pins` and {AGAIN[5:]}"
                self._import(engine.fingerprint(self.kind), made, remedy)
            elif path.startswith(_CODE):
                self._import(text, f"{path} had been compiled", f"{AGAIN}, which compiles it")
        self.code.remember()
        self.confirm()  # importing takes seconds, and the stage reads its record next

    def confirm(self) -> None:
        """Make sure that all still is what it was when the stage began. Raises :class:`UserError`."""
        for path, text in self.texts.items():
            if _text(Path(path)) != text:
                raise UserError(f"{path}: changed while this stage ran, so nothing is recorded; undo that, or {AGAIN}")
        if self._entry() is None:
            raise UserError(f"{self.file}: changed while this stage ran, so nothing is recorded; {AGAIN}")
        now = self._looks()
        for path, look in self.looks.items():
            if now.get(path) != look:
                raise UserError(f"{path}: replaced while this stage read it, so nothing is recorded; {AGAIN}")

    def _import(self, fingerprint: str, made: str, remedy: str) -> None:
        """Import all that a fingerprint names, and make sure that it is what it says.

        Args:
            made, remedy: For the error message: when it was so, and what to do beside undoing the edit.
        """
        names, fault = self.code.names(fingerprint), None
        for name in names:
            try:
                if self.code.has(name):  # templates are read with their modules
                    import_module(name)
            except Exception as error:
                fault = fault or error
        absent = (name for name in names if name not in sources.loaded())
        if altered := next(absent, None) or self.code.altered(fingerprint, sources.loaded()):
            raise UserError(f"{altered} was edited after {made}; undo the edit, or {remedy}")
        if fault:
            raise fault

    def _entry(self) -> _Entry | None:
        """What the stage file says of the stage whose command begins like this one; None when it has no such."""
        try:
            text = self.file.read_bytes() if self.file.is_file() else b"stages: {}"
            stages = parse_yaml(text)["stages"].values()
            for stage in stages:
                if stage["cmd"].startswith(self.command):  # which lacks its seal when it was typed without
                    return _Entry(stage["cmd"], [*map(str, stage["deps"])], [*map(str, stage["outs"])])
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise UserError(f"{self.file}: not what `pfl compile` writes; run it") from None

    def _looks(self) -> dict[str, tuple[int, ...]]:
        """Every file that the stage reads with what tells whether it has been written or replaced."""
        files = [path for dep in self.inputs for path in (dep, *dep.rglob("*")) if path.is_file()]
        stats = {path.as_posix(): path.stat() for path in files}
        return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def _stage_file(kind: str, file: Path) -> Path:
    """Where the stage stands whose command names this file first."""
    if kind == "index":
        return Path("dvc.yaml")
    if kind == "recall":
        return Path(KEPT_STAGES)
    if kind == "report" and file.is_relative_to(TABLES):
        return (Path("stages") / file.relative_to(TABLES)).with_name("dvc.yaml")
    return file.with_name("dvc.yaml")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _home() -> Path:
    """Where specs and a study's own entries lie."""
    try:
        return Workspace.find().home
    except UserError:  # stages that were copied without their specs
        return Path()
