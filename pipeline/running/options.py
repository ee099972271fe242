"""What ``pfl run`` is asked for, and what that compiles to."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.spec.selection import read_selection
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace, table_path

MAX_NAMES = 12  # in a message


@dataclass(frozen=True)
class RunOptions:
    """What `pfl run` is asked for.

    With cells (patterns of their labels, joined by ``, ``) or seeds, only such runs of the specs, and no reports.
    """

    specs: tuple[str, ...] = ()  # names; empty for the default ones
    everything: bool = False  # all specs instead
    jobs: int | None = None  # stages at a time; None for as many as fit
    gpus: str | None = None  # ``0,1``, or None for those that are visible
    per_gpu: int = 1  # stages at a time on each of them
    keep_going: bool = True  # after a failure, start what does not depend on it
    dry: bool = False  # only say what there is to do
    cluster: str | None = None  # the address of a Ray cluster that trains
    cells: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    command: str = "pfl run"  # what was typed


@dataclass(frozen=True)
class Request:
    """Options in a workspace, compiled."""

    workspace: Workspace
    options: RunOptions
    specs: list[str]  # those whose reports are wanted
    compilation: Compilation  # they, and whatever else is selected in the workspace
    runs: list[str] | None = None  # of the specs only these, and no reports; None for all that reports need
    added: tuple[str, ...] = ()  # specs that are not selected in the workspace yet

    @classmethod
    def compiled(cls, workspace: Workspace, options: RunOptions) -> Request:
        """Compile, and write nothing."""
        known = list(find_specs(workspace.specs, {}))
        selection = read_selection(workspace, known)
        wanted = list(options.specs) or (known if options.everything else selection.default)
        if not wanted:
            raise UserError("nothing to run: there are no specs")
        selected = selection.compiled
        if workspace.root != workspace.home:  # a profile's own workspace holds what has been asked of it so far
            selected = [name for name in known if (workspace.root / table_path(name)).is_file()]
        compilation = compile_workspace(workspace, sorted({*selected, *wanted}), wanted=wanted)
        compilation.check_tested()
        specs = [name for name in wanted if name in compilation.tables]
        if not specs:
            compilation.table(wanted[0])
        runs = _chosen_runs(options, specs, compilation)
        own = workspace.root != workspace.home
        added = () if own else tuple(name for name in specs if name not in selected)
        if added and options.dry:
            line = f"DVC does not see the stages of {added[0]} yet; ask `pfl plan`, or `pfl add {added[0]}` first"
            raise UserError(line)
        for problem in compilation.skipped.values():
            print(f"pfl: left alone: {problem}", file=sys.stderr)
        return cls(workspace, options, specs, compilation, runs, added)


def _chosen_runs(options: RunOptions, specs: list[str], compilation: Compilation) -> list[str] | None:
    """Return the runs of the wanted cells and seeds; None where neither is given."""
    if not (options.cells or options.seeds):
        return None
    tables = [compilation.tables[spec] for spec in specs if not compilation.tables[spec].counted]
    if not tables:
        how = f"type `pfl run {specs[0]}`, without --cell and --seed"
        raise UserError(f"{specs[0]}: what it shows is counted, no run of it is trained; {how}")
    cells = [(cell_name(cell.labels), cell.runs) for table in tables for cell in table.cells if cell.runs]
    meant = cells_meant(options.cells, [name for name, _ in cells])
    runs = sorted({run for name, runs in cells if name in meant for run in runs})
    chosen = [run for run in runs if not options.seeds or compilation.runs[run].seed in options.seeds]
    if not chosen:
        raise UserError(f"no run of these cells has the seed {', '.join(map(str, options.seeds))}")
    return chosen


def cell_name(labels: Mapping[str, str]) -> str:
    """Return the name of a cell on a command line, such as ``FedAvg, CIFAR-10, 50``."""
    return ", ".join(labels.values())


def cells_meant(patterns: Sequence[str], names: Sequence[str], kind: str = "cell") -> set[str]:
    """Return the cells of these names that patterns such as ``Fed*, CIFAR-10, 50`` mean; without a pattern, all.

    A name that is written out means this cell alone, whatever its labels have of stars and brackets. A pattern that
    means no cell is an error, in which they are called `kind`.
    """
    found = set[str]() if patterns else set(names)
    for pattern in patterns:
        meant = {pattern} & set(names) or {name for name in names if fnmatchcase(name, pattern)}
        if not meant:
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            there = f"there are {', '.join(map(repr, names[:MAX_NAMES]))}{more}"
            if near := difflib.get_close_matches(pattern, names, n=1):
                there = f"did you mean {near[0]!r}?"
            how = "labels are joined by a comma and a space, * stands for any"
            raise UserError(f"no {kind} {pattern!r} ({how}); {there}")
        found |= meant
    return found
