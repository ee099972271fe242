"""The engine and its version: what data, partition and train stages share.

A change of any engine module could change any result, and hardly one does. So these stages do not depend on the sources
of the engine but on its version, which is raised when numbers change. ``engine.txt`` beside this file has the sources
with which regression runs gave their numbers under that version. While those on disk are others, nothing is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.fingerprint import Code, text_hash

STAGES = ("data", "partition", "train")
RECORD = "pipeline/compile/engine.txt"  # in the folder of the packages
TITLE = f"engine version {ENGINE_VERSION}"
"""The first line of the record."""


def root_of(stage: str) -> str:
    """Return the module that does the work of a stage; what it imports is the stage's code."""
    elsewhere = {"evaluate": "pipeline.report.frame", "report": "pipeline.report.write"}
    elsewhere |= dict.fromkeys(("index", "recall", "select"), "pipeline.stages.results")
    return elsewhere.get(stage, f"pipeline.stages.{stage}")


@dataclass(frozen=True)
class Engine:
    """The sources of the engine that the regression runs have seen, under the version that `title` says.

    `sources` has by module the hash of its meaning and the stages that import it: ``"6b55b6d078a4e7e8 train"``.
    """

    title: str
    sources: Mapping[str, str]

    @classmethod
    def on_disk(cls, code: Code) -> Engine:
        """Read the engine as its sources lie there."""
        sources: dict[str, str] = {}
        for stage in STAGES:
            for name, hash_ in (line.split() for line in code.fingerprint(root_of(stage)).splitlines()):
                sources[name] = f"{sources.get(name, hash_)} {stage}"
        return cls(TITLE, dict(sorted(sources.items())))

    @classmethod
    def recorded(cls, code: Code) -> Engine:
        """Read the record. Raises :class:`UserError` when it is missing or was edited."""
        path = code.source / RECORD
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        sources = {name: rest for name, _, rest in (line.partition(" ") for line in lines[2:])}
        engine = cls(lines[0] if lines else "", sources)
        if not sources or engine.text.splitlines() != lines:
            remedy = "take one that was committed, then `make pins`"
            raise UserError(f"{RECORD}: missing, merged or edited by hand; {remedy}")
        return engine

    @property
    def text(self) -> str:
        """The text of the record. Its second line stands for all others, so that merged edits meet there."""
        lines = [f"{name} {rest}" for name, rest in self.sources.items()]
        digest = text_hash("\n".join(lines))[:16]
        return "\n".join([self.title, f"sources {digest}", *lines]) + "\n"

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
        names = sorted({*now, *self.sources})
        differing = (name for name in names if now.get(name) != self.sources.get(name))
        return next(differing, None) if self.title == TITLE else "pflcore"


def untested(code: Code) -> str | None:
    """Return what to say while the engine on disk is not the one that regression runs have seen; None when it is."""
    if edited := Engine.recorded(code).edited(code):
        return f"{edited} was edited, and results may have changed: type `make pins`, which finds out"
    return None
