"""The papers' specs that come with this project, to begin a study with."""

from __future__ import annotations

from pathlib import Path

from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.spec.inherit import inherit
from pipeline.spec.selection import named
from pipeline.spec.specs import find_specs
from pipeline.spec.yamlfile import absolute, inside


def paper_specs() -> Path:
    """The folder of the specs: inside of the package where it was installed from a wheel, else beside it."""
    source = source_folder()
    installed = source / "pipeline" / "specs"
    return installed if installed.is_dir() else source / "specs"


def needed(word: str) -> tuple[list[str], dict[str, str]]:
    """What a spec needs, or all specs of a folder: their names; and path below `specs/` → text, of all their files.

    These are the specs, what they extend, their published values and a paper's README.

    Raises:
        UserError: There is no such spec.
    """
    folder = absolute(paper_specs())
    known = find_specs(folder)
    names = named([word], list(known))
    files: dict[Path, None] = {}
    concrete = []
    for name in names:
        document, chain = inherit(known[name], folder)
        files |= dict.fromkeys(folder.parent / label for label in chain)
        table = document.data.get("table")
        if isinstance(table, dict) and isinstance(values := table.get("published"), str):
            files[inside(folder, document, ("table", "published"), values)] = None
        files |= dict.fromkeys(known[name].parent.glob("README.md"))
        if not document.data.get("abstract"):
            concrete.append(name)
    if not concrete:
        raise UserError(f"{word}: only to be extended; name a spec that extends it")
    return concrete, {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)}
