"""Files that the compiler generates: YAML for people and DVC, JSON for stages. Only changed files are written."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pflcore.files import write_text
from pipeline.compile.compilation import Compilation
from pipeline.workspace import CODE, KEPT_STAGES, RECORDS, TABLES, Workspace

_MAKERS = ("stages/federations/", "stages/selections/", KEPT_STAGES)  # files of stages that make runs and selections


class Line(dict[str, Any]):
    """A mapping that is written on one line of YAML."""


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    ignore_aliases: Callable[..., bool] = staticmethod(lambda data: True)


# DVC reads YAML 1.2, in which ids such as `12e45678` and `00000008` are numbers, so they are quoted.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|0o[0-7]+$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
_Dumper.add_representer(Line, lambda dumper, line: dumper.represent_mapping("tag:yaml.org,2002:map", line, True))
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_encode = json.JSONEncoder(ensure_ascii=False).encode


def to_yaml(value: Any) -> str:
    """Return YAML with keys in the given order, without folded lines and without aliases."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return text


def parse_yaml(text: str | bytes) -> Any:
    """Return the content of a generated YAML text. Raises ``ValueError``, and no other error, if it is not YAML."""
    try:
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def to_json(value: Any, levels: int = 2) -> str:
    """Return JSON with one item per line on the outer `levels` levels, and no line end after the last."""
    if not levels or not value or not isinstance(value, dict | list):
        return _encode(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(to_json(item, levels - 1) for item in value) + "\n]"
    items = (f"{_encode(key)}: {to_json(item, levels - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + "\n}"


@dataclass(frozen=True)
class Changes:
    """The difference between a workspace's generated files and a compilation; paths are relative to the workspace."""

    written: dict[str, str]  # path → text of files that are missing or differ; the root file is last
    stale: list[str]  # files that no spec compiles to any more
    summary: str  # how many runs, reports and digests of code are added, changed or removed

    def __bool__(self) -> bool:
        return bool(self.written or self.stale)


def compare(workspace: Workspace, compilation: Compilation) -> Changes:
    """Return what :func:`write` would change."""
    files, before = dict(compilation.files), dict[str, str]()
    for path in (workspace.root / "dvc.yaml", *workspace.stages.rglob("*")):
        if path.is_file() and path.name != "dvc.lock" and not path.name.startswith("."):
            before[path.relative_to(workspace.root).as_posix()] = path.read_text(encoding="utf-8", errors="replace")
    if compilation.skipped:  # stages of skipped specs remain, and use these digests and records
        digests = _merged(_parsed(parse_yaml, before.get(CODE, "")), parse_yaml(files[CODE]))
        files[CODE] = files[CODE].partition("\n")[0] + "\n" + to_yaml(digests)
        records = _merged(_parsed(json.loads, before.get(RECORDS, "")), json.loads(files[RECORDS]))
        files[RECORDS] = to_json(records, 1) + "\n"
    # The root file is written last, so that the next compilation notices one that was interrupted.
    differing = (name for name in files if before.get(name) != files[name])
    written = {name: files[name] for name in sorted(differing, key=lambda name: (name == "dvc.yaml", name))}
    stale = sorted(before.keys() - files.keys())
    if compilation.skipped:  # it is unknown which of these belong to skipped specs; but no run may be made by two files
        ids = {*compilation.runs, *compilation.selections}
        stale = [name for name in stale if name.startswith(_MAKERS) and ids & {*re.findall(r"[\w-]+", before[name])}]
    old = _named({name: before[name] for name in (*written, *stale) if name in before})
    new = _named(written)
    changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    parts = []
    for verb, names in (("added", new.keys() - old), ("changed", changed), ("removed", old.keys() - new)):
        counts = Counter(kind for kind, _ in names)
        nouns = [_counted(counts[kind], kind) for kind in ("run", "report", "code digest") if counts[kind]]
        parts += [f"{' and '.join(nouns)} {verb}"] if nouns else []
    if not parts and (written or stale):
        parts = [f"{_counted(len(written) + len(stale), 'stage file')} changed"]
    return Changes(written, stale, ", ".join(parts) or "nothing changed")


def write(workspace: Workspace, compilation: Compilation) -> Changes:
    """Bring the stage files up to date, and return the changes. Files that are up to date are not touched."""
    changes = compare(workspace, compilation)
    for name, text in changes.written.items():
        write_text(workspace.root / name, text)
    for path in (workspace.root / name for name in changes.stale):
        path.unlink()
        if path.name == "dvc.yaml":
            path.with_name("dvc.lock").unlink(missing_ok=True)
    for folder in sorted((path for path in workspace.stages.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return changes


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _parsed(parse: Callable[[str], Any], text: str) -> dict[str, Any]:
    """Return the mapping in a generated file; {} if it has none, because it was edited by hand."""
    try:
        value = parse(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return both mappings merged recursively and sorted by key; other values are taken from `new`."""
    merged = old | new
    for key in old.keys() & new.keys():
        if isinstance(old[key], dict) and isinstance(new[key], dict):
            merged[key] = _merged(old[key], new[key])
    return dict(sorted(merged.items()))


def _named(files: Mapping[str, str]) -> dict[tuple[str, str], object]:
    """Return the runs, reports and digests of code in generated files, by (kind, name)."""
    named: dict[tuple[str, str], object] = {}
    named |= {("report", name): text for name, text in files.items() if name.startswith(f"{TABLES}/")}
    try:
        records = json.loads(files.get(RECORDS, "{}")).items()
        named |= {("run", id_): record for id_, record in records if "method" in record}
        for kind, value in parse_yaml(files.get(CODE, "{}")).items():
            digests = {f"{kind}.{name}": value[name] for name in value} if isinstance(value, dict) else {kind: value}
            named |= {("code digest", name): digest for name, digest in digests.items()}
    except (ValueError, AttributeError, TypeError):  # edited by hand
        pass
    return named
