"""What commands share: types of arguments, the lookup of specs by name, and output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import write
from pipeline.progress import warn
from pipeline.spec.selection import SpecSelection, read_selection, select_specs
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

if TYPE_CHECKING:
    from rich.console import Console

Specs = Annotated[list[str] | None, typer.Argument(help="Specs, e.g. fedtp/table2, or folders of them, e.g. fedtp.")]
Kept = Annotated[list[str], typer.Argument(help="Specs, e.g. fedofa/table_s1, or a folder of them.")]
All = Annotated[bool, typer.Option("--all", help="All specs.")]
AllAdded = Annotated[bool, typer.Option("--all", help="All added specs.")]
Profile = Annotated[str, typer.Option(help="paper or smoke.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Set an option, e.g. alpha=0.1; repeatable.")]
_FILE_WIDTH = 10_000  # columns of a file or a pipe, so that each row of a table is one line


def console() -> Console:
    """Return a console on standard output: as wide as the terminal; for a file or a pipe so wide that nothing wraps."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console


def print_table(columns: Iterable[str], right: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows as a table, with the columns in `right` aligned to the right. Print nothing if there are no rows."""
    from rich.markup import escape

    from pipeline.browse import plain_table

    table = plain_table(*columns, right=right)
    for row in rows:
        table.add_row(*map(escape, row))
    if table.row_count:
        console().print(table)


def all_specs(workspace: Workspace) -> list[str]:
    """Return the names of all specs. Files that cannot be specs are left out."""
    return list(find_specs(workspace.specs, {}))


def named_specs(workspace: Workspace, words: list[str] | None) -> list[str]:
    """Return the specs that are named on the command line. Raises :class:`UserError` for an unknown name."""
    return select_specs(words, all_specs(workspace)) if words else []


def selected(workspace: Workspace) -> SpecSelection:
    """Return which specs are in use in a workspace."""
    return read_selection(workspace, all_specs(workspace))


def warn_of_skipped(compilation: Compilation) -> None:
    """Print to standard error which specs were skipped, and why."""
    warn(f"skipped: {problem}" for problem in compilation.skipped.values())


def write_stages(workspace: Workspace, compilation: Compilation | None = None) -> None:
    """Write the stage files of a compilation, by default of all valid specs in use, and print what changed."""
    compiled = compilation or compile_workspace(workspace, required=())
    warn_of_skipped(compiled)
    counts = {"spec": len(compiled.tables), "run": len(compiled.runs)}
    words = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())
    print(f"{words}: {write(workspace, compiled).summary}")
