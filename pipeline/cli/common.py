"""What commands have in common: specs as they are named on the command line, and where they print to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.workspace import Workspace

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.compile.compilation import Compilation
    from pipeline.spec.selection import SpecSelection

_UNBROKEN = 10_000  # columns of a file or a pipe: a row of a table is a line there


def console() -> Console:
    """Standard output: a terminal as wide as it is; a file or a pipe so wide that nothing is wrapped or cut off."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _UNBROKEN
    return console


def all_specs(workspace: Workspace) -> list[str]:
    """The names of all specs."""
    from pipeline.spec.specs import find_specs

    return list(find_specs(workspace.specs))


def named_specs(workspace: Workspace, words: list[str] | None) -> list[str]:
    """Specs by what they are called on the command line. Raises :class:`UserError` for an unknown one."""
    from pipeline.spec.selection import named

    return named(words or [], all_specs(workspace)) if words else []


def selected(workspace: Workspace) -> SpecSelection:
    """The specs that are compiled."""
    from pipeline.spec.selection import read_selection

    return read_selection(workspace, all_specs(workspace))


def write_stages(workspace: Workspace, compilation: Compilation) -> None:
    """Write what was compiled, and say what that changed."""
    from pipeline.compile.generated import write

    print(f"{len(compilation.tables)} specs, {len(compilation.runs)} runs: {write(workspace, compilation).summary}")
