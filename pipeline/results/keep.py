"""``pfl keep``, which adds up-to-date results to the ledger; ``pfl ledger list`` and ``show``, which print them."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pflcore.artifacts import read_meta, read_table
from pflcore.errors import UserError
from pflcore.protocols import curve, rounds_trained
from pflcore.registry import did_you_mean
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import Recorded
from pipeline.ledger import FACTS, Entry, Ledger, Versions, difference
from pipeline.measurements import from_table
from pipeline.spec.run import Run
from pipeline.timing import read_timing
from pipeline.workspace import Workspace, run_path, selection_path

CURRENT = "current"


@dataclass
class KeepResult:
    """The outcome of ``pfl keep`` for the runs of a spec."""

    file: Path | None = None  # the file of the ledger; None if no run was added
    added: list[str] = field(default_factory=list)
    already_kept: int = 0  # number of runs
    skipped: Counter[str] = field(default_factory=Counter)  # reason → number of runs


def keep(workspace: Workspace, spec: str) -> KeepResult:
    """Add to the ledger each run of a spec that DVC has recorded with the present specs and code, and the selections of
    tuned runs, but not their trials. Raises :class:`UserError` if a spec is invalid or a file is damaged."""
    compilation = compile_workspace(workspace, [spec], [spec])
    recorded, ledger, result = Recorded(workspace.root, compilation), Ledger(workspace.root), KeepResult()
    new, ids = list[Entry](), {run for table in compilation.tables.values() for run in table.runs}
    for run in map(compilation.runs.__getitem__, sorted(ids & compilation.runs.keys())):
        if run.id in compilation.kept:
            result.already_kept += 1
        elif run.analyses or run.training.save_weights:
            result.skipped["have more to keep than accuracies (analyses, weights)"] += 1
        elif not recorded.holds(run_path(run.id, "rounds.parquet")):
            result.skipped["are not up to date here"] += 1
        elif "figure" in read_meta(workspace.root / run_path(run.id, "rounds.parquet"), "rounds/2"):
            result.skipped["are of detectors, of which counts do not tell the precision"] += 1
        else:
            new.append(_entry(workspace, run, compilation.made_by[run.id]))
    selections = {}
    for name in sorted({str(entry.run.tuned) for entry in new if entry.run.tuned}):
        versions = compilation.made_by[compilation.selections[name].trials[0].runs[0].id]
        if ledger.selection(name, versions) is None:
            content = json.loads((workspace.root / selection_path(name)).read_text(encoding="utf-8"))
            selections[name] = versions, content
    if new:
        result.file = ledger.write(spec, new, selections)
    result.added = [entry.run.id for entry in new]
    return result


def _entry(workspace: Workspace, run: Run, made_by: Versions) -> Entry:
    path = workspace.root / run_path(run.id, "rounds.parquet")
    rounds, meta = read_table(path, "rounds/2")
    timing_file = workspace.private / "timings" / f"{run.id}.json"
    obtained, seconds = training_time(timing_file, rounds_trained(rounds, run.training))
    timing, facts = read_timing(timing_file), {name: meta.get(name) for name in FACTS}
    try:
        measurements = from_table(rounds, meta["positions"])
    except UserError as error:
        raise UserError(f"{path}: {error}, so it cannot be kept") from None
    return Entry(run, made_by, obtained, seconds, facts, measurements, timing.machine if timing else "")


def training_time(path: Path, rounds: int) -> tuple[str, float | None]:
    """Return the day and the seconds of the training of a run of `rounds`: today and None without a timing."""
    timing = read_timing(path)
    if not timing or not timing.rounds:
        return datetime.datetime.now(datetime.UTC).date().isoformat(), None
    seconds = timing.seconds if timing.core_seconds is None else timing.core_seconds
    day = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date().isoformat()
    return day, round(seconds * rounds / timing.rounds, 1)  # a resumed training timed only its last rounds


def list_entries(ledger: Ledger, compilation: Compilation) -> list[dict[str, str]]:
    """List the runs of a ledger, each compared with `compilation`, which has all specs and ignores the ledger: its
    state is :data:`CURRENT`, or the reason why no report shows it."""
    lines = []
    for entry in ledger.entries():
        points, state = curve_of(entry), "no spec asks for it"
        if entry.run.id in compilation.runs:
            state = difference(entry.made_by, compilation.made_by[entry.run.id]) or CURRENT
        line = {
            "run": entry.run.id,
            "accuracy": "diverged" if entry.facts["diverged"] or not points else f"{points[-1][1]:.2f}",
            "obtained": entry.obtained,
            "device": entry.facts["device"],
            "seconds": "" if entry.seconds is None else f"{entry.seconds:,.0f}",
            "state": state,
        }
        lines.append(line)
    return lines


def find_entry(ledger: Ledger, id_: str) -> Entry:
    """Return a kept result by the id of its run. Raises :class:`UserError` if there is none or it is damaged."""
    if entry := ledger.get(id_):
        return entry
    raise UserError(f"no kept result {id_!r}{did_you_mean(id_, list(ledger.lines))}; see `pfl ledger list`")


def curve_of(entry: Entry) -> list[tuple[int, float, float]]:
    """Return round, accuracy in percent and mean loss of each measurement."""
    points = zip(*curve(entry.rounds()), strict=True)
    return [(int(round_), float(accuracy), float(loss)) for round_, accuracy, loss in points]
