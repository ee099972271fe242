"""The ledger of kept results: one JSON line per run in ``results/<spec>.jsonl``. It is in git and outlives machines.

A kept result is current if it has the run's settings and was made by the present versions of the engine and of its
dataset, partition, backbone, method and condition. Every compilation reads the ledger, so it has no slow imports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.spec.run import Run
from pipeline.workspace import RESULTS

if TYPE_CHECKING:
    import pyarrow as pa

Versions = dict[str, str]
"""``engine``, or an entry's kind and name → its version. For a study's own entry this is a digest of its source."""

FACTS = (
    *("device", "torch", "dataset_hash", "partition_hash", "code"),
    *("parameters", "communicated_up", "communicated_down", "stored", "received", "server", "macs", "positions"),
    *("epsilon", "diverged", "chosen"),
)
"""Entries of the header of ``rounds.parquet`` that the ledger keeps."""

_TYPES = {"made_by": dict, "facts": dict, "measurements": dict, "obtained": str, "seconds": float | int | None}
_INVALID = ValueError, KeyError, TypeError, AttributeError
_EDITED = "edited by hand, or cut; restore it with `git checkout`, or keep the run again"


@dataclass(frozen=True)
class Entry:
    """A kept run."""

    run: Run
    made_by: Versions  # versions of the code that trained it
    obtained: str  # the day, as ``2026-11-22``
    seconds: float | None  # duration on an accelerator, or CPU time; None if unknown
    facts: dict[str, Any]  # the entries named in `FACTS`
    measurements: dict[str, Any]  # as :mod:`pipeline.measurements` makes them
    machine: str = ""  # processor, instruction sets, threads and libraries; "" if these were not recorded

    def rounds(self) -> pa.Table:
        """Return the measurements as a ``rounds/2`` table. Raises :class:`UserError` if they are no such table."""
        from pipeline.measurements import to_table

        try:
            return to_table(self.measurements)
        except (*_INVALID, OverflowError, IndexError):
            raise UserError(f"kept result {self.run.id}: its measurements were {_EDITED}") from None

    def line(self) -> str:
        """Return the entry as a line of the ledger."""
        content = {name: getattr(self, name) for name in ("obtained", "seconds", "made_by", "facts")}
        content |= {"machine": self.machine} if self.machine else {}
        return _line("run", self.run.id, {**content, "settings": self.run.record, "measurements": self.measurements})

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Entry:
        """Return the entry of a line's content."""
        if not all(isinstance(content[name], kind) for name, kind in _TYPES.items()):
            raise TypeError
        facts = {name: content["facts"].get(name) for name in FACTS}
        values = {name: content[name] for name in ("made_by", "obtained", "seconds", "measurements")}
        return cls(Run(content["settings"]), **values, facts=facts, machine=content.get("machine", ""))


@dataclass(frozen=True)
class Ledger:
    """The kept results of the workspace in a folder."""

    root: Path

    @cached_property
    def lines(self) -> dict[str, tuple[Path, str]]:
        """Run or selection id → its file and its line. Raises :class:`UserError` for a line that is neither."""
        lines = {}
        for path in self.files():
            name, text = path.relative_to(self.root).as_posix(), path.read_text(encoding="utf-8", errors="replace")
            for number, line in enumerate(filter(None, text.splitlines()), 1):
                kind, _, rest = line.removeprefix('{"').partition('": "')
                if kind not in ("run", "selection"):
                    raise UserError(f"{name}:{number}: not a kept result; remove this line or restore the file")
                lines[rest.partition('"')[0]] = path, line
        return lines

    def files(self) -> list[Path]:
        return sorted(path for path in (self.root / RESULTS).rglob("*.jsonl") if path.is_file())

    def path(self, id_: str) -> str | None:
        """Return the ledger file of a run or a selection, relative to the workspace; None if it is not kept."""
        return self.lines[id_][0].relative_to(self.root).as_posix() if id_ in self.lines else None

    def entries(self) -> list[Entry]:
        """Return all kept runs. Raises :class:`UserError` if one is damaged."""
        return [entry for id_ in self.lines if (entry := self.get(id_))]

    def get(self, id_: str) -> Entry | None:
        """Return the entry of a run, current or not; None if it is not kept.

        Raises:
            UserError: The line was edited by hand or is cut, or its settings are those of another run.
        """
        if (content := self._content(id_, "run")) is None:
            return None
        try:
            entry = Entry.from_content(content)
            run_id = entry.run.id
        except _INVALID:
            raise UserError(f"{self.path(id_)}: {id_}: {_EDITED}") from None
        if run_id != id_:
            raise UserError(f"{self.path(id_)}: {id_}: its settings are those of {run_id}; keep the run again")
        return entry

    def find(self, run: Run, versions: Mapping[str, str]) -> Entry | None:
        """Return the entry of a run if these versions of the code made it, otherwise None. Raises like :meth:`get`."""
        entry = self.get(run.id)
        return entry if entry and not difference(entry.made_by, versions) else None

    def selection(self, id_: str, versions: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Return a kept selection if these versions (None: any) made it, otherwise None. Raises like :meth:`get`."""
        content = self._content(id_, "selection")
        if content is None or (versions is not None and difference(content["made_by"], versions)):
            return None
        trials: dict[str, Any] = content["content"]
        return trials

    def write(self, spec: str, entries: Iterable[Entry], selections: Mapping[str, tuple[Versions, Any]]) -> Path:
        """Add runs, and selections with their versions and content, to the file of a spec; return that file.

        An entry that is already kept under the same id is replaced in the file where it is.
        """
        new = {entry.run.id: entry.line() for entry in entries}
        for id_, (versions, content) in selections.items():
            new[id_] = _line("selection", id_, {"made_by": versions, "content": content})
        path = self.root / RESULTS / f"{spec}.jsonl"
        self._rewrite({id_: (self.lines[id_][0] if id_ in self.lines else path, line) for id_, line in new.items()})
        return path

    def drop(self, ids: Iterable[str]) -> int:
        """Remove runs and selections; return how many were in the ledger."""
        requested, dropped = {*ids}, set[str]()
        while matches := requested & self.lines.keys():  # again for those that merged branches have in two files
            self._rewrite({id_: (self.lines[id_][0], "") for id_ in matches})
            dropped |= matches
        return len(dropped)

    def _rewrite(self, new: Mapping[str, tuple[Path, str]]) -> None:
        lines = {**self.lines, **new}
        for path in {path for path, _ in new.values()}:
            remaining = sorted((id_, line) for id_, (file, line) in lines.items() if file == path and line)
            if remaining:
                write_text(path, "".join(f"{line}\n" for _, line in remaining))
            else:
                path.unlink(missing_ok=True)
        self.__dict__.pop("lines", None)

    def _content(self, id_: str, kind: str) -> dict[str, Any] | None:
        """Return the content of a line; None if the ledger has no line of this id and kind."""
        if id_ not in self.lines:
            return None
        try:
            content: dict[str, Any] = json.loads(self.lines[id_][1])
            if content.pop(kind, None) != id_:
                return None
            if content.pop("digest") == _digest(content):
                return content
        except (ValueError, KeyError, AttributeError, RecursionError):
            pass
        raise UserError(f"{self.path(id_)}: {id_}: {_EDITED}")


def difference(made_by: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """Describe which versions have changed since a result was kept; "" if none has."""
    changed = [name for name in {**made_by, **versions} if made_by.get(name) != versions.get(name)]
    changes = [f"{name} ({made_by.get(name, 'none')} → {versions.get(name, 'none')})" for name in changed]
    return f"made by other versions: {', '.join(changes)}" if changes else ""


def _line(kind: str, id_: str, content: dict[str, Any]) -> str:
    return json.dumps({kind: id_, "digest": _digest(content), **content}, ensure_ascii=False)


def _digest(content: dict[str, Any]) -> str:
    """Return a short hash, by which an edit by hand is detected."""
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:16]
