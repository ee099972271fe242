"""What stands for code among a stage's dependencies: files with fingerprints, and the engine's results version."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from pflcore.registry import module_of
from pipeline.compile.engine import ENGINE, Engine, root_of
from pipeline.compile.engine import STAGES as ENGINE_STAGES
from pipeline.compile.fingerprint import Code
from pipeline.compile.seal import text_hash
from pipeline.spec.figures import figure_module
from pipeline.spec.run import Run
from pipeline.workspace import COUNTING


class StageCode:
    """The files below ``stages/code`` that have been asked for.

    Attributes:
        texts: Path relative to the workspace → text.
    """

    def __init__(self, code: Code) -> None:
        self.texts: dict[str, str] = {}
        self._code = code
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

    def made_by(self, run: Run) -> dict[str, str]:
        """The code that the result of a run depends on: the results version, and name of a fingerprint → digest."""
        paths = dict.fromkeys(path for kind in ENGINE_STAGES for path in self.of_run(kind, run))
        made_by = {PurePosixPath(path).stem: self.hash(path)[:12] for path in paths}
        # What measured its trials and chose, beside what the results version stands for.
        for kind in ("evaluate", "select") if run.tuned else ():
            made_by[kind] = text_hash(self._code.fingerprint(root_of(kind), without=root_of("train")))[:12]
        return made_by | {PurePosixPath(ENGINE).stem: self.texts[ENGINE].strip()}

    def hash(self, path: str) -> str:
        """The SHA-256 of one of the texts."""
        if path not in self._hashes:  # a fingerprint is part of hundreds of seals
            self._hashes[path] = text_hash(self.texts[path])
        return self._hashes[path]

    def _engine(self) -> str:
        """The results version."""
        if ENGINE not in self.texts:
            self.texts[ENGINE] = f"{Engine.recorded(self._code).title}\n"
        return ENGINE

    def _fingerprint(self, name: str, root: str, without: str | None = None) -> str:
        path = f"stages/code/{name}.txt"
        if path not in self.texts:
            self.texts[path] = self._code.fingerprint(root, without=without)
        return path
