"""The engine and its results version: what data, partition and train stages share, named by what it computes.

A change of any engine module could change any result, and hardly one does. So these stages do not depend on the sources
of the engine but on a *results version*, which ``pfl probe`` raises when small runs come out otherwise. What it found
is recorded in ``engine.txt`` beside this file: the version, and the sources that it holds for. While those on disk are
others, nothing is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.fingerprint import Code

ENGINE = "stages/code/engine.txt"
STAGES = ("data", "partition", "train")
RECORD = "pipeline/compile/engine.txt"  # in the folder of the packages
_TITLE = "results version "


def root_of(stage: str) -> str:
    """The module that does the work of a stage; what it imports is the stage's code."""
    return f"pipeline.stages.{stage}"


@dataclass(frozen=True)
class Engine:
    """The sources of the engine under the results version that they have been found to compute.

    Attributes:
        version: A number, and six hex digits of the numbers by which it was told from those before it. Two branches
            that change results in different ways so never have the same version.
        sources: Module → the hash of its meaning and the stages that import it, as ``"6b55b6d078a4e7e8 train"``.
    """

    version: str
    sources: Mapping[str, str]

    @classmethod
    def on_disk(cls, code: Code, version: str) -> Engine:
        """The engine as its sources lie there."""
        stages = {stage: code.fingerprint(root_of(stage)).splitlines() for stage in STAGES}
        lines = sorted({line for own in stages.values() for line in own})
        users = {line: " ".join(stage for stage, own in stages.items() if line in own) for line in lines}
        return cls(version, {line.split()[0]: f"{line.split()[1]} {users[line]}" for line in lines})

    @classmethod
    def recorded(cls, code: Code) -> Engine:
        """The engine that was probed last. Raises :class:`UserError` when the record is missing or was edited."""
        path = code.source / RECORD
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        if len(lines) > 2 and lines[0].startswith(_TITLE):
            sources = {name: rest for name, _, rest in (line.partition(" ") for line in lines[2:])}
            engine = cls(lines[0].removeprefix(_TITLE), sources)
            if engine.text.splitlines() == lines:
                return engine
        raise UserError(
            f"{RECORD}: missing, merged or edited by hand; take one that was committed and type `pfl probe`"
        )

    @property
    def text(self) -> str:
        """The record. Its second line stands for all that follow, so that merged changes meet there."""
        lines = [f"{name} {rest}" for name, rest in self.sources.items()]
        return "\n".join([self.title, f"sources {_digest(lines)}", *lines]) + "\n"

    @property
    def title(self) -> str:
        """What a stage depends on."""
        return f"{_TITLE}{self.version}"

    def write(self, code: Code) -> None:
        """Make this the record of the packages in `code`."""
        write_text(code.source / RECORD, self.text)

    def fingerprint(self, stage: str) -> str:
        """Of what a stage of this kind imports, as :meth:`Code.fingerprint` has it."""
        words = {name: rest.split() for name, rest in self.sources.items()}
        return "".join(f"{name} {hash_}\n" for name, (hash_, *stages) in words.items() if stage in stages)

    def edited(self, code: Code) -> str | None:
        """The first module that is another on disk, or belongs to the engine only here or only there."""
        now = Engine.on_disk(code, self.version).sources
        return next((name for name in sorted({*now, *self.sources}) if now.get(name) != self.sources.get(name)), None)


def unprobed(code: Code) -> str | None:
    """What to say while the engine on disk is not the one that was probed; None when it is."""
    if edited := Engine.recorded(code).edited(code):
        return f"{edited} was edited, and results may have changed: type `pfl probe`, which finds out"
    return None


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
