"""The figures that specs can list, as their files in ``pipeline/report/figures`` say.

The files are read and not imported: a spec does not wait for what draws. What an analysis found is a figure as well,
called like the analysis, whether it has a file there or not. A study's own lie in its folder ``figures/``.
"""

from __future__ import annotations

import ast
from pathlib import Path

from pflcore.extensions import found

_FOLDER = Path(__file__).parents[1] / "report/figures"


def figure_names() -> list[str]:
    """Return those that have a file, sorted. Raises :class:`UserError` when a name is taken twice."""
    return sorted([*(path.stem for path in _FOLDER.glob("[!_]*.py")), *found("figures", _FOLDER)])


def figure_module(name: str) -> str:
    """Return the module of a figure that has a file, as a dotted name."""
    own = found("figures", _FOLDER).get(name)
    return own.module if own else f"pipeline.report.figures.{name}"


def figure_needs(name: str) -> str:
    """Return what a figure with a file reads beside rounds and analyses: "partitions", or "" for nothing."""
    own = found("figures", _FOLDER).get(name)
    for node in ast.parse((own.path if own else _FOLDER / f"{name}.py").read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="NEEDS")], value=ast.Constant(value=str(needs))):
                return needs
    return ""
