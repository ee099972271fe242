"""The figures that specs can list: built-in ones, and further ones with a file each.

The files are parsed and not imported, so that reading a spec does not import plotting libraries. Each analysis is a
figure, too, under its own name, even if no module draws it. The files of a study lie in its folder ``figures/``.
"""

from __future__ import annotations

import ast
from pathlib import Path

from pflcore.extensions import entries

BUILT_IN = {
    "resources": ("costs", "Resources"),
    "tuning": ("costs", "Tuning"),
    "values": ("charts", "The table as a figure"),
    "boxes": ("charts", "Spread over the runs"),
    "gain": ("comparisons", "Gain of the clients over Local"),
    "noise": ("comparisons", "Accuracy and noise"),
    "protocols": ("comparisons", "Under other protocols"),
    "ranks": ("comparisons", "Mean ranks"),
    "adaptation": ("charts", ""),
    "embeddings": ("pictures", ""),
    "mixing": ("pictures", ""),
    "rollout": ("pictures", ""),
    "detections": ("pictures", ""),
}
"""Name → the module of ``pipeline/report/figures`` that draws it, and its title; "" for the title of its analysis."""

_FOLDER = Path(__file__).parents[1] / "report/figures"


def figure_names() -> list[str]:
    """Return the names of figures that a module draws, sorted. Raises :class:`UserError` when a name is taken twice."""
    return sorted([*BUILT_IN, *_files()])


def figure_module(name: str) -> str:
    """Return the dotted name of the module that draws a figure."""
    return f"pipeline.report.figures._{BUILT_IN[name][0]}" if name in BUILT_IN else _files()[name][0]


def figure_title(name: str) -> str:
    """Return the title of a figure; "" if it has the title of its analysis."""
    return BUILT_IN[name][1] if name in BUILT_IN else _constant(name, "TITLE")


def figure_needs(name: str) -> str:
    """Return what a figure reads in addition to rounds and analyses: "partitions", or ""."""
    return ("partitions" if name == "noise" else "") if name in BUILT_IN else _constant(name, "NEEDS")


def _files() -> dict[str, tuple[str, Path]]:
    """Return name → module and path of the figures that have a file of their own."""
    files = {path.stem: (f"pipeline.report.figures.{path.stem}", path) for path in _FOLDER.glob("[!_]*.py")}
    added = entries("figures", _FOLDER, frozenset(BUILT_IN))
    return files | {name: (extension.module, extension.path) for name, extension in added.items()}


def _constant(name: str, constant: str) -> str:
    """Return the text that a figure's file assigns to a constant; "" if it assigns none, or if there is no file."""
    files = _files()
    for node in ast.parse(files[name][1].read_bytes()).body if name in files else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=str(text))) if target == constant:
                return text
    return ""
