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

pytestmark = pytest.mark.slow
ROOT = source_folder()
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def files(folder: str, *patterns: str) -> set[str]:
    paths = (path for pattern in patterns for path in (ROOT / folder).rglob(pattern))
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built of it, by a setuptools of its own."""
    folder = tmp_path_factory.mktemp("built")
    python, source = folder / "venv/bin/python", folder / "source"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: object, cwd: Path = ROOT) -> str:
        return subprocess.run(words, cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout

    run(sys.executable, "-m", "venv", folder / "venv")
    run(python, "-m", "pip", "install", "-q", "setuptools>=77")
    for name in run("git", "ls-files", "-co", "--exclude-standard").splitlines():
        if (ROOT / name).is_file() and not name.startswith(("stages/", "tests/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(python, "-c", BUILD, "build_sdist", folder, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run(python, "-c", BUILD, "build_wheel", folder, cwd=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def test_both_hold_everything(built: tuple[Path, Path]) -> None:
    specs, code = files("specs", "*.yaml", "*.csv", "*.md"), files("pipeline", "*.py", "*.j2", "engine.txt")
    code |= files("pflcore", "*.py")
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert specs | code | {"constraints.txt", "LICENSE", "docs/studies.md"} <= names
    with zipfile.ZipFile(built[1]) as archive:
        held = set(archive.namelist())
    assert {f"pipeline/{name}" for name in specs} | code <= held
    assert {name.partition("/")[0] for name in held if ".dist-info/" not in name} == {"pflcore", "pipeline"}


def test_a_study_and_the_tutorial_work_with_a_wheel_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", site]
    subprocess.run([*pip, built[1]], check=True)
    empty.mkdir()
    own = {"PYTHONPATH": str(site), "PATH": os.pathsep.join([str(site / "bin"), str(BIN), os.environ["PATH"]])}

    def pfl(*words: str, cwd: Path = tmp_path) -> str:
        command = [sys.executable, "-m", "pipeline", *words]
        done = subprocess.run(command, cwd=cwd, env={**os.environ, **own}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert pfl("--version").startswith("pfl ") and "--install-completion" in pfl("--help")
    pfl("init", "mine", "--from", "fedtp/table2")
    assert "56 of 56 runs are new" in pfl("plan", cwd=tmp_path / "mine")
    assert "1 spec is valid" in pfl("validate", cwd=tmp_path / "mine")
    check(follow(empty, **own))
    assert f"pip install {built[1].name}" in (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
