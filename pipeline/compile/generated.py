"""Writing what the compiler generates: only files that differ, and nothing of it by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pflcore.files import write_text
from pipeline.compile.compilation import Compilation
from pipeline.parsing import parse_yaml
from pipeline.workspace import CODE, RECORDS, TABLES, Workspace


@dataclass(frozen=True)
class Changes:
    """How the generated files of a workspace differ from what the specs compile to; paths are relative to it."""

    written: list[str]  # that are missing or other ones; the root file is the last
    left: list[str]  # that nothing compiles to any more
    summary: str  # which runs, reports and digests of code come, change or go

    def __bool__(self) -> bool:
        return bool(self.written or self.left)


def compare(workspace: Workspace, compilation: Compilation) -> Changes:
    """Return what :func:`write` would change."""
    files, before = compilation.files, {}
    for path in (workspace.root / "dvc.yaml", *workspace.stages.rglob("*")):
        if path.is_file() and path.name != "dvc.lock" and not path.name.startswith("."):
            before[path.relative_to(workspace.root).as_posix()] = path.read_text(encoding="utf-8", errors="replace")
    # The root file last: until it is there, an interrupted compilation is seen by the next one.
    written = sorted(
        (name for name in files if before.get(name) != files[name]), key=lambda name: (name == "dvc.yaml", name)
    )
    # Which belong to specs that are skipped is not known.
    left = sorted(before.keys() - files.keys()) if not compilation.skipped else []
    old = _named({name: before[name] for name in (*written, *left) if name in before})
    new = _named({name: files[name] for name in written})
    ways = {
        "added": new.keys() - old.keys(),
        "changed": {name for name in old.keys() & new.keys() if old[name] != new[name]},
        "removed": old.keys() - new.keys(),
    }
    parts = []
    for verb, names in ways.items():
        counts = {kind: sum(name[0] == kind for name in names) for kind in ("run", "report", "code digest")}
        if words := [f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count]:
            parts.append(f"{' and '.join(words)} {verb}")
    differing = len(written) + len(left)
    other = f"{differing} stage file{'s' * (differing > 1)} changed" if differing else "nothing changed"
    return Changes(written, left, ", ".join(parts) or other)


def write(workspace: Workspace, compilation: Compilation) -> Changes:
    """Bring the stage files up to date; files that are right already are not touched."""
    changes = compare(workspace, compilation)
    for name in changes.written:
        write_text(workspace.root / name, compilation.files[name])
    for path in (workspace.root / name for name in changes.left):
        path.unlink()
        if path.name == "dvc.yaml":
            path.with_name("dvc.lock").unlink(missing_ok=True)
    for folder in sorted((path for path in workspace.stages.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return changes


def _named(files: Mapping[str, str]) -> dict[tuple[str, str], object]:
    """Return what files have of runs, reports and digests of code, by its kind and name."""
    named: dict[tuple[str, str], object] = {}
    named |= {("report", name): text for name, text in files.items() if name.startswith(f"{TABLES}/")}
    try:
        records = json.loads(files.get(RECORDS, "{}")).items()
        named |= {("run", id_): record for id_, record in records if "method" in record}
        for kind, own in parse_yaml(files.get(CODE, "{}")).items():
            digests = {f"{kind}.{one}": own[one] for one in own} if isinstance(own, dict) else {kind: own}
            named |= {("code digest", one): digest for one, digest in digests.items()}
    except (ValueError, AttributeError, TypeError):  # edited by hand
        pass
    return named
