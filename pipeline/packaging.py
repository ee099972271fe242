"""Commands of setuptools that add the papers' specs and published values, which lie beside the packages.

pyproject.toml names these classes. Setuptools loads this file alone, so it imports nothing of the project.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


def _specs() -> list[Path]:
    return [path for kind in ("*.yaml", "*.csv", "*.md") for path in Path("specs").rglob(kind)]


class BuildWithSpecs(build_py):  # type: ignore[misc]
    """Copies the specs to ``pipeline/specs`` of a wheel; an editable installation reads them in place."""

    def run(self) -> None:
        super().run()
        for path in [] if self.editable_mode else _specs():
            place = Path(self.build_lib, "pipeline", path)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


class SourcesWithSpecs(sdist):  # type: ignore[misc]
    """Adds the specs, the pages in ``docs/`` and ``constraints.txt`` to an sdist, since the README refers to them."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        extra = map(str, (*_specs(), *Path("docs").glob("*.md"), "constraints.txt"))
        super().make_release_tree(base_dir, sorted({*files, *extra}))
