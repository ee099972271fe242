"""What DVC's lock files say of artifacts: whether they were made with the present specs and code."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipeline.compile.compilation import Compilation
from pipeline.dvc.program import locked_stages
from pipeline.workspace import run_path


class Recorded:
    """DVC's records, from lock files, of the stages of a compilation."""

    def __init__(self, root: Path, compilation: Compilation) -> None:
        self.root = root
        self.makers = {out: stage for stage in compilation.stages for out in stage.outs}
        self.locked = locked_stages(root, compilation.stages)

    def is_stale(self, run: str) -> bool:
        """Return whether DVC has recorded the run with this id, but with other code or data than the present ones."""
        out = run_path(run, "rounds.parquet")
        return out in self.makers and self.makers[out].address in self.locked and self._made(out) is None

    def holds(self, path: str) -> bool:
        """Return whether a file, relative to the workspace, is as its stage wrote it from inputs that are current."""
        made, file = self._made(path), self.root / path
        if made is None or not file.is_file():
            return False
        return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() == made

    def _made(self, out: str) -> str | None:
        """Return the recorded hash of an output if its stage and all earlier ones ran the present commands, or None."""
        stage = self.makers[out]
        lock = self.locked.get(stage.address)
        if not lock or lock.get("cmd") != stage.command:
            return None
        inputs, outs = ({one["path"]: one.get("md5") for one in lock.get(side) or []} for side in ("deps", "outs"))
        before = [dep for dep in stage.deps if dep in self.makers and self.makers[dep].kind != "guard"]
        if any(inputs.get(dep) is None or self._made(dep) != inputs[dep] for dep in before):
            return None
        return None if outs.get(out) is None else str(outs[out])
