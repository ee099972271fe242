"""A spec as it was at a commit: its table and runs from git, their artifacts from DVC's cache."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pipeline.dvc.program import cached_file, read_lock
from pipeline.report.table.results import Results
from pipeline.spec.table import read_resolved, read_runs
from pipeline.workspace import Workspace, record_path, run_path, shard_path, table_path

_OF_A_RUN = {"rounds.parquet": ("train", "recall"), "evaluation.parquet": ("evaluate",)}
_ID = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_MD5 = re.compile(r"[0-9a-f]{32}")

Code = Mapping[str, Mapping[str, str]]
"""Run → file with a fingerprint of code that it depends on → the hash of that file."""


@dataclass(frozen=True)
class Revision:
    """The results of a spec at some time.

    Attributes:
        absent: Runs that had been made then, and whose artifacts are not in DVC's cache any more.
    """

    name: str
    results: Results
    code: Code
    absent: int = 0


def at_commit(workspace: Workspace, spec: str, commit: str, scratch: Path) -> Revision:
    """A spec with the artifacts that its lock files named at a commit.

    Args:
        commit: As git takes it: ``HEAD~3``, a tag, a hash.
        scratch: An empty folder, in which it is put together; it has to stay while the results are in use.

    Raises:
        UserError: There is no such commit, or no stage files of the spec in it.
    """
    git = _Git(workspace.root, commit)
    found = git.files([table_path(spec)])
    if table_path(spec) not in found:
        raise UserError(
            f"{spec}@{commit}: no {table_path(spec)} in it; only specs whose stages are committed can be compared"
        )
    _write(scratch, found)
    try:
        table = read_resolved(scratch / table_path(spec))
    except UserError as error:
        raise UserError(f"{spec}@{commit}: compiled by another version of this program ({error})") from None
    if not all(_ID.fullmatch(name) for pair in table.runs.items() for name in pair):
        raise UserError(f"{spec}@{commit}: {table_path(spec)} names runs as no run is named")
    locks = {
        federation: Path(shard_path(federation)).with_name("dvc.lock").as_posix()
        for federation in dict.fromkeys(table.runs.values())
    }
    files = git.files([*(record_path(federation, run) for run, federation in table.runs.items()), *locks.values()])
    _write(scratch, files)
    code: dict[str, dict[str, str]] = {}
    absent = 0
    for run, federation in table.runs.items():
        stages = read_lock(files.get(locks[federation], b""), locks[federation])
        code[run] = code_of(stages, run)
        known = {name: _hash_of(stages, makers, run, name) for name, makers in _OF_A_RUN.items()}
        cached = {name: cached_file(workspace.root, md5) for name, md5 in known.items() if md5}
        if not all(path.is_file() for path in cached.values()):
            absent += 1
            continue
        for name, source in cached.items():
            (scratch / run_path(run, name)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, scratch / run_path(run, name))
    return Revision(f"{spec}@{commit}", Results.read(table, read_runs(table, scratch), scratch), code, absent)


def _hash_of(stages: Mapping[str, Mapping[str, Any]], makers: tuple[str, ...], run: str, name: str) -> str:
    """What a lock file says of a file of a run; "" where it says nothing, or what is no hash."""
    outs = (out for maker in makers for out in stages.get(f"{maker}-{run}", {}).get("outs") or [])
    found = next((str(out.get("md5")) for out in outs if out.get("path") == run_path(run, name)), "")
    return found if _MD5.fullmatch(found) else ""


def code_of(stages: Mapping[str, Mapping[str, Any]], run: str) -> dict[str, str]:
    """The fingerprints of code behind a run, from the lock file of its federation: name → hash of the file."""
    stage = stages.get(f"train-{run}") or stages.get(f"recall-{run}") or {}
    return {Path(dep["path"]).stem: str(dep.get("md5")) for dep in stage.get("deps") or [] if "/code/" in dep["path"]}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class _Git:
    """The files of a commit. Raises :class:`UserError` where there is no such commit, or no git."""

    def __init__(self, root: Path, commit: str) -> None:
        self.root = root
        self.hash = self._call(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}", of=commit
        ).strip()
        self.prefix = self._call("rev-parse", "--show-prefix", of=commit).strip()

    def _call(self, *arguments: str, of: str) -> str:
        try:
            done = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=False)
        except OSError as error:
            raise UserError(f"git cannot be run: {error.strerror or error}") from None
        if done.returncode:
            raise UserError(f"{of!r} is no commit of this repository")
        return done.stdout

    def files(self, names: Iterable[str]) -> dict[str, bytes]:
        """The contents of those of some files, relative to the workspace, that the commit has."""
        wanted = list(names)
        done = subprocess.run(
            ["git", "cat-file", "--batch"],
            cwd=self.root,
            input="".join(f"{self.hash}:{self.prefix}{name}\n" for name in wanted).encode(),
            capture_output=True,
            check=True,
        )
        found, rest = {}, done.stdout
        for name in wanted:
            head, _, rest = rest.partition(b"\n")
            if head.endswith(b" missing"):
                continue
            size = int(head.rsplit(b" ", 1)[1])
            found[name], rest = rest[:size], rest[size + 1 :]
        return found
