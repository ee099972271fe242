"""What setuptools adds to a wheel and an sdist: the papers' specs and published values, which lie beside the packages.

pyproject.toml names these classes, and setuptools loads this file by itself, so it imports nothing of the project.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


def _specs() -> list[Path]:
    return [path for kind in ("*.yaml", "*.csv", "*.md") for path in Path("specs").rglob(kind)]


class BuildWithSpecs(build_py):  # type: ignore[misc]
    """Copies them to ``pipeline/specs`` of a wheel; an editable installation reads them where they lie."""

    def run(self) -> None:
        super().run()
        for path in [] if self.editable_mode else _specs():
            place = Path(self.build_lib, "pipeline", path)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


class SourcesWithSpecs(sdist):  # type: ignore[misc]
    """Adds them, and what the README links to or installs with, to an sdist."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        more = map(str, (*_specs(), *Path("docs").glob("*.md"), "constraints.txt"))
        super().make_release_tree(base_dir, sorted({*files, *more}))
