"""Options of ``pfl run``, and the compilation that they ask for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.progress import warn
from pipeline.spec.selection import read_selection
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace, table_path

MAX_NAMES = 12  # in a message


@dataclass(frozen=True)
class RunOptions:
    """The options of `pfl run`.

    If cells (patterns of their labels, joined by ``, ``) or seeds are given, only these runs are made, and no reports.
    """

    specs: tuple[str, ...] = ()  # names; empty for the default specs
    all_specs: bool = False  # all specs instead of the default specs
    jobs: int | None = None  # stages at a time; None for as many as fit
    gpus: str | None = None  # ``0,1``, or None for all visible GPUs
    per_gpu: int = 1  # stages at a time on each GPU
    keep_going: bool = True  # after a failure, start the stages that do not depend on it
    dry: bool = False  # only list the stages to be executed
    cluster: str | None = None  # the address of a Ray cluster that trains
    cells: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    command: str = "pfl run"  # the command as typed


@dataclass(frozen=True)
class Request:
    """The options of a call of `pfl run`, with the compilation of its specs in a workspace."""

    workspace: Workspace
    options: RunOptions
    specs: list[str]  # the specs whose reports are requested
    compilation: Compilation  # of these specs and of all others that are selected in the workspace
    runs: list[str] | None = None  # only these runs of the specs, and no reports; None for all that reports need
    added: tuple[str, ...] = ()  # specs that are not selected in the workspace yet

    @classmethod
    def compiled(cls, workspace: Workspace, options: RunOptions) -> Request:
        """Compile the specs without writing any file. Raises :class:`UserError` for invalid specs or options."""
        all_names = list(find_specs(workspace.specs, {}))
        selection = read_selection(workspace, all_names)
        requested = list(options.specs) or (all_names if options.all_specs else selection.default)
        if not requested:
            raise UserError("nothing to run: there are no specs")
        selected = selection.compiled
        profiled = workspace.root != workspace.home
        if profiled:  # in a profile's workspace, the specs compiled so far are selected
            selected = [name for name in all_names if (workspace.root / table_path(name)).is_file()]
        compilation = compile_workspace(workspace, sorted({*selected, *requested}), required=requested)
        compilation.check_tested()
        specs = [name for name in requested if name in compilation.tables]
        if not specs:
            compilation.table(requested[0])
        runs = select_runs(specs, compilation, options.cells, options.seeds)
        added = () if profiled else tuple(name for name in specs if name not in selected)
        if added and options.dry:
            line = f"DVC does not see the stages of {added[0]} yet; ask `pfl plan`, or `pfl add {added[0]}` first"
            raise UserError(line)
        warn(f"skipped: {problem}" for problem in compilation.skipped.values())
        return cls(workspace, options, specs, compilation, runs, added)


def select_runs(
    specs: Sequence[str], compilation: Compilation, cells: Sequence[str], seeds: Sequence[int] = ()
) -> list[str] | None:
    """Return the runs of cells and seeds; None if neither is given. Raises :class:`UserError` if a pattern
    of cells or the seeds mean no run."""
    if not (cells or seeds):
        return None
    tables = [compilation.tables[spec] for spec in specs if not compilation.tables[spec].counted]
    if not tables:
        remedy = f"type `pfl run {specs[0]}`, without --cell and --seed"
        raise UserError(f"{specs[0]}: what it shows is counted, no run of it is trained; {remedy}")
    cells_with_runs = [(cell_name(cell.labels), cell.runs) for table in tables for cell in table.cells if cell.runs]
    matches = match_cells(cells, [name for name, _ in cells_with_runs])
    runs = sorted({run for name, runs in cells_with_runs if name in matches for run in runs})
    chosen = [run for run in runs if not seeds or compilation.runs[run].seed in seeds]
    if not chosen:
        raise UserError(f"no run of these cells has the seed {', '.join(map(str, seeds))}")
    return chosen


def cell_name(labels: Mapping[str, str]) -> str:
    """Return the name of a cell on a command line, such as ``FedAvg, CIFAR-10, 50``."""
    return ", ".join(labels.values())


def match_cells(patterns: Sequence[str], names: Sequence[str], kind: str = "cell") -> set[str]:
    """Return the names that match any pattern, such as ``Fed*, CIFAR-10, 50``; without a pattern, all names.

    A pattern that equals a name means this cell alone, even if its labels contain stars and brackets. A pattern that
    matches no name raises :class:`UserError`, which calls the cells `kind`.
    """
    selected = set[str]() if patterns else set(names)
    for pattern in patterns:
        matches = {pattern} & set(names) or {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            existing = f"there are {', '.join(map(repr, names[:MAX_NAMES]))}{rest}"
            if similar := difflib.get_close_matches(pattern, names, n=1):
                existing = f"did you mean {similar[0]!r}?"
            syntax = "labels are joined by a comma and a space, * stands for any"
            raise UserError(f"no {kind} {pattern!r} ({syntax}); {existing}")
        selected |= matches
    return selected
