"""Where the numbers come from: one row of facts per run, and wall-clock durations in a file of their own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pflcore.files import write_text
from pipeline.escape import escape_markdown
from pipeline.report.drawing.sections import NO_VALUE, PlainTable, drop_constant_columns
from pipeline.report.table.measured import Measured
from pipeline.spec.table import ResolvedTable
from pipeline.timing import read_timing
from pipeline.workspace import timings_path

NAMES = ("run", "data", "partition", "code", "device", "torch")
NUMBERS = ("parameters", "bytes up", "bytes down")


def provenance(runs: dict[str, Measured]) -> tuple[PlainTable, str]:
    """The footer: a row per run that is there, and what is the same for all of them.

    A dash stands for what a run does not say; hashes are cut to 12 digits. With kept results there is one column more:
    since when.
    """
    runs = {name: run for name, run in runs.items() if run.facts}
    kept = ("kept since",) if any(run.kept for run in runs.values()) else ()
    rows = [(run.id, *_names(run), *([run.kept or NO_VALUE] if kept else []), *_numbers(run)) for run in runs.values()]
    return drop_constant_columns(PlainTable((*NAMES, *kept, *NUMBERS), rows, labels=len(NAMES) + len(kept)))


def write_timings(table: ResolvedTable, root: Path) -> None:
    """Collect ``.pfl/timings/<run id>.json`` into one table, if there are any.

    Durations are the only facts that differ when a run is repeated, so they stay out of the report, which can then be
    reproduced byte for byte.
    """
    lines, total = [], 0.0
    for run in sorted(table.runs):
        if timing := read_timing(root / ".pfl" / "timings" / f"{run}.json"):
            total += timing.seconds
            lines.append(f"| {run} | {escape_markdown(timing.device)} | {timing.seconds:.1f} |\n")
    if lines:
        head = f"# Training time of {table.spec}\n\n| run | device | seconds |\n|:---|:---|---:|\n"
        write_text(root / timings_path(table.spec), head + "".join(lines) + f"| **all** | | {total:.1f} |\n")


def unlike_data(runs: Iterable[Measured]) -> str:
    """That runs which ask for the same data were not given the same, as may happen with raw files of one's own."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for name, part in (("dataset", run.resolved.data_id), ("partition", run.resolved.federation_id)):
            if known := run.facts.get(f"{name}_hash"):
                hashes.setdefault((name, part), set()).add(known)
    unlike = sorted({part for (_, part), found in hashes.items() if len(found) > 1})
    return f"NOT COMPARABLE: not all runs had the same data of {', '.join(unlike)} (see Provenance)." if unlike else ""


def _names(run: Measured) -> list[str]:
    names = [
        str(run.facts.get(key) or NO_VALUE) for key in ("dataset_hash", "partition_hash", "code", "device", "torch")
    ]
    return [names[0][:12], names[1][:12], *names[2:]]


def _numbers(run: Measured) -> list[str]:
    numbers = [run.facts.get(key) for key in ("parameters", "communicated_up", "communicated_down")]
    return [NO_VALUE if number is None else f"{number:,}" for number in numbers]
