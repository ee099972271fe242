"""What stands for code among a stage's dependencies: files with fingerprints, and the engine's version."""

from __future__ import annotations

from collections.abc import Iterable

from pflcore import ENGINE_VERSION
from pflcore.registry import module_of
from pipeline.compile.engine import ENGINE, TITLE, root_of
from pipeline.compile.engine import STAGES as ENGINE_STAGES
from pipeline.compile.fingerprint import Code
from pipeline.compile.seal import text_hash
from pipeline.ledger import Versions
from pipeline.spec.catalog import Catalog
from pipeline.spec.figures import figure_module
from pipeline.spec.run import Run
from pipeline.workspace import COUNTING


class StageCode:
    """The files below ``stages/code`` that have been asked for.

    Attributes:
        texts: Path relative to the workspace → text.
    """

    def __init__(self, code: Code, catalog: Catalog) -> None:
        self.texts: dict[str, str] = {}
        self._code = code
        self._catalog = catalog
        self._hashes: dict[str, str] = {}

    def of_stage(self, kind: str, *entries: tuple[str, str]) -> list[str]:
        """Paths of what stands for the code of a stage: its own, and what entries (kind, name) have beside that."""
        root = root_of(kind)
        paths = [self._engine() if kind in ENGINE_STAGES else self._fingerprint(kind, root)]
        for entry_kind, name in entries:
            paths.append(self._fingerprint(f"{entry_kind}.{name}", module_of(entry_kind, name), without=root))
        return paths

    def of_run(self, kind: str, run: Run) -> list[str]:
        """The same for a stage on the way to the result of a run: data, partition or train."""
        entries = {
            "data": [("dataset", run.dataset)],
            "partition": [("partition", run.partition)],
            "train": [("method", run.method), ("backbone", run.backbone), *(("analysis", one) for one in run.analyses)],
        }
        return self.of_stage(kind, *entries[kind])

    def of_figure(self, name: str) -> str:
        """The path of what stands for the code that a figure has beside that of reports."""
        return self._fingerprint(f"figure.{name}", figure_module(name), without=root_of("report"))

    def of_counts(self, runs: Iterable[Run]) -> list[str]:
        """The same for what is counted of runs without training them: their code, and what counts."""
        paths = dict.fromkeys(path for run in runs for path in self.of_run("train", run))
        return [*paths, self._fingerprint("counting", COUNTING, without=root_of("train"))]

    def versions(self, run: Run) -> Versions:
        """Return the versions of the code that a run's result depends on; of a study's own entries a digest."""
        entries = {"dataset": run.dataset, "partition": run.partition, "method": run.method, "backbone": run.backbone}
        versions = {"engine": str(ENGINE_VERSION)}
        for kind, name in entries.items():
            own = self._code.outside(module_of(kind, name))
            version = text_hash(own)[:12] if own else str(self._catalog.entry(kind, name).facts["results_version"])
            versions[f"{kind}.{name}"] = version
        return versions

    def hash(self, path: str) -> str:
        """The SHA-256 of one of the texts."""
        if path not in self._hashes:  # a fingerprint is part of hundreds of seals
            self._hashes[path] = text_hash(self.texts[path])
        return self._hashes[path]

    def _engine(self) -> str:
        """Return the path of what stands for the engine."""
        if ENGINE not in self.texts:
            self.texts[ENGINE] = f"{TITLE}\n"
        return ENGINE

    def _fingerprint(self, name: str, root: str, without: str | None = None) -> str:
        path = f"stages/code/{name}.txt"
        if path not in self.texts:
            self.texts[path] = self._code.fingerprint(root, without=without)
        return path
