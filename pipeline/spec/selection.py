"""Specs in use: those that pyproject.toml names, and those that were added on this machine.

Every DVC command first loads all stage files, so other specs have none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.registry import did_you_mean
from pipeline.workspace import Workspace

VARIANTS = "variants"  # the folder of specs that `pfl run --set` writes


class SpecSelection(NamedTuple):
    """Names of the specs in use: `default` in the order of pyproject.toml, the others sorted."""

    default: list[str]  # what a bare ``dvc repro`` and a bare ``pfl run`` bring up to date
    shared: list[str]  # what pyproject.toml names; their stage files belong into git
    added: list[str]  # what `pfl add` and `pfl run` added to these on this machine
    watching: bool = False  # every ``dvc repro`` checks whether this project, installed elsewhere, was upgraded

    @property
    def compiled(self) -> list[str]:
        """All specs that have stage files, sorted."""
        return sorted({*self.shared, *self.added})


def read_selection(workspace: Workspace, specs: Sequence[str]) -> SpecSelection:
    """Return which of `specs` are in use. Raises :class:`UserError` for a wrong pyproject.toml.

    Its ``[tool.pfl]`` has ``default``, a list of names (left out: the first spec); ``compile``, a list of names and
    patterns such as ``studies/*`` (left out: all but variants); and ``watch_upgrades``, true or false.
    """
    path = workspace.home / "pyproject.toml"
    try:
        settings: Any = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"pyproject.toml: not readable as TOML ({error})") from None
    for key in ("tool", "pfl"):
        settings = settings.get(key, {})
        if not isinstance(settings, dict):
            raise UserError(f"pyproject.toml: {key} = {settings!r} must be a table")
    originals = [name for name in specs if not name.startswith(f"{VARIANTS}/")]
    default, patterns = settings.get("default", originals[:1]), settings.get("compile", ["*"])
    for key, names in (("default", default), ("compile", patterns)):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"pyproject.toml: tool.pfl.{key} = {names!r} must be a list of spec names")
        for name in names:
            if name not in specs and not (key == "compile" and {*"*?["} & set(name)):
                raise UserError(f"pyproject.toml: tool.pfl.{key}: unknown spec {name!r}{did_you_mean(name, [*specs])}")
    candidates = specs if "compile" in settings else originals
    matched = {name for name in candidates if any(fnmatchcase(name, pattern) for pattern in patterns)}
    shared = [name for name in specs if name in default or name in matched]
    added = [name for name in _added(workspace) if name in specs and name not in shared]
    watching = settings.get("watch_upgrades", False)
    if not isinstance(watching, bool):
        raise UserError(f"pyproject.toml: tool.pfl.watch_upgrades = {watching!r} must be true or false")
    return SpecSelection(default, shared, added, watching)


def add(workspace: Workspace, names: Iterable[str]) -> None:
    """Add specs to those in use on this machine."""
    _write(workspace, {*_added(workspace), *names})


def drop(workspace: Workspace, names: Iterable[str]) -> None:
    """Undo :func:`add`."""
    _write(workspace, {*_added(workspace)} - {*names})


def select_specs(words: Iterable[str], specs: Sequence[str]) -> list[str]:
    """Return the specs that words name: by name, by file, or by folder for all in it. Raises :class:`UserError`."""
    names: list[str] = []
    for word in words:
        if word.endswith(".yml"):
            raise UserError(f"{word}: specs end in .yaml; rename it")
        name = word.removeprefix("specs/").removesuffix(".yaml").rstrip("/")
        inside = [name] if name in specs else [other for other in specs if other.startswith(f"{name}/")]
        if not inside:
            folders = {other.rpartition("/")[0] for other in specs if "/" in other}
            raise UserError(f"unknown spec {name!r}{did_you_mean(name, [*specs, *sorted(folders)])}")
        names += inside
    return list(dict.fromkeys(names))


def _added(workspace: Workspace) -> list[str]:
    path = workspace.private / "added.txt"
    return path.read_text(encoding="utf-8", errors="replace").split() if path.is_file() else []


def _write(workspace: Workspace, names: Iterable[str]) -> None:
    write_text(workspace.private / "added.txt", "".join(f"{name}\n" for name in sorted(names)))
