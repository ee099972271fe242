"""``pfl track``: viewers are told of runs that have been trained already."""

from __future__ import annotations

from dataclasses import dataclass

from pflcore.artifacts import read_table
from pflcore.protocols import curve
from pipeline.compile.compiler import compile_workspace
from pipeline.papers.recalled import recall
from pipeline.report.table.measured import measure
from pipeline.stages.tracking import open_sinks
from pipeline.workspace import Workspace


@dataclass(frozen=True)
class Tracked:
    """How many runs of some specs were told of, and how many have not been made."""

    told: int
    missing: int


def track(workspace: Workspace, specs: list[str], viewers: list[str]) -> Tracked:
    """Tell viewers of all runs of some specs that there are, kept ones included, in place of what they knew of them.

    Raises:
        UserError: A spec is invalid, an artifact is damaged, or there is no such viewer here.
    """
    compilation = compile_workspace(workspace, specs)
    recall(workspace.root, compilation)
    told, seen = 0, set()
    for table in compilation.tables.values():
        for name, measured in ({} if table.counted else measure(table, compilation.runs, workspace.root)).items():
            if name in seen:
                continue
            seen.add(name)
            if measured.rounds_path.is_file():
                sinks = open_sinks(viewers, compilation.runs[name], workspace.private, anew=True)
                rounds = read_table(measured.rounds_path, "rounds/2")[0]
                for round_, accuracy, loss in zip(*curve(rounds), strict=True):
                    for sink in sinks:
                        sink.log(int(round_), {"accuracy": float(accuracy), "loss": float(loss)})
                for sink in sinks:
                    sink.close()
                told += 1
    return Tracked(told, len(seen) - told)
