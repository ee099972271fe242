"""The code that a stage runs, in parts: the engine by its version, all other code by digests of import closures.

The engine is the code that data, features, partition and train stages share. Few of its edits change a result, so these
stages depend on its version, which is raised when numbers change, and not on its sources. ``engine.txt`` beside this
file has the hashes of the sources that gave the numbers of the regression runs (`make pins`) under that version. If
the sources on disk have other hashes, nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pflcore import ENGINE_VERSION
from pflcore.errors import UserError
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
"""Fields of a table that determine only how its numbers are shown; no measurement depends on them."""


_ELSEWHERE = {
    "describe": "pipeline.report.partitions",
    "evaluate": "pipeline.report.collect",
    "report": "pipeline.report.write",
    "index": "pipeline.stages.results",
    "recall": "pipeline.stages.results",
    "select": "pipeline.stages.results",
}
"""Stage → the module that does its work, for modules with another name than the stage."""


def root_of(stage: str) -> str:
    """Return the module that does the work of a stage; what it imports is the stage's code."""
    return _ELSEWHERE.get(stage, f"pipeline.stages.{stage}")


@dataclass(frozen=True)
class Engine:
    """The sources of the engine under the version in `title`.

    `sources` maps a module to the hash of its syntax tree and the stages that import it: ``"6b55b6d078a4e7e8 train"``.
    """

    title: str
    sources: Mapping[str, str]

    @classmethod
    def on_disk(cls, code: Code) -> Engine:
        """Return the engine whose sources are on disk."""
        sources: dict[str, str] = {}
        for stage in STAGES:
            for name, hash_ in (line.split() for line in code.fingerprint(root_of(stage)).splitlines()):
                sources[name] = f"{sources.get(name, hash_)} {stage}"
        return cls(TITLE, dict(sorted(sources.items())))

    @classmethod
    def recorded(cls, code: Code) -> Engine:
        """Return the engine in ``engine.txt``. Raises :class:`UserError` if the file is missing or edited by hand."""
        path = code.source / RECORD
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        engine = cls("".join(lines[:1]), {name: rest for name, _, rest in (line.partition(" ") for line in lines[2:])})
        if not engine.sources or engine.text.splitlines() != lines:
            remedy = "take one that was committed, then `make pins`"
            raise UserError(f"{RECORD}: missing, merged or edited by hand; {remedy}")
        return engine

    @property
    def text(self) -> str:
        """The text of the record. Its second line is a digest of the lines below, so that two edits conflict there."""
        lines = [f"{name} {rest}" for name, rest in self.sources.items()]
        digest = text_hash("\n".join(lines))[:16]
        return "\n".join([self.title, f"sources {digest}", *lines]) + "\n"

    def fingerprint(self, stage: str) -> str:
        """Return the fingerprint of what a stage of this kind imports, in the form of :meth:`Code.fingerprint`."""
        words = {name: rest.split() for name, rest in self.sources.items()}
        return "".join(f"{name} {hash_}\n" for name, (hash_, *stages) in words.items() if stage in stages)


def untested(code: Code) -> str | None:
    """Return an error message if the engine on disk is not the one that `make pins` has checked; None if it is."""
    recorded, on_disk = Engine.recorded(code), Engine.on_disk(code)
    names = sorted({*on_disk.sources, *recorded.sources})
    edited = [name for name in names if on_disk.sources.get(name) != recorded.sources.get(name)]
    if recorded.title != TITLE:
        edited = ["pflcore"]
    if not edited:
        return None
    return f"{edited[0]} was edited, and results may have changed: type `make pins`, which finds out"


class Part(NamedTuple):
    """A part of a stage's code: what `module` imports, except what `without` imports; for the engine its version."""

    name: str  # such as ``method.fedper``: the key of its digest in ``stages/code.yaml``
    module: str
    without: str | None = None

    def fingerprint(self, code: Code) -> str:
        """Return a line per module: its name and the hash of its syntax tree."""
        if self.name == ENGINE:
            return Engine.recorded(code).fingerprint(self.module.rpartition(".")[2])
        return code.fingerprint(self.module, without=self.without)

    def digest(self, fingerprint: str) -> str:
        """Return the digest of the part in commands, given its fingerprint; for the engine, its version."""
        return str(ENGINE_VERSION) if self.name == ENGINE else text_hash(fingerprint)[:12]


def code_of(kind: str) -> list[Part]:
    """Return the code that all stages of a kind share."""
    return [Part(ENGINE if kind in STAGES else f"stage.{kind}", root_of(kind))]


def code_of_run(kind: str, run: Run) -> list[Part]:
    """Return the code of a run's stage of a kind: data, features, partition or train."""
    root = root_of(kind)
    if kind == "data":
        entries = [("dataset", run.dataset)]
    elif kind == "partition":
        entries = [("partition", run.partition)]
    elif kind == "features":
        entries, root = [("backbone", run.encoder[0])], root_of("train")  # so that a backbone has one digest
    else:
        entries = [("method", run.method), ("backbone", run.backbone), *(("analysis", name) for name in run.analyses)]
        entries += [("condition", run.condition)] if run.condition else []
    return [*code_of(kind), *(Part(f"{entry}.{name}", module_of(entry, name), root) for entry, name in entries)]


def code_of_evaluation(table: ResolvedTable, runs: Iterable[Run]) -> list[Part]:
    """Return the code of a table's evaluate stage, including the runs' code if the table needs no training."""
    if not table.counted:
        return code_of("evaluate")
    run_code = dict.fromkeys(part for run in runs for part in code_of_run("train", run))
    return [*code_of("evaluate"), *run_code, Part("stage.counting", COUNTING, root_of("train"))]


def code_of_report(table: ResolvedTable) -> list[Part]:
    """Return the code of a table's report stage, including the code of its figures."""
    names, root = figure_names(), root_of("report")
    figures = [Part(f"figure.{name}", figure_module(name), root) for name in table.drawn if name in names]
    return [*code_of("report"), *figures]


def measured_digest(table: ResolvedTable) -> str:
    """Return the digest of the fields of a table that its evaluate stage uses."""
    return text_hash(table.model_dump_json(exclude=_NOT_MEASURED))[:12]


def table_digest(table: str) -> str:
    """Return the digest of the whole text of a table, on which its report stage depends."""
    return text_hash(table)[:12]


def versions(code: Code, catalog: Catalog, run: Run) -> Versions:
    """Return the versions of the code of a run's result. Entries outside the packages have a digest as version."""
    versions = {"engine": str(ENGINE_VERSION)}
    entries = [(kind, getattr(run, kind)) for kind in ("dataset", "partition", "method", "backbone")]
    entries += [("backbone", run.encoder[0])] if run.features else []
    entries += [("condition", run.condition)] if run.condition else []
    for kind, name in entries:
        lines = code.outside(module_of(kind, name))
        version = text_hash(lines)[:12] if lines else str(catalog.entry(kind, name).facts["results_version"])
        versions[f"{kind}.{name}"] = version
    return versions
