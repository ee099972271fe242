"""Which code a stage works with, in parts: the engine by its version, the rest by digests of what it imports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pflcore import ENGINE_VERSION
from pflcore.registry import module_of
from pipeline.compile.engine import STAGES as ENGINE_STAGES
from pipeline.compile.engine import Engine, root_of
from pipeline.compile.fingerprint import Code, text_hash
from pipeline.ledger import Versions
from pipeline.spec.catalog import Catalog
from pipeline.spec.figures import figure_module, figure_names
from pipeline.spec.run import Run
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import COUNTING

ENGINE = "engine"


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
    return [Part(ENGINE if kind in ENGINE_STAGES else f"stage.{kind}", root_of(kind))]


def code_of_run(kind: str, run: Run) -> list[Part]:
    """Return the code of a stage on the way to the result of a run: data, partition or train."""
    if kind in ("data", "partition"):  # of which a run may have no more
        entries = [("dataset", run.dataset)] if kind == "data" else [("partition", run.partition)]
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
    figures = [name for name in table.drawn if name in figure_names()]
    root = root_of("report")
    return [*code_of("report"), *(Part(f"figure.{name}", figure_module(name), root) for name in figures)]


_NOT_MEASURED = {"title", "caption", "notes", "paper", "better", "decimals", "partitions", "claims", "derived"}
"""What a table says of how its numbers are shown, which no measurement depends on."""


def measured_content(table: ResolvedTable) -> str:
    """Return the digest of what the evaluate stage takes from a table."""
    return text_hash(table.model_dump_json(exclude=_NOT_MEASURED))[:12]


def shown_content(table: str) -> str:
    """Return the digest of the text of a table, all of which its report shows."""
    return text_hash(table)[:12]


def versions(code: Code, catalog: Catalog, run: Run) -> Versions:
    """Return the versions of the code that a run's result depends on; of a study's own entries a digest."""
    entries = {"dataset": run.dataset, "partition": run.partition, "method": run.method, "backbone": run.backbone}
    made_by = {"engine": str(ENGINE_VERSION)}
    for kind, name in entries.items():
        own = code.outside(module_of(kind, name))
        version = text_hash(own)[:12] if own else str(catalog.entry(kind, name).facts["results_version"])
        made_by[f"{kind}.{name}"] = version
    return made_by
