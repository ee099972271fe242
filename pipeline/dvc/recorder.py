"""DVC's side of running stages: which are stale, what its run cache holds, what has been made.

DVC's Python interface is used in place of its command line, since a process per stage costs a second. The order of
things and the locks are those of DVC's own ``repro``: a stage that is under way here is marked, so that a ``dvc repro``
beside it stops with one line, and what such a ``dvc repro`` has under way is left alone here.

A stage that has ended is entered into DVC's cache and run cache at once, which is what makes it last. The lock files
follow every few seconds and at the end, since DVC rewrites a whole one, in place, for each entry; one that a kill has
cut short is removed, as all that it said is in the run cache.
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
from pipeline.parsing import parse_yaml

DUMP_EVERY = 10.0  # seconds between two versions of the lock files, or ten times what the last one took
CHANGED = "what it depends on changed while it ran; nothing is recorded, run it again"
WAITING = "waiting for another process, such as a `dvc push`, that has DVC's lock"
_IN_THE_WAY = (NotADirectoryError, IsADirectoryError, PermissionError)  # of one stage's files, unlike a full disk


class Locked(Exception):
    """Another process has DVC's lock, and nothing was done."""


@dataclass(frozen=True)
class Verdict:
    """What is to be done with a stage whose inputs are there.

    ``fresh`` and ``cached`` need nothing, the latter was in the run cache; ``run`` has to be executed, and what it
    wrote before has been removed; ``busy`` is held by another process; ``broken`` is beyond DVC.
    """

    what: Literal["fresh", "cached", "run", "busy", "broken"]
    why: str = ""  # who holds it, or what DVC said
    aside: tuple[str, ...] = ()  # where files went that a person had changed


class Recorder:
    """DVC's side of running `stages` of the workspace `root`. To be used from one thread.

    Raises:
        UserError: `root` is no DVC repository, or its settings cannot be used.
    """

    def __init__(self, root: Path, stages: Iterable[Stage]) -> None:
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        for library in ("dvc", "dvc_data", "dvc_objects"):  # errors are raised, and progress is shown otherwise
            logging.getLogger(library).setLevel(logging.CRITICAL)
        self.root = root
        self.known = {stage.address: stage for stage in stages}
        self._error = DvcException
        with self._explained():
            self.repo = Repo(str(root))
        self._loaded: dict[str, Any] = {}
        self._held: dict[str, tuple[ExitStack, str]] = {}  # the mark on a stage that is executed, and its key
        self._undumped: dict[str, dict[str, Any]] = {}  # by stage file: stages that its lock file does not have yet
        self._due = 0.0  # when lock files may be written again
        self._remove_cut_files()

    def close(self, wait: bool = True) -> None:
        """Complete the lock files, and release what is held; at once, as far as that goes, without `wait`."""
        try:
            with suppress(Locked), self._locked(wait):
                for address in list(self._held):
                    self._release(address)
                self._dump()
        finally:  # what cannot be released is let go: DVC would try it when the interpreter ends, and wait for ever
            for address in list(self._held):
                with suppress(self._error, OSError):
                    self._release(address)
            self.repo.close()

    def stale(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return the stages that are not as DVC recorded them, each with the reason, whatever is before them."""
        with self._locked():
            reasons = {address: self._reason(self._stage(address)) for address in addresses}
        return {address: reason for address, reason in reasons.items() if reason}

    def begin(self, address: str) -> Verdict:
        """Decide about a stage whose inputs are complete; to be executed, it is held until recorded or given up.

        Raises:
            Locked: Another process has DVC's lock.
        """
        from dvc.lock import LockError

        with self._locked(wait=False):
            stage = self._stage(address)
            try:
                if not self._reason(stage):
                    return Verdict("fresh")
                with self._mark(stage):  # is anybody at work on it?
                    pass
                return self._prepare(address, stage)
            except LockError as error:
                return Verdict("busy", why=_line(error))
            except (self._error, *_IN_THE_WAY) as error:
                return Verdict("broken", why=f"DVC: {_line(error)}")

    def keep(self) -> int:
        """Put into the cache what is as recorded and has only been lost there; return the number of its stages."""
        with self._locked():
            return sum(self._keep(self._stage(address)) for address in self.known)

    def record(self, addresses: Iterable[str], wait: bool = False) -> dict[str, str]:
        """Let DVC know of stages that have been executed. Return what went wrong, by stage.

        Raises:
            Locked: Another process has DVC's lock, which is not to be waited for.
        """
        problems: dict[str, str] = {}
        with self._locked(wait):
            for address in addresses:
                key, stage = self._held[address][1], self._stage(address)
                self._release(address)
                try:
                    stage.save_deps()
                    if self._key(stage) != key:
                        problems[address] = CHANGED
                        continue
                    self._save(address)
                    self.repo.stage_cache.save(stage)
                except (self._error, *_IN_THE_WAY) as error:
                    problems[address] = _line(error)
            if time.monotonic() >= self._due:
                self._dump()
        return problems

    def give_up(self, address: str) -> None:
        """Release a stage that was begun and will not be recorded."""
        with self._explained():  # the marks have a lock of their own
            self._release(address)

    @classmethod
    @contextmanager
    def alone(cls, root: Path, command: str, folder: Path) -> Iterator[None]:
        """Let no other command of DVC work with what lies in a folder; raise :class:`UserError` while one does."""
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

        if self._keep(stage):
            return Verdict("fresh")
        as_recorded = stage.deps_cached()
        stage.save_deps()
        aside = self._set_aside(stage)
        stage.remove_outs(ignore_remove=False, force=False)
        if not as_recorded:  # or DVC, knowing the new inputs, would bring back what was made from the old ones
            for out in stage.outs:
                out.hash_info = HashInfo()
        try:
            self.repo.stage_cache.restore(stage)
            self._save(address)
            return Verdict("cached", aside=aside)
        except RunCacheNotFoundError:
            stage.save_deps()
        mark = ExitStack()
        mark.enter_context(self._mark(stage))
        self._held[address] = mark, self._key(stage)
        return Verdict("run", aside=aside)

    def _keep(self, stage: Any) -> bool:
        """Put what a stage wrote into the cache, if it is not there and all else is as recorded; return whether so."""
        if stage.changed_stage() or any(entry.workspace_status() for entry in (*stage.deps, *stage.outs)):
            return False
        if not any(out.status() for out in stage.outs):
            return False
        stage.commit()
        self.repo.stage_cache.save(stage)
        return True

    def _set_aside(self, stage: Any) -> tuple[str, ...]:
        """Move reports that are nothing that a stage wrote, as DVC knows; return where to, within the workspace."""
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
        """Hash and cache what a stage wrote; the lock file follows."""
        stage = self._stage(address)
        stage.save()
        stage.commit()
        stage.cmd_changed = False  # it was loaded with what was recorded then
        self._undumped.setdefault(self.known[address].file, {})[address] = stage

    def _dump(self) -> None:
        """Complete the lock files, but beside stage files that have been compiled away meanwhile."""
        began = time.monotonic()
        while self._undumped:
            name, stages = self._undumped.popitem()
            if (self.root / name).is_file():
                next(iter(stages.values())).dvcfile.dump_stages(list(stages.values()), update_pipeline=False)
        ended = time.monotonic()
        self._due = ended + max(DUMP_EVERY, 10 * (ended - began))

    def _reason(self, stage: Any) -> str:
        """Return why DVC would execute a stage; empty when it would not."""
        if stage.changed_stage():
            return "its command changed" if any(out.hash_info for out in stage.outs) else "not made yet"
        for entry in (*stage.deps, *stage.outs):
            try:
                changes = entry.status()
            except _IN_THE_WAY as error:
                return str(error)
            if changes:
                path, what = next(iter(changes.items()))
                return f"{path} is {what}" if entry.hash_info else "not made yet"
        return ""

    def _mark(self, stage: Any) -> Any:
        """Return DVC's mark on what a stage reads and writes; it raises ``LockError`` when another process has it."""
        read, write = [dep.fs_path for dep in stage.deps], [out.fs_path for out in stage.outs]
        return self._rwlock(f"pfl run ({stage.addressing})", read, write)

    def _rwlock(self, command: str, read: list[str], write: list[str]) -> Any:
        from dvc.rwlock import rwlock

        hardlink = self.repo.config["core"].get("hardlink_lock", False)
        return rwlock(self.repo.tmp_dir, self.repo.fs, command, read, write, hardlink)

    def _release(self, address: str) -> None:
        if address in self._held:
            self._held.pop(address)[0].close()

    def _key(self, stage: Any) -> str:
        inputs = {dep.def_path: str(dep.hash_info.value) for dep in stage.deps}
        facts = [stage.cmd, sorted(inputs.items()), [out.def_path for out in stage.outs]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _stage(self, address: str) -> Any:
        """Return DVC's stage, loaded once; its whole file is, as reading that is what takes time."""
        if address not in self._loaded:
            from dvc.dvcfile import load_file

            name = self.known[address].file
            stages = load_file(self.repo, str(self.root / name)).stages
            self._loaded |= {one.address: stages[one.name] for one in self.known.values() if one.file == name}
        return self._loaded[address]

    @contextmanager
    def _locked(self, wait: bool = True) -> Iterator[None]:
        """Work inside DVC's lock. DVC's own way forgets settings each time, which takes longer.

        When another process has it, wait for it, or for a few seconds only and raise :class:`Locked`.
        """
        with self._explained():
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
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise UserError(f"DVC: {_line(error)}") from None
        except OSError as error:  # such as a disk that is full
            where = error.filename2 or error.filename or ".dvc"  # whose cache has copies of all outputs
            why = error.strerror or error
            raise UserError(f"DVC: {where}: {why}; what is recorded so far stays, the same command goes on") from None

    def _remove_cut_files(self) -> None:
        """Remove lock files and marks that a kill has cut short; DVC itself would stop at them."""
        marks = Path(str(self.repo.tmp_dir), "rwlock")
        for path in {marks, *((self.root / stage.file).with_name("dvc.lock") for stage in self.known.values())}:
            with suppress(FileNotFoundError):
                if not _is_whole(path):
                    path.unlink()


def _is_whole(path: Path) -> bool:
    """Return whether a lock file, or else the file of marks, is as DVC writes it."""
    from dvc.dvcfile import Lockfile
    from voluptuous import Invalid

    try:
        if path.name == "dvc.lock":
            return bool(Lockfile.SCHEMA(parse_yaml(path.read_bytes()))["stages"])
        return json.loads(path.read_bytes()) is not None
    except (ValueError, Invalid, KeyError, TypeError):
        return False


def _line(error: BaseException) -> str:
    """Return an error of DVC's and what caused it, on one line."""
    text, cause = str(error).strip(), error.__cause__ or error.__context__
    more = f" ({str(cause).strip()})" if cause and str(cause).strip() not in text else ""
    return " ".join((text + more).split())
