"""DVC as a program that is called, where that is quick enough; and its lock files and settings, read as text."""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.reading import read_file
from pipeline.parsing import parse_yaml

_IGNORE = "__pycache__/\n*.pyc\n/.pfl/\n/build/\n/.venv/\n"


def program() -> str:
    """The `dvc` beside this Python, or the one on the path. Raises :class:`UserError` when there is none."""
    beside = Path(sys.executable).with_name("dvc")
    found = str(beside) if beside.is_file() else shutil.which("dvc")
    if not found:
        raise UserError("dvc is not installed in this environment; run `make setup`")
    return found


def dvc(root: Path, *arguments: str, quiet: bool = False) -> int:
    """Run DVC in `root` with its output shown, or hidden when `quiet`; returns its exit code."""
    hide = subprocess.DEVNULL if quiet else None
    command = [program(), *arguments]
    environment = {**os.environ, "PATH": executables()}
    done = subprocess.run(command, cwd=root, stdout=hide, stderr=hide, env=environment, check=False)
    return done.returncode


def executables() -> str:
    """A search path on which stages find `pfl`, also when the environment has not been activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def initialise(root: Path, *, inside: bool = False) -> None:
    """Make `root` a DVC repository, whether or not it is a git repository. Does nothing when it is one already.

    Args:
        inside: It may also be a folder of a git repository, whose commits DVC then compares.
    """
    root.mkdir(parents=True, exist_ok=True)
    if not (root / ".dvcignore").is_file():  # `dvc init` would write an empty one
        write_text(root / ".dvcignore", _IGNORE)
    in_git = any((folder / ".git").exists() for folder in (root, *root.parents))
    if not (root / ".dvc").is_dir():
        if rule := _ignoring(root) if inside and in_git else "":  # else DVC takes no notice of git
            raise UserError(f"{root}: git ignores this folder, by {rule}; take the rule out, or begin elsewhere")
        nested = ["--subdir"] if inside and in_git else ["--no-scm"]
        if dvc(root, "init", "--quiet", *([] if (root / ".git").exists() else nested)):
            raise UserError(f"{root}: `dvc init` failed; see above")
        dvc(root, "config", "--quiet", "core.analytics", "false", quiet=True)
    elif not in_git and not _is_alone(root / ".dvc"):
        # A copy of the tree without .git: DVC would refuse to start.
        dvc(root, "config", "--quiet", "--local", "core.no_scm", "true", quiet=True)


def _ignoring(root: Path) -> str:
    """The rule by which git ignores what DVC would write, with its file and line, if there is one."""
    if not shutil.which("git"):
        return ""
    asked = ["git", "check-ignore", "-v", ".dvc/config"]
    told = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)
    return told.stdout.partition("\t")[0].strip()


def _is_alone(settings: Path) -> bool:
    """Whether DVC has been told that there is no git here, without the second that asking it takes."""
    files = [path for path in (settings / "config", settings / "config.local") if path.is_file()]
    return any("no_scm = true" in path.read_text(encoding="utf-8", errors="replace").lower() for path in files)


def in_cache(root: Path, content: str) -> bool:
    """Whether DVC's cache has a file with this content, as far as the repository's own settings say where it is."""
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    with contextlib.suppress(configparser.Error, UnicodeDecodeError):  # DVC itself will complain
        settings.read([root / ".dvc/config", root / ".dvc/config.local"], encoding="utf-8")
    folder, known = settings.get("cache", "dir", fallback="cache"), md5(content)
    return (root / ".dvc" / folder / "files/md5" / known[:2] / known[2:]).exists()


_MOST = 1 << 26  # bytes of a lock file; that of 5,000 runs has some ten million


def locked_stages(shards: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """``<shard>:<stage>`` → what DVC recorded when the stage last ran, from the lock files beside `shards`."""
    found = {}
    for shard in shards:
        lock = shard.with_name("dvc.lock")
        if lock.is_file():
            stages = read_lock(read_file(lock, _MOST), str(lock))
            found.update({f"{shard.parent.name}:{name}": stage for name, stage in stages.items()})
    return found


def read_lock(content: bytes, label: str) -> dict[str, dict[str, Any]]:
    """The stages of a lock file by name. Raises :class:`UserError` for a damaged one."""
    try:
        loaded = parse_yaml(content)
        return {name: {**stage} for name, stage in ((loaded or {}).get("stages") or {}).items()}
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{label}: damaged; restore it with `git checkout {label}` or delete it") from None


def md5(text: str) -> str:
    """The hash that DVC records for a file with this content."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
