"""What ``pfl probe`` finds out: whether the engine still gives the numbers that are recorded of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from pflcore import sources
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compiler import source_folder
from pipeline.compile.engine import STAGES, Engine
from pipeline.compile.fingerprint import Code
from pipeline.probe.cases import PROBES, SEQUENTIAL, Probe
from pipeline.probe.numbers import Numbers, differences, from_text, to_text
from pipeline.probe.perform import perform, same_everywhere

NUMBERS = "pipeline/probe/numbers.csv"  # in the folder of the packages
ENTRIES = "pipeline/probe/entries.txt"
_LIBRARIES = ("numpy", "torch")
_SHOWN = 8  # probes that a message names

Changes = dict[str, dict[str, float]]
"""Probe → quantity → by how much it deviates."""


@dataclass(frozen=True)
class Record:
    """What is known of the engine: what it was, and what probes of it gave.

    Attributes:
        engine: Its sources and results version.
        entries: What probes need beside it: module → hash of its meaning, and library → version.
        numbers: Probe → what it gave.
    """

    engine: Engine
    entries: Mapping[str, str]
    numbers: Mapping[str, Numbers]

    @classmethod
    def read(cls, code: Code) -> Record:
        """That of the packages in `code`. Raises :class:`UserError` when it is missing or was edited."""
        texts = []
        for name in (NUMBERS, ENTRIES):
            path = code.source / name
            texts.append(path.read_text(encoding="utf-8") if path.is_file() else "")
        entries = dict(line.split() for line in texts[1].splitlines() if len(line.split()) == 2)
        return cls(Engine.recorded(code), entries, from_text(texts[0], NUMBERS))

    @classmethod
    def on_disk(cls, code: Code, known: Record) -> Record:
        """The sources as they lie there, under the version and with the numbers that are known."""
        modules = dict.fromkeys(module for probe in PROBES for module in probe.modules)
        engine = Engine.on_disk(code, known.engine.version)
        lines = code.fingerprint("pipeline.probe.perform", *modules).splitlines()
        entries = dict(line.split() for line in lines if line.split()[0] not in engine.sources)
        libraries = {name: version(name).partition("+")[0] for name in _LIBRARIES}
        return cls(engine, {**libraries, **entries}, known.numbers)

    def write(self, code: Code) -> None:
        """Make this the record. What does not change is not touched."""
        texts = {
            NUMBERS: to_text(self.numbers),
            ENTRIES: "".join(f"{name} {is_}\n" for name, is_ in self.entries.items()),
        }
        for name, text in texts.items():
            path = code.source / name
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_text(path, text)
        self.engine.write(code)


def check(show: Callable[[str, int, int], None] = lambda *_: None) -> str:
    """Make sure that sources and numbers are those recorded, writing nothing; returns a line to show.

    Raises:
        UserError: They are not; or the ways of training do not agree.
    """
    code = Code(source_folder())
    known = Record.read(code)
    now = Record.on_disk(code, known)
    if edited := known.engine.edited(code) or _edited(known, now):
        raise UserError(f"{edited} was edited after the last `pfl probe`; type it")
    if changes := _changes(known.numbers, measure(show)):
        raise UserError(f"other numbers than those recorded in {NUMBERS}: {describe(changes)}")
    return f"{len(PROBES)} probes give what is recorded: results version {known.engine.version}"


def probe(show: Callable[[str, int, int], None] = lambda *_: None) -> str:
    """Carry out all probes and record what they say of the sources; returns what to tell, a line or several.

    Raises:
        UserError: The ways of training do not agree, numbers differ although nothing has been edited, or sources were
            edited meanwhile. Nothing is written then.
    """
    code = Code(source_folder())
    known = Record.read(code)
    now = Record.on_disk(code, known)
    edited = known.engine.edited(code)
    found = measure(show)
    changes = _changes(known.numbers, found)
    _check_imported(code, now)
    # Numbers that agree stay as they were written down, so that what agrees each time cannot drift away.
    kept = {name: known.numbers.get(name, own) if name not in changes else own for name, own in found.items()}
    now = replace(now, numbers=kept)
    stays = f"results version {known.engine.version} stays"
    if not changes:
        now.write(code)
        new = [name for name in found if name not in known.numbers]
        return f"{len(found)} probes give what is recorded{f', {len(new)} are new' if new else ''}: {stays}"
    if not edited:
        if known.entries == now.entries:
            raise UserError(
                f"nothing was edited, yet this machine gives other numbers than those in {NUMBERS}, which stay: "
                f"{describe(changes)}"
            )
        now.write(code)
        reason = f"{_edited(known, now) or 'a library'} is another, and the engine is not"
        return f"{reason}: {stays}, recorded anew: {describe(changes)}"
    now = replace(now, engine=replace(now.engine, version=_next(known.engine.version, kept)))
    now.write(code)
    told = f"results version {known.engine.version} → {now.engine.version}: {describe(changes)}. All results are stale"
    if other := _edited(known, now):
        told += (
            f". {other}, which probes use, was edited too; to tell them apart, undo this and that edit, probe, redo it "
            "and probe again"
        )
    return told


def measure(show: Callable[[str, int, int], None] = lambda *_: None, threads: int = 1) -> dict[str, Numbers]:
    """What each probe gives.

    Raises:
        UserError: Two ways of training do not agree.
    """
    found = {}
    with TemporaryDirectory() as folder, same_everywhere(threads):
        for number, one in enumerate(PROBES):
            show("probing", number, len(PROBES))
            try:
                found[one.name] = performed(one, Path(folder))
            except Exception as error:
                error.add_note(f"probe {one.name}")
                raise
        show("probing", len(PROBES), len(PROBES))
    return found


def describe(changes: Changes) -> str:
    """Which probes changed and by how much, on one line."""
    words = []
    for name, own in list(changes.items())[:_SHOWN]:
        quantity, size = next(iter(own.items()))
        words.append(f"{name} ({quantity}{'' if size == float('inf') else f' by {size:.1g}'})")
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return f"{len(changes)} of {len(PROBES)} probes, {', '.join(words)}{more}"


def performed(one: Probe, folder: Path) -> Numbers:
    """What a probe gives. Raises :class:`UserError` when two ways of training do not agree."""
    numbers = perform(one, SEQUENTIAL, folder)
    for way in one.ways:
        if apart := differences(numbers, perform(one, way, folder), one.tolerance):
            quantity = next(iter(apart))
            raise UserError(f"probe {one.name}: {way} and {SEQUENTIAL} do not agree ({quantity}); repair that first")
    return numbers


def _changes(known: Mapping[str, Numbers], found: Mapping[str, Numbers]) -> Changes:
    by = {one.name: differences(known[one.name], found[one.name], one.tolerance) for one in PROBES if one.name in known}
    return {name: own for name, own in by.items() if own}


def _edited(known: Record, now: Record) -> str | None:
    """The first module beside the engine that is another than it was."""
    names = sorted({*known.entries, *now.entries} - set(_LIBRARIES))
    return next((name for name in names if known.entries.get(name) != now.entries.get(name)), None)


def _check_imported(code: Code, now: Record) -> None:
    """Make sure that what was measured is what will be recorded."""
    recorded = [now.engine.fingerprint(stage) for stage in STAGES]
    recorded.append("".join(f"{name} {is_}\n" for name, is_ in now.entries.items() if name not in _LIBRARIES))
    for text in recorded:
        if name := code.altered(text, sources.loaded()):
            raise UserError(f"{name} was edited while probes ran; nothing is recorded, type `pfl probe` again")


def _next(known: str, numbers: Mapping[str, Numbers]) -> str:
    return f"{int(known.partition('-')[0]) + 1}-{hashlib.sha256(to_text(numbers).encode()).hexdigest()[:6]}"
