"""The figures that specs can list: the built-in ones, and a file each of those that others add.

The files are read and not imported: a spec does not wait for what draws. What an analysis found is a figure as well,
called like the analysis, whether something draws it or not. A study's own lie in its folder ``figures/``.
"""

from __future__ import annotations

import ast
from pathlib import Path

from pflcore.extensions import found

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
"""Name → the module of ``pipeline/report/figures`` that draws it, and its title; "" for that of the analysis."""

_FOLDER = Path(__file__).parents[1] / "report/figures"


def figure_names() -> list[str]:
    """Return those that something draws, sorted. Raises :class:`UserError` when a name is taken twice."""
    return sorted([*BUILT_IN, *_files()])


def figure_module(name: str) -> str:
    """Return the module of a figure that something draws, as a dotted name."""
    return f"pipeline.report.figures._{BUILT_IN[name][0]}" if name in BUILT_IN else _files()[name][0]


def figure_title(name: str) -> str:
    """Return the title of a figure; "" for that of an analysis."""
    return BUILT_IN[name][1] if name in BUILT_IN else _stated(name, "TITLE")


def figure_needs(name: str) -> str:
    """Return what a figure reads beside rounds and analyses: "partitions", or "" for nothing."""
    return ("partitions" if name == "noise" else "") if name in BUILT_IN else _stated(name, "NEEDS")


def _files() -> dict[str, tuple[str, Path]]:
    """Return module and file of the figures that have one of their own."""
    here = {path.stem: (f"pipeline.report.figures.{path.stem}", path) for path in _FOLDER.glob("[!_]*.py")}
    return here | {name: (one.module, one.path) for name, one in found("figures", _FOLDER, frozenset(BUILT_IN)).items()}


def _stated(name: str, constant: str) -> str:
    """Return what the file of a figure assigns to a constant, a text; "" for nothing, and where there is no file."""
    files = _files()
    for node in ast.parse(files[name][1].read_bytes()).body if name in files else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=stated)], value=ast.Constant(value=str(text))) if stated == constant:
                return text
    return ""
