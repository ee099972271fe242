"""Collecting: finished runs of a card become what the train stage writes, recorded by DVC as that stage's result.

A run counts only if its record, its code and its data are those that the workspace has now; the identity that a run's
checkpoints bear says so. Device and PyTorch are told as they were on the card.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from cells.folder import FINISHED, collected, read_partition
from cells.pack import code_of, hashes
from cells.train import UNDER_WAY, finished, unpacked

from pflcore.engine import Result
from pflcore.engine.client import Diverged
from pflcore.engine.cost import Cost
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import dvc
from pipeline.spec.run import Run
from pipeline.spec.specs import find_specs
from pipeline.stages.identity import run_hash
from pipeline.stages.train import write_rounds
from pipeline.workspace import Workspace, run_path


def collect(workspace: Workspace, folder: Path, source: Path) -> list[str]:
    """Take what came back from a card into a workspace and into the packed folder; lines to show.

    Raises:
        UserError: A run was made by other code or from other data than there are here, which is told when all others
            have been taken; or DVC does not see the stages of its spec.
    """
    specs = list(find_specs(workspace.specs))
    compilation = compile_workspace(workspace, specs)
    compilation.check_tested()
    known, stages, refused = collected(folder), [], []
    for line in finished(source):
        if line["run"] in known:
            continue
        run = compilation.runs.get(line["run"])
        if run is None or line["identity"] != _identity(workspace.root, compilation, run, line["kind"]):
            refused.append(line["run"])
            continue
        stages.append(_address(workspace.root, compilation, run))
        _write(workspace, folder, run, code_of(compilation, run), line)
        known.add(run.id)
    if stages and dvc(workspace.root, "commit", "--force", "--quiet", *stages):
        raise UserError("`dvc commit` failed; see above")
    write_text(folder / FINISHED, "".join(f"{name}\n" for name in sorted(known)))
    under_way = _take_checkpoints(folder, source, known)
    if refused:
        raise UserError(
            f"{refused[0]}{f' and {len(refused) - 1} more' if len(refused) > 1 else ''}: trained with other settings, "
            f"code or data than there are here, so not taken; {len(stages)} others were"
        )
    return [f"{len(stages)} runs taken, {under_way} under way; `pfl results keep` makes them last"]


def _identity(root: Path, compilation: Compilation, run: Run, kind: str) -> str:
    try:
        return run_hash(run, code_of(compilation, run), hashes(root, run), torch.device(kind))
    except OSError:  # without its data here, nobody can say that it is the same
        return ""


def _address(root: Path, compilation: Compilation, run: Run) -> str:
    (stage,) = [stage for stage in compilation.stages if stage.kind == "train" and stage.subject == run.id]
    if not (root / stage.file).is_file():
        raise UserError(f"{stage.file}: DVC does not see this stage; type `pfl add` and the spec")
    return stage.address


def _write(workspace: Workspace, folder: Path, run: Run, code: str, line: dict[str, Any]) -> None:
    """What the train stage leaves behind: the table of rounds, and how long they took."""
    result = Result(
        **unpacked(line["columns"]),
        precision=None,
        positions=line["positions"],
        rounds=line["rounds"],
        diverged=Diverged(*line["diverged"]) if line["diverged"] else None,
        parameters=line["parameters"],
        cost=Cost(**line["cost"]),
        resumed_from=line["resumed_from"],
        inherited=False,
        weights={},
        findings={},
    )
    novel = frozenset(read_partition([folder], run.federation_id).novel)
    facts = {"run": run.id, "device": line["device"], "torch": line["torch"], **hashes(workspace.root, run)}
    path = workspace.root / run_path(run.id, "rounds.parquet")
    path.unlink(missing_ok=True)  # it may be a link into DVC's cache
    write_rounds(path, result, novel, code=code, **facts)
    rounds = (result.diverged.round if result.diverged else result.rounds) - result.resumed_from
    timing = workspace.private / "timings" / f"{run.id}.json"
    write_text(timing, json.dumps({"seconds": line["seconds"], "device": line["device"], "rounds": rounds}) + "\n")
    os.utime(timing, (line["ended"], line["ended"]))  # the day on which it was obtained


def _take_checkpoints(folder: Path, source: Path, known: set[str]) -> int:
    """Put what is under way into the packed folder, so that it travels again; how many runs that is."""
    for place in source.glob(f"{UNDER_WAY}*"):
        shutil.rmtree(folder / place.name, ignore_errors=True)
        shutil.copytree(place, folder / place.name)
    here = list(folder.glob(f"{UNDER_WAY}*"))
    for place in here:
        if place.name.removeprefix(UNDER_WAY) in known:
            shutil.rmtree(place)
    return sum(place.is_dir() for place in here)
