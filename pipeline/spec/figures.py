"""The figures that specs can list, as their files in ``pipeline/report/figures`` say.

The files are read and not imported: a spec does not wait for what draws. What an analysis found is a figure as well,
called like the analysis, whether it has a file there or not.
"""

from __future__ import annotations

import ast
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "report/figures"


def figure_names() -> list[str]:
    """Those that have a file, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("[!_]*.py"))


def figure_needs(name: str) -> str:
    """What a figure with a file reads beside rounds and analyses: "partitions", or "" for nothing."""
    for node in ast.parse((_FOLDER / f"{name}.py").read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="NEEDS")], value=ast.Constant(value=str(needs))):
                return needs
    return ""
