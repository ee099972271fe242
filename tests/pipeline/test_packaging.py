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
BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_sdist(sys.argv[1]), build_meta.build_wheel(sys.argv[1]))
"""
SPECS = {
    path.relative_to(ROOT).as_posix() for kind in ("yaml", "csv", "md") for path in (ROOT / "specs").rglob(f"*.{kind}")
}
DATA = {
    path.relative_to(ROOT).as_posix()
    for pattern in ("report/templates/*.j2", "compile/engine.txt")
    for path in (ROOT / "pipeline").glob(pattern)
}
CODE = {
    path.relative_to(ROOT).as_posix() for package in ("pipeline", "pflcore") for path in (ROOT / package).rglob("*.py")
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built of it, by a setuptools of its own."""
    folder = tmp_path_factory.mktemp("built")
    python = folder / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "setuptools>=77"], check=True, capture_output=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("stages/", "tests/", "benchmarks/")):
            place = folder / "source" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes((ROOT / name).read_bytes())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [python, "-c", BUILD, folder], cwd=folder / "source", env=environment, check=True, capture_output=True
    )
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    (folder / "wheels").mkdir()
    again = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [python, "-c", again, folder / "wheels"], cwd=source, env=environment, check=True, capture_output=True
    )
    (wheel,) = (folder / "wheels").glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_both_hold_everything(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert SPECS | DATA | CODE | {"constraints.txt", "LICENSE", "docs/studies.md"} <= names
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {f"pipeline/{name}" for name in SPECS} | DATA | CODE <= held
    assert {name.partition("/")[0] for name in held if ".dist-info/" not in name} == {"pflcore", "pipeline"}


@pytest.mark.slow
def test_a_study_can_begin_with_a_wheel_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    def pfl(*words: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *words], cwd=cwd, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert pfl("--version").startswith("pfl ")
    pfl("init", "mine", "--from", "fedtp/table2")
    assert "56 of 56 runs are new" in pfl("plan", cwd=tmp_path / "mine")
    assert "1 spec is valid" in pfl("validate", cwd=tmp_path / "mine")
    assert "--install-completion" in pfl("--help")


@pytest.mark.slow
def test_the_tutorial_does_what_it_says_with_a_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", site]
    subprocess.run([*pip, built[1]], check=True)
    (tmp_path / "empty").mkdir()
    path = os.pathsep.join([str(site / "bin"), str(BIN), os.environ["PATH"]])
    check(follow(tmp_path / "empty", PYTHONPATH=str(site), PATH=path))
    assert f"pip install {built[1].name}" in (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
