"""Calls of DVC's command line, where that is quick enough, and its lock files and settings, read as text."""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.files import named, write_text
from pipeline.compile.compilation import Compilation, Stage
from pipeline.compile.generated import parse_yaml
from pipeline.workspace import run_path

_IGNORE = "__pycache__/\n*.pyc\n/.pfl/\n/build/\n/.venv/\n"


def dvc(root: Path, *arguments: str) -> int:
    """Run the `dvc` beside this Python, or else the one on the search path, in `root`; return its exit code."""
    program = shutil.which("dvc", path=executables())
    if not program:
        raise UserError("dvc is not installed in this environment; run `make setup`")
    return subprocess.run([program, *arguments], cwd=root, env={**os.environ, "PATH": executables()}).returncode


def executables() -> str:
    """Return a search path on which stages find `pfl`, even if the environment has not been activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def initialise(root: Path, *, inside: bool = False) -> None:
    """Make `root` a DVC repository, with git if `root` is a git repository or, with `inside`, a folder in one."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / ".dvcignore").is_file():  # `dvc init` would write an empty one
        write_text(root / ".dvcignore", _IGNORE)
    with named(root / ".dvcignore"), (root / ".dvcignore").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # without locks DVC would fail, and would not say why
    in_git = any((folder / ".git").exists() for folder in (root, *root.parents))
    if not (root / ".dvc").is_dir():
        option = "--subdir" if inside and in_git and shutil.which("git") else "--no-scm"
        if option == "--subdir":
            command = ["git", "check-ignore", "-v", ".dvc/config"]
            result = subprocess.run(command, cwd=root, capture_output=True, text=True)
            if result.returncode > 1:  # such as a repository of another user
                raise UserError(f"{root}: {result.stderr.strip().removeprefix('fatal: ')}")
            if rule := result.stdout.partition("\t")[0]:
                line = f"{root}: git ignores this folder, by {rule.strip()}; take the rule out, or begin elsewhere"
                raise UserError(line)  # otherwise DVC would take no notice of git
        if dvc(root, "init", "--quiet", *([] if (root / ".git").exists() else [option])):
            raise UserError(f"{root}: `dvc init` failed; see above")
        dvc(root, "config", "--quiet", "core.analytics", "false")
    elif not in_git and _settings(root).get("core", "no_scm", fallback="").lower() != "true":
        # The tree was copied without .git, and DVC would refuse to start.
        dvc(root, "config", "--quiet", "--local", "core.no_scm", "true")


def _settings(root: Path) -> configparser.ConfigParser:
    """Read the repository's own settings from their files, since asking DVC takes a second."""
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    with suppress(configparser.Error, UnicodeDecodeError):  # DVC itself will report the error
        settings.read([root / ".dvc/config", root / ".dvc/config.local"], encoding="utf-8")
    return settings


def in_cache(root: Path, content: str) -> bool:
    """Return whether DVC's cache has a file with this content."""
    return cache_file(root, hashlib.md5(content.encode(), usedforsecurity=False).hexdigest()).exists()


def cache_file(root: Path, md5: str) -> Path:
    """Return the path of a file in DVC's cache, whose place is read from the repository's own settings only."""
    folder = _settings(root).get("cache", "dir", fallback="cache")
    return Path(os.path.normpath(root / ".dvc" / folder), "files/md5", md5[:2], md5[2:])


def locked_stages(root: Path, stages: Iterable[Stage]) -> dict[str, dict[str, Any]]:
    """Return address → DVC's record of the last execution, for each stage that has one.

    Raises:
        UserError: A lock file is damaged.
    """
    locks: dict[str, dict[str, dict[str, Any]]] = {}
    recorded = {}
    for stage in stages:
        path = (root / stage.file).with_name("dvc.lock")
        if stage.file not in locks:
            locks[stage.file] = _lock(path)
        if entry := locks[stage.file].get(stage.name):
            recorded[stage.address] = entry
    return recorded


def _lock(path: Path) -> dict[str, dict[str, Any]]:
    """Return name of stage → record of a lock file. DVC writes it in place, so what is half written is read again."""
    for wait in (0.2, 1, 0):
        try:
            entries = parse_yaml(path.read_bytes())["stages"] if path.is_file() else {}
            return {name: {**entry} for name, entry in entries.items()}
        except (ValueError, KeyError, AttributeError, TypeError):
            time.sleep(wait)
    raise UserError(f"{path}: damaged; restore it with `git checkout {path}` or delete it")


class Recorded:
    """DVC's records of the stages of a compilation: whether artifacts were made with the present specs and code."""

    def __init__(self, root: Path, compilation: Compilation) -> None:
        self.root = root
        self.makers = {out: stage for stage in compilation.stages for out in stage.outs}
        self.locked = locked_stages(root, compilation.stages)

    def is_stale(self, run: str) -> bool:
        """Return whether DVC has recorded the run with this id, but with other code or data than the present ones."""
        out = run_path(run, "rounds.parquet")
        return out in self.makers and self.makers[out].address in self.locked and self._recorded_hash(out) is None

    def holds(self, path: str) -> bool:
        """Return whether a file, relative to the workspace, is as its stage wrote it from inputs that are current."""
        recorded, file = self._recorded_hash(path), self.root / path
        if recorded is None or not file.is_file():
            return False
        return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() == recorded

    def _recorded_hash(self, out: str) -> str | None:
        """Return the recorded hash of an output if its stage and all earlier ones ran the present commands, or None."""
        stage = self.makers[out]
        lock = self.locked.get(stage.address)
        if not lock or lock.get("cmd") != stage.command:
            return None
        inputs, outs = ({file["path"]: file.get("md5") for file in lock.get(side) or []} for side in ("deps", "outs"))
        upstream = [dep for dep in stage.deps if dep in self.makers and self.makers[dep].kind != "guard"]
        if any(inputs.get(dep) is None or self._recorded_hash(dep) != inputs[dep] for dep in upstream):
            return None
        return None if outs.get(out) is None else str(outs[out])
