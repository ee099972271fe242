"""Writing what the compiler generates: only files that differ, and nothing of it by hand."""

from __future__ import annotations

from dataclasses import dataclass

from pflcore.files import write_text
from pipeline.compile.compilation import Compilation
from pipeline.workspace import TABLES, Workspace


@dataclass(frozen=True)
class Changes:
    """Paths relative to the workspace whose content is not what the specs compile to."""

    added: list[str]
    changed: list[str]
    removed: list[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def summary(self) -> str:
        """In words: runs and other files that appeared, changed or went."""
        parts = []
        for verb, paths in (("added", self.added), ("changed", self.changed), ("removed", self.removed)):
            runs = sum(_is_run(path) for path in paths)
            tables = sum(path.startswith(f"{TABLES}/") for path in paths)
            code = sum(path.startswith("stages/code/") for path in paths)
            words = [
                f"{count} {word}" + "s" * (count > 1)
                for count, word in ((runs, "run"), (tables, "report"), (code, "code fingerprint"))
                if count
            ]
            if paths and not words:
                words = [f"{len(paths)} stage file" + "s" * (len(paths) > 1)]
            if words:
                parts.append(f"{' and '.join(words)} {verb}")
        return ", ".join(parts) or "nothing changed"


def compare(workspace: Workspace, compilation: Compilation) -> Changes:
    """What :func:`write` would change."""
    files = compilation.files
    added, changed = [], []
    for name, text in files.items():
        path = workspace.root / name
        if not path.is_file():
            added.append(name)
        elif path.read_bytes() != text.encode():
            changed.append(name)
    stale = _stale(workspace, files) if not compilation.skipped else []  # which of them belong to these is not known
    return Changes(added, changed, stale)


def write(workspace: Workspace, compilation: Compilation) -> Changes:
    """Bring the stage files up to date; files that are right already are not touched."""
    changes, files = compare(workspace, compilation), compilation.files
    # The root file last: until it is there, an interrupted compilation is seen by the next one.
    for name in sorted([*changes.added, *changes.changed], key=lambda name: (name == "dvc.yaml", name)):
        write_text(workspace.root / name, files[name])
    for name in changes.removed:
        path = workspace.root / name
        path.unlink()
        if path.name == "dvc.yaml":
            path.with_name("dvc.lock").unlink(missing_ok=True)
    _remove_empty_folders(workspace)
    return changes


def _stale(workspace: Workspace, files: dict[str, str]) -> list[str]:
    paths = (path for path in workspace.stages.rglob("*") if path.is_file())
    names = (path.relative_to(workspace.root).as_posix() for path in paths if path.name != "dvc.lock")
    return sorted(name for name in names if name not in files and not name.rpartition("/")[2].startswith("."))


def _remove_empty_folders(workspace: Workspace) -> None:
    for folder in sorted((path for path in workspace.stages.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _is_run(path: str) -> bool:
    return path.startswith("stages/federations/") and not path.endswith(("federation.yaml", "dvc.yaml"))
