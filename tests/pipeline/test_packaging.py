"""A wheel and an sdist hold all that a study needs, and work without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.project import BIN
from support.tutorial import check, follow

from pipeline.compile.compiler import source_folder

ROOT = source_folder()
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def files(folder: str, *patterns: str) -> set[str]:
    paths = (path for pattern in patterns for path in (ROOT / folder).rglob(pattern))
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.mark.slow
def test_a_study_and_the_tutorial_work_with_a_wheel_alone(tmp_path: Path) -> None:
    python, source, empty = tmp_path / "venv/bin/python", tmp_path / "source", tmp_path / "empty"
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: object, cwd: Path = ROOT, **own: str) -> str:
        done = subprocess.run(words, cwd=cwd, env={**without, **own}, capture_output=True, text=True)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    # The sdist, and the wheel that is built of it, by a setuptools of its own.
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", "-q", "setuptools>=77")
    for name in run("git", "ls-files", "-co", "--exclude-standard").splitlines():
        if (ROOT / name).is_file() and not name.startswith(("stages/", "tests/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(python, "-c", BUILD, "build_sdist", tmp_path, cwd=source)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path / "unpacked", filter="data")
    run(python, "-c", BUILD, "build_wheel", tmp_path, cwd=next((tmp_path / "unpacked").iterdir()))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as built:
        held = set(built.namelist())
    specs, code = files("specs", "*.yaml", "*.csv", "*.md"), files("pipeline", "*.py", "*.j2", "engine.txt")
    code |= files("pflcore", "*.py")
    assert specs | code | {"constraints.txt", "LICENSE", "docs/studies.md"} <= names
    assert {f"pipeline/{name}" for name in specs} | code <= held
    assert {name.partition("/")[0] for name in held if ".dist-info/" not in name} == {"pflcore", "pipeline"}

    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel)
    empty.mkdir()
    own = {"PYTHONPATH": str(site), "PATH": os.pathsep.join([str(site / "bin"), str(BIN), os.environ["PATH"]])}

    def pfl(*words: str, cwd: Path = tmp_path) -> str:
        return run(sys.executable, "-m", "pipeline", *words, cwd=cwd, **own)

    assert pfl("--version").startswith("pfl ") and "--install-completion" in pfl("--help")
    pfl("init", "mine", "--from", "fedtp/table2")
    assert "56 of 56 runs are new" in pfl("plan", cwd=tmp_path / "mine")
    assert "1 spec is valid" in pfl("validate", cwd=tmp_path / "mine")
    check(follow(empty, **own))
    assert f"pip install {wheel.name}" in (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
