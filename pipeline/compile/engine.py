"""The engine and its version: what data, partition and train stages share.

A change of any engine module could change any result, and hardly one does. So these stages do not depend on the sources
of the engine but on its version, which is raised when numbers change. ``engine.txt`` beside this file has the sources
with which regression runs gave their numbers under that version. While those on disk are others, nothing is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.fingerprint import Code

STAGES = ("data", "partition", "train")
RECORD = "pipeline/compile/engine.txt"  # in the folder of the packages
TITLE = f"engine version {ENGINE_VERSION}"
"""The first line of the record."""


def root_of(stage: str) -> str:
    """The module that does the work of a stage; what it imports is the stage's code."""
    return f"pipeline.stages.{stage}"


@dataclass(frozen=True)
class Engine:
    """The sources of the engine that the regression runs have seen.

    Attributes:
        title: The version of the engine, as :data:`TITLE`.
        sources: Module → the hash of its meaning and the stages that import it, as ``"6b55b6d078a4e7e8 train"``.
    """

    title: str
    sources: Mapping[str, str]

    @classmethod
    def on_disk(cls, code: Code) -> Engine:
        """Read the engine as its sources lie there."""
        stages = {stage: code.fingerprint(root_of(stage)).splitlines() for stage in STAGES}
        lines = sorted({line for own in stages.values() for line in own})
        users = {line: " ".join(stage for stage, own in stages.items() if line in own) for line in lines}
        return cls(TITLE, {line.split()[0]: f"{line.split()[1]} {users[line]}" for line in lines})

    @classmethod
    def recorded(cls, code: Code) -> Engine:
        """Read the record. Raises :class:`UserError` when it is missing or was edited."""
        path = code.source / RECORD
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        if len(lines) > 2 and lines[0].startswith("engine version "):
            engine = cls(lines[0], {name: rest for name, _, rest in (line.partition(" ") for line in lines[2:])})
            if engine.text.splitlines() == lines:
                return engine
        raise UserError(f"{RECORD}: missing, merged or edited by hand; take one that was committed, then `make pins`")

    @property
    def text(self) -> str:
        """The text of the record. Its second line stands for all that follow, so that merged edits meet there."""
        lines = [f"{name} {rest}" for name, rest in self.sources.items()]
        return "\n".join([self.title, f"sources {_digest(lines)}", *lines]) + "\n"

    def write(self, code: Code) -> None:
        """Write the record of the packages in `code`."""
        write_text(code.source / RECORD, self.text)

    def fingerprint(self, stage: str) -> str:
        """Return the lines of what a stage of this kind imports, as :meth:`Code.fingerprint` has them."""
        words = {name: rest.split() for name, rest in self.sources.items()}
        return "".join(f"{name} {hash_}\n" for name, (hash_, *stages) in words.items() if stage in stages)

    def edited(self, code: Code) -> str | None:
        """Return the first module that is another on disk, or belongs to the engine only here or only there."""
        now = Engine.on_disk(code).sources
        if self.title != TITLE:
            return "pflcore"
        return next((name for name in sorted({*now, *self.sources}) if now.get(name) != self.sources.get(name)), None)


def untested(code: Code) -> str | None:
    """Return what to say while the engine on disk is not the one that regression runs have seen; None when it is."""
    if edited := Engine.recorded(code).edited(code):
        return f"{edited} was edited, and results may have changed: type `make pins`, which finds out"
    return None


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
