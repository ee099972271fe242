"""Which code a stage works with, in parts: the engine by its version, the rest by digests of what it imports.

What data, features, partition and train stages share is the engine. A change of it could change any result, and hardly
one does, so these stages depend not on its sources but on its version, which is raised when numbers change.
``engine.txt`` beside this file has the sources with which regression runs gave their numbers under that version. While
those on disk are others, nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.registry import module_of
from pipeline.compile.fingerprint import Code, text_hash
from pipeline.ledger import Versions
from pipeline.spec.catalog import Catalog
from pipeline.spec.figures import figure_module, figure_names
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import COUNTING

ENGINE = "engine"
STAGES = ("data", "features", "partition", "train")
RECORD = "pipeline/compile/engine.txt"  # in the folder of the packages
TITLE = f"engine version {ENGINE_VERSION}"
"""The first line of the record."""
_NOT_MEASURED = {"title", "caption", "notes", "paper", "better", "decimals", "partitions", "claims", "derived"}
"""What a table says of how its numbers are shown, which no measurement depends on."""


_ELSEWHERE = {
    "evaluate": "pipeline.report.collect",
    "report": "pipeline.report.write",
    "index": "pipeline.stages.results",
    "recall": "pipeline.stages.results",
    "select": "pipeline.stages.results",
}
"""Modules that do the work of a stage, where that is none of the stage's name."""


def root_of(stage: str) -> str:
    """Return the module that does the work of a stage; what it imports is the stage's code."""
    return _ELSEWHERE.get(stage, f"pipeline.stages.{stage}")


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
        engine = cls("".join(lines[:1]), {name: rest for name, _, rest in (line.partition(" ") for line in lines[2:])})
        if not engine.sources or engine.text.splitlines() != lines:
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


def untested(code: Code) -> str | None:
    """Return what to say while the engine on disk is not the one that regression runs have seen; None when it is."""
    known, now = Engine.recorded(code), Engine.on_disk(code)
    names = sorted({*now.sources, *known.sources})
    edited = [name for name in names if now.sources.get(name) != known.sources.get(name)]
    if known.title != TITLE:
        edited = ["pflcore"]
    return (
        f"{edited[0]} was edited, and results may have changed: type `make pins`, which finds out" if edited else None
    )


class Part(NamedTuple):
    """Code that a stage works with: what `module` imports but for what `without` does; the engine by its version."""

    name: str  # ``method.fedper``, under which ``stages/code.yaml`` has its digest
    module: str
    without: str | None = None

    def fingerprint(self, code: Code) -> str:
        """Return its modules with the hashes of their meaning, a line each."""
        if self.name == ENGINE:
            return Engine.recorded(code).fingerprint(self.module.rpartition(".")[2])
        return code.fingerprint(self.module, without=self.without)

    def digest(self, fingerprint: str) -> str:
        """Return what stands for it in commands."""
        return str(ENGINE_VERSION) if self.name == ENGINE else text_hash(fingerprint)[:12]


def code_of(kind: str) -> list[Part]:
    """Return the code that all stages of a kind share."""
    return [Part(ENGINE if kind in STAGES else f"stage.{kind}", root_of(kind))]


def _encoder_of(run: Run) -> list[tuple[str, str]]:
    """Return the entries that make the encoder of a run: its backbone, and what it is trained by."""
    trained = "pretrain" in (run.features or {})
    return [("backbone", run.encoder[0]), *([("method", "fedavg")] if trained else [])]


def code_of_run(kind: str, run: Run) -> list[Part]:
    """Return the code of a stage on the way to the result of a run: data, features, partition or train."""
    if kind in ("data", "partition"):  # of which a run may have no more
        entries = [("dataset", run.dataset)] if kind == "data" else [("partition", run.partition)]
    elif kind == "features":
        root = root_of("train")  # as elsewhere, so that an entry has one digest
        return [*code_of(kind), *(Part(f"{one}.{name}", module_of(one, name), root) for one, name in _encoder_of(run))]
    else:
        entries = [("method", run.method), ("backbone", run.backbone), *(("analysis", name) for name in run.analyses)]
    return [*code_of(kind), *(Part(f"{one}.{name}", module_of(one, name), root_of(kind)) for one, name in entries)]


def code_of_evaluation(table: ResolvedTable, runs: Iterable[Run]) -> list[Part]:
    """Return the code of a table's evaluate stage; of what is counted without training that is the runs' code, too."""
    if not table.counted:
        return code_of("evaluate")
    own = dict.fromkeys(part for run in runs for part in code_of_run("train", run))
    return [*code_of("evaluate"), *own, Part("stage.counting", COUNTING, root_of("train"))]


def code_of_report(table: ResolvedTable) -> list[Part]:
    """Return the code of a table's report, with that of its figures."""
    names, root = figure_names(), root_of("report")
    return code_of("report") + [Part(f"figure.{one}", figure_module(one), root) for one in table.drawn if one in names]


def measured_content(table: ResolvedTable) -> str:
    """Return the digest of what the evaluate stage takes from a table."""
    return text_hash(table.model_dump_json(exclude=_NOT_MEASURED))[:12]


def shown_content(table: str) -> str:
    """Return the digest of the text of a table, all of which its report shows."""
    return text_hash(table)[:12]


def versions(code: Code, catalog: Catalog, run: Run) -> Versions:
    """Return the versions of the code that a run's result depends on; of a study's own entries a digest."""
    made_by = {"engine": str(ENGINE_VERSION)}
    parts = [(kind, getattr(run, kind)) for kind in ("dataset", "partition", "method", "backbone")]
    for kind, name in [*parts, *(_encoder_of(run) if run.features else [])]:
        own = code.outside(module_of(kind, name))
        version = text_hash(own)[:12] if own else str(catalog.entry(kind, name).facts["results_version"])
        made_by[f"{kind}.{name}"] = version
    return made_by
