"""The recorder: it finds stale stages, restores outputs from DVC's run cache, and records executed stages in DVC.

It uses DVC's Python interface instead of its command line, since a process per stage costs a second. The order of
operations and the locks are those of DVC's own ``repro``. A stage that is executed here is marked, so a ``dvc repro``
at the same time stops with one line; a stage that such a ``dvc repro`` executes is left alone here.

A stage that has ended is saved to DVC's cache and run cache at once, so its result is not lost. The lock files follow
every half minute and at the end, since DVC rewrites a whole file, in place, for each entry.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pflcore.errors import UserError
from pipeline.compile.compilation import Stage
from pipeline.dvc.leftovers import remove_stale_marks, remove_truncated_files

DUMP_EVERY = 30.0  # least seconds between two writes of the lock files; also 30 times the duration of the last write
CHANGED = "what it depends on changed while it ran; nothing is recorded, run it again"
WAITING = "waiting for another process, such as a `dvc push`, that has DVC's lock"
_PATH_ERRORS = (NotADirectoryError, IsADirectoryError, PermissionError)  # concern one stage, unlike a full disk


class Locked(Exception):
    """Another process has DVC's lock, and nothing was done."""


@dataclass(frozen=True)
class Verdict:
    """The decision about a stage whose inputs are complete.

    ``fresh``: up to date. ``cached``: restored from the run cache. ``run``: has to be executed; its old outputs have
    been removed. ``busy``: another process uses its files. ``broken``: DVC raised an error.
    """

    decision: Literal["fresh", "cached", "run", "busy", "broken"]
    reason: str = ""  # the process that uses its files, or DVC's error
    moved: tuple[str, ...] = ()  # new paths of reports that a person had edited


class Recorder:
    """Checks and records `stages` of the workspace `root` in DVC. Not thread-safe.

    Raises:
        UserError: `root` is not a DVC repository, or its settings cannot be used.
    """

    def __init__(self, root: Path, stages: Iterable[Stage]) -> None:
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        for library in ("dvc", "dvc_data", "dvc_objects"):  # errors are raised, and the board shows progress
            logging.getLogger(library).setLevel(logging.CRITICAL)
        self.root = root
        self.stages = {stage.address: stage for stage in stages}
        self._error = DvcException
        with self._user_errors():
            self.repo = Repo(str(root))
        self._loaded: dict[str, Any] = {}
        self._marks: dict[str, tuple[ExitStack, str]] = {}  # stages being executed → DVC's mark on it, and its key
        self._undumped: dict[str, dict[str, Any]] = {}  # stage file → stages that its lock file does not have yet
        self._next_dump = 0.0  # time from which lock files may be written again
        remove_truncated_files(Path(str(self.repo.tmp_dir)), {root / stage.file for stage in self.stages.values()})
        with self._user_errors():
            remove_stale_marks(self.repo)

    def close(self, wait: bool = True) -> None:
        """Complete the lock files and release all marks. Without `wait`, skip lock files if DVC's lock is taken."""
        try:
            with suppress(Locked), self._locked(wait):
                for address in list(self._marks):
                    self._release(address)
                self._dump()
        finally:  # close the remaining marks now: DVC would try it when the interpreter exits, and wait for ever
            for address in list(self._marks):
                with suppress(self._error, OSError):
                    self._release(address)
            self.repo.close()

    def stale(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return the stages that differ from DVC's record, each with the reason, regardless of earlier stages."""
        with self._locked():
            reasons = {address: self._stale_reason(self._stage(address)) for address in addresses}
        return {address: reason for address, reason in reasons.items() if reason}

    def begin(self, address: str) -> Verdict:
        """Decide about a stage whose inputs are complete. If it is to run, mark it until it is recorded or given up.

        Raises:
            Locked: Another process has DVC's lock.
        """
        from dvc.lock import LockError

        with self._locked(wait=False):
            stage = self._stage(address)
            try:
                if not self._stale_reason(stage):
                    return Verdict("fresh")
                with self._mark(stage):  # raises LockError if another process works on the stage
                    pass
                return self._prepare(address, stage)
            except LockError as error:
                return Verdict("busy", reason=_line(error))
            except (self._error, *_PATH_ERRORS) as error:
                return Verdict("broken", reason=f"DVC: {_line(error)}")

    def restore_cache(self) -> int:
        """Put outputs back into the cache that are as recorded but lost there; return the number of their stages."""
        with self._locked():
            return sum(self._restore_cache(self._stage(address)) for address in self.stages)

    def record(self, addresses: Iterable[str], wait: bool = False) -> dict[str, str]:
        """Record executed stages in DVC. Return address → problem, for the stages that could not be recorded.

        Raises:
            Locked: Another process has DVC's lock, and `wait` is False.
        """
        problems: dict[str, str] = {}
        with self._locked(wait):
            for address in addresses:
                key, stage = self._marks[address][1], self._stage(address)
                self._release(address)
                try:
                    stage.save_deps()
                    if self._key(stage) != key:
                        problems[address] = CHANGED
                        continue
                    self._save(address)
                except (self._error, *_PATH_ERRORS) as error:
                    problems[address] = _line(error)
            if time.monotonic() >= self._next_dump:
                self._dump()
        return problems

    def abandon(self, address: str) -> None:
        """Release the mark of a stage that was begun and will not be recorded."""
        with self._user_errors():  # marks have their own lock, so DVC's is not needed
            self._release(address)

    @classmethod
    @contextmanager
    def exclusive(cls, root: Path, command: str, folder: Path) -> Iterator[None]:
        """Keep other commands of DVC away from a folder. Raises :class:`UserError` if one is working there."""
        recorder = cls(root, [])
        try:
            with recorder._locked(wait=False), recorder._rwlock(command, [], [str(folder)]):
                yield
        except Locked:
            raise UserError(f"a command of DVC is at work here; type `{command}` again when it has ended") from None
        finally:
            recorder.repo.close()

    def _prepare(self, address: str, stage: Any) -> Verdict:
        from dvc.stage.cache import RunCacheNotFoundError
        from dvc_data.hashfile.hash_info import HashInfo

        if self._restore_cache(stage):
            return Verdict("fresh")
        as_recorded = stage.deps_cached()
        stage.save_deps()
        moved = self._move_edited(stage)
        stage.remove_outs(ignore_remove=False, force=False)
        if not as_recorded:  # otherwise DVC would restore outputs that were made from the old inputs
            for out in stage.outs:
                out.hash_info = HashInfo()
        try:
            self.repo.stage_cache.restore(stage)
            self._save(address)
            return Verdict("cached", moved=moved)
        except RunCacheNotFoundError:
            pass
        mark = ExitStack()
        mark.enter_context(self._mark(stage))
        self._marks[address] = mark, self._key(stage)
        return Verdict("run", moved=moved)

    def _restore_cache(self, stage: Any) -> bool:
        """Put a stage's outputs into the cache if they are as recorded but missing there; return whether it did so."""
        if stage.changed_stage() or any(entry.workspace_status() for entry in (*stage.deps, *stage.outs)):
            return False
        if not any(out.status() for out in stage.outs):
            return False
        stage.commit()
        self.repo.stage_cache.save(stage)
        return True

    def _move_edited(self, stage: Any) -> tuple[str, ...]:
        """Move reports whose content is neither as recorded nor in the cache; return new paths in the workspace."""
        moved = []
        for out in stage.outs:
            name = str(out.def_path)
            changed = name.startswith("reports/") and out.hash_info and out.exists and out.changed_checksum()
            if changed and not out.cache.exists(out.get_hash().value):
                place = f".pfl/replaced/{time.strftime('%Y-%m-%d-%H%M%S')}/{name}"
                (self.root / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(self.root / name, self.root / place)
                moved.append(place)
        return tuple(moved)

    def _save(self, address: str) -> None:
        """Hash a stage's outputs, put them into the cache, then into the run cache; the lock file is written later."""
        stage = self._stage(address)
        stage.save(run_cache=False)
        stage.commit()
        self.repo.stage_cache.save(stage)
        stage.cmd_changed = False  # DVC set it when the stage was loaded, from the record of that time
        self._undumped.setdefault(self.stages[address].file, {})[address] = stage

    def _dump(self) -> None:
        """Complete the lock files, except those whose stage file has been removed by a compilation meanwhile."""
        began = time.monotonic()
        while self._undumped:
            name, stages = self._undumped.popitem()
            if (self.root / name).is_file():
                next(iter(stages.values())).dvcfile.dump_stages(list(stages.values()), update_pipeline=False)
        ended = time.monotonic()
        self._next_dump = ended + max(DUMP_EVERY, 30 * (ended - began))

    def _stale_reason(self, stage: Any) -> str:
        """Return why DVC would execute a stage; "" if it would not."""
        if stage.changed_stage():
            return "its command changed" if any(out.hash_info for out in stage.outs) else "not made yet"
        for entry in (*stage.deps, *stage.outs):
            try:
                changes = entry.status()
            except _PATH_ERRORS as error:
                return str(error)
            if changes:
                path, change = next(iter(changes.items()))
                return f"{path} is {change}" if entry.hash_info else "not made yet"
        return ""

    def _mark(self, stage: Any) -> Any:
        """Return DVC's mark on the files of a stage; entering it raises ``LockError`` if another process has it."""
        read, write = [dep.fs_path for dep in stage.deps], [out.fs_path for out in stage.outs]
        return self._rwlock(f"pfl run ({stage.addressing})", read, write)

    def _rwlock(self, command: str, read: list[str], write: list[str]) -> Any:
        from dvc.rwlock import rwlock

        hardlink = self.repo.config["core"].get("hardlink_lock", False)
        return rwlock(self.repo.tmp_dir, self.repo.fs, command, read, write, hardlink)

    def _release(self, address: str) -> None:
        if address in self._marks:
            self._marks.pop(address)[0].close()

    def _key(self, stage: Any) -> str:
        inputs = {dep.def_path: str(dep.hash_info.value) for dep in stage.deps}
        facts = [stage.cmd, sorted(inputs.items()), [out.def_path for out in stage.outs]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _stage(self, address: str) -> Any:
        """Return DVC's object of a stage. All stages of its file are loaded, once, as reading the file takes long."""
        if address not in self._loaded:
            from dvc.dvcfile import load_file

            name = self.stages[address].file
            stages = load_file(self.repo, str(self.root / name)).stages
            self._loaded |= {other.address: stages[other.name] for other in self.stages.values() if other.file == name}
        return self._loaded[address]

    @contextmanager
    def _locked(self, wait: bool = True) -> Iterator[None]:
        """Hold DVC's lock. DVC's own ``lock_repo`` also resets the repository object each time, which takes longer.

        If another process has the lock, wait for it; without `wait`, raise :class:`Locked` after a few seconds.
        """
        with self._user_errors():
            if not self._lock():
                if not wait:
                    raise Locked
                print(WAITING, file=sys.stderr, flush=True)
                while not self._lock():
                    pass
            try:
                with self.repo.scm_context(quiet=True):
                    yield
            finally:
                self.repo.lock.unlock()

    def _lock(self) -> bool:
        """Take DVC's lock; return whether it was free within a few seconds."""
        from dvc.lock import LockError

        with suppress(LockError):
            self.repo.lock.lock()
            return True
        return False

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise UserError(f"DVC: {_line(error)}") from None
        except OSError as error:  # such as a full disk
            path = error.filename2 or error.filename or ".dvc"  # the cache there has copies of all outputs
            reason = error.strerror or error
            remedy = "what is recorded so far stays; type the same command to continue"
            raise UserError(f"DVC: {path}: {reason}; {remedy}") from None


def _line(error: BaseException) -> str:
    """Return an error of DVC and its cause in one line."""
    text, cause = str(error).strip(), error.__cause__ or error.__context__
    detail = f" ({str(cause).strip()})" if cause and str(cause).strip() not in text else ""
    return " ".join((text + detail).split())
