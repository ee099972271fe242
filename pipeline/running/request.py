"""What a ``pfl run`` was asked for, and what that compiles to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from shlex import quote

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.running.cells import cell_name, cells_meant
from pipeline.spec.selection import add, read_selection
from pipeline.spec.specs import find_specs
from pipeline.workspace import PAPER, Workspace


@dataclass(frozen=True)
class Wish:
    """What `pfl run` was asked for.

    Attributes:
        specs: Their names; empty for the default ones.
        everything: All specs instead.
        jobs: Stages at a time; None for as many as there is room for.
        gpus: ``0,1``, or None for those that are visible.
        per_gpu: Stages at a time on each of them.
        keep_going: After a failure, start what does not depend on it.
        dry: Only say what there is to do.
        cluster: The address of a Ray cluster that does the work.
        cells: Of the specs only runs of these cells, and no reports: patterns of their labels, joined by ``, ``.
        seeds: Of these, or of all cells, only runs with these seeds.
    """

    specs: tuple[str, ...] = ()
    everything: bool = False
    jobs: int | None = None
    gpus: str | None = None
    per_gpu: int = 1
    keep_going: bool = True
    dry: bool = False
    cluster: str | None = None
    cells: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Request:
    """A wish in a workspace, compiled.

    Attributes:
        specs: Those whose reports are wanted.
        compilation: They, and whatever else has been selected in the workspace.
        runs: Of the specs only these, and no reports; None for all that reports need.
    """

    workspace: Workspace
    wish: Wish
    specs: list[str]
    compilation: Compilation
    runs: list[str] | None = None

    @classmethod
    def compiled(cls, workspace: Workspace, wish: Wish) -> Request:
        """Compile a wish. Writes nothing but which specs are selected here from now on.

        Raises:
            UserError: A spec is invalid, or only to be extended, or there is none; no cell is meant; or the engine was
                edited and regression runs have not seen it.
        """
        known = list(find_specs(workspace.specs))
        selection = read_selection(workspace, known)
        wanted = list(wish.specs) or (known if wish.everything else selection.default)
        if not wanted:
            raise UserError("nothing to run: there are no specs")
        selected = selection.compiled if workspace.root == workspace.home else []
        compilation = compile_workspace(workspace, sorted({*selected, *wanted}), wanted=wanted)
        compilation.check_tested()
        specs = [name for name in wanted if name in compilation.tables]
        if not specs:
            compilation.table(wanted[0])
        runs = _runs(wish, specs, compilation)
        new = [name for name in specs if name not in selected]
        if new and workspace.root == workspace.home:
            if wish.dry:
                line = f"DVC does not see the stages of {new[0]} yet; ask `pfl plan`, or `pfl add {new[0]}` first"
                raise UserError(line)
            add(workspace, new)
        for problem in compilation.skipped.values():
            print(f"pfl: left alone: {problem}", file=sys.stderr)
        return cls(workspace, wish, specs, compilation, runs)

    @property
    def command(self) -> str:
        """What asks for the same again."""
        wish, profile = self.wish, self.workspace.profile
        options = {
            "--profile": None if profile == PAPER else profile,
            "-j": wish.jobs,
            "--gpus": wish.gpus,
            "--per-gpu": None if wish.per_gpu == 1 else wish.per_gpu,
            "--cluster": wish.cluster,
        }
        words = ["pfl run", *wish.specs, *(["--all"] if wish.everything else [])]
        words += [f"--cell {quote(cell)}" for cell in wish.cells] + [f"--seed {seed}" for seed in wish.seeds]
        words += [f"{option} {value}" for option, value in options.items() if value is not None]
        return " ".join(words + ([] if wish.keep_going else ["--fail-fast"]))


def _runs(wish: Wish, specs: list[str], compilation: Compilation) -> list[str] | None:
    """The runs of the wanted cells and seeds; None where neither is said."""
    if not (wish.cells or wish.seeds):
        return None
    tables = [compilation.tables[spec] for spec in specs if not compilation.tables[spec].counted]
    if not tables:
        raise UserError(
            f"{specs[0]}: what it shows is counted, no run of it is trained; type `pfl run {specs[0]}`, "
            "without --cell and --seed"
        )
    cells = [(cell_name(cell.labels), cell.runs) for table in tables for cell in table.cells if cell.runs]
    meant = cells_meant(wish.cells, [name for name, _ in cells])
    named = {run for name, runs in cells if name in meant for run in runs}
    chosen = [run for run in sorted(named) if not wish.seeds or compilation.runs[run].seed in wish.seeds]
    if not chosen:
        raise UserError(f"no run of these cells has the seed {', '.join(map(str, wish.seeds))}")
    return chosen
