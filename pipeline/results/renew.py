"""``pfl results renew``: kept results that were made by earlier code, of which the present one gives the very same.

A run depends on its data by their bytes alone, and of these an entry has the hashes. So where code of a dataset or of a
partition has changed, both are made again and compared, and nothing is trained. What chose the settings of a tuned run
is likewise carried out again, on the measurements of its trials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from pflcore import sources
from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.serialise import to_yaml
from pipeline.ledger.entry import Entry, read_entry
from pipeline.ledger.ledger import Ledger, changed
from pipeline.spec.records import read_chosen
from pipeline.spec.run import Run
from pipeline.stages import data, evaluate, partition, recall, select
from pipeline.workspace import Workspace, raw_data_folder

_DATA = ("dataset.", "partition.")
_CHOICE = ("evaluate", "select")


@dataclass
class Renewed:
    """What became of the kept runs of some specs.

    Attributes:
        paths: Files that name the present code now.
        current: Runs that were made by it anyway.
        left: Why runs were left, each reason with how many.
    """

    paths: list[Path] = field(default_factory=list)
    current: int = 0
    left: Counter[str] = field(default_factory=Counter)


def renew(workspace: Workspace, specs: list[str], say: Callable[[str], None] = print) -> Renewed:
    """Compare what has changed since runs of some specs were kept, and note in their files where it changes nothing.

    Args:
        say: Called with a line for each dataset and partition that is made.

    Raises:
        UserError: A spec is invalid, none of their runs is kept, a file of the ledger is damaged, the data are absent,
            or code was edited meanwhile. Then no file is written.
    """
    compilation, ledger = compile_workspace(workspace, specs, ledger=False), Ledger(workspace.root)
    _check_code()
    entries = [read_entry(path) for run in compilation.runs.values() if (path := ledger.path(run)).is_file()]
    if not entries:
        raise UserError("none of their runs is kept; see `pfl results list`")
    done, good, new = Renewed(), set[str](), list[Entry]()
    workspace.private.mkdir(exist_ok=True)
    folder = workspace.private / "renew"
    with FileLock(folder.with_suffix(".lock")):  # another one waits
        shutil.rmtree(folder, ignore_errors=True)  # one that was killed has left it
        folder.mkdir()
        maker = _Maker(workspace, folder, say)
        # A tuned run comes after the trials that chose its settings.
        for entry in sorted(entries, key=lambda entry: (bool(entry.run.tuned), entry.run.federation_id)):
            now = compilation.made_by[entry.run.id]
            if reason := _differs(entry, changed(entry, now), compilation, maker, good):
                done.left[reason] += 1
                continue
            good.add(entry.run.id)
            if entry.made_by == now:
                done.current += 1
            else:
                new.append(dataclasses.replace(entry, made_by=now))
        shutil.rmtree(folder)
        _check_code()
    for entry in new:
        done.paths.append(ledger.path(entry.run))
        entry.write(done.paths[-1])
    return done


def _check_code() -> None:
    """Raise :class:`UserError` where a source is another by now than this process has, and thus than it compares."""
    if name := sources.edited():
        raise UserError(f"{name} was edited meanwhile; type the same again")


def _differs(entry: Entry, names: list[str], compilation: Compilation, maker: _Maker, good: set[str]) -> str:
    """Why an entry stays that of earlier code; "" where that gave what the present code gives."""
    if other := [name for name in names if not name.startswith(_DATA) and name not in _CHOICE]:
        return f"were made by other code of {', '.join(other)}, which only training compares (`pfl verify`)"
    if any(name.startswith(_DATA) for name in names):
        known = tuple(entry.facts[name] for name in ("dataset_hash", "partition_hash"))
        for what, before, now in zip(("data", "partition"), known, maker.hashes(entry.run), strict=True):
            if before != now:
                return f"were trained on another {what} than the code gives now"
    if any(name in _CHOICE for name in names):
        selection = compilation.selections[str(entry.run.tuned)]
        trials = [run for trial in selection.trials for run in trial.runs]
        if not good.issuperset(run.id for run in trials):
            return "were tuned by trials that are not kept, or not current"
        if maker.chosen(selection.id, trials, selection.record) != entry.facts["chosen"]:
            return "would be tuned otherwise by the code as it is now"
    return ""


class _Maker:
    """Makes data, partitions and choices in a folder of its own, each once."""

    def __init__(self, workspace: Workspace, folder: Path, say: Callable[[str], None]) -> None:
        self.workspace = workspace
        self.folder = folder
        self.say = say

    def hashes(self, run: Run) -> tuple[str, str]:
        """The SHA-256 of a run's data and of its partition."""
        dataset, dealt = (self.folder / f"{name}.parquet" for name in (run.data_id, run.federation_id))
        if not dataset.exists():
            record = self._record(run.data_id, run.data["dataset"])
            self.say(data.run(record, dataset, raw_data_folder(self.workspace.home), self.folder))
        if not dealt.exists():
            self.say(partition.run(self._record(run.federation_id, run.federation), dataset, dealt))
        return _sha256(dataset), _sha256(dealt)

    def chosen(self, name: str, trials: Iterable[Run], record: dict[str, Any]) -> dict[str, Any]:
        """What is chosen by the measurements of trials."""
        if not (self.folder / f"{name}.json").exists():
            for run in trials:
                recall.run(Ledger(self.workspace.root).path(run), self.folder / run.id)
                evaluate.evaluate(run, self.folder / run.id)
            self.say(select.run(self._record(name, record), self.folder, self.folder / f"{name}.json"))
        return read_chosen(self.folder, name)

    def _record(self, name: str, record: dict[str, Any]) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(to_yaml(record), encoding="utf-8")
        return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
