"""Specs of the project from data to report, one per paper and when asked all; an installed wheel without the rest."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from html import unescape
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.markdown import ROOT
from support.project import BIN, Project
from support.tutorial import check, follow

from pipeline.spec.catalog import load_catalog
from pipeline.spec.specs import find_specs, load_spec

SPECS = find_specs(ROOT / "specs")
ONE_PER_PAPER = ("fedofa/fig5", "fedperfix/table6", "fedtp/fig4", "pfedla/table3_office31")
MARKS = {name: pytest.mark.matrix if name in ONE_PER_PAPER else pytest.mark.slow for name in SPECS}


def test_every_paper_has_one() -> None:
    papers = {name.partition("/")[0] for name in SPECS if "/" in name} - {"checks"}
    assert {name.partition("/")[0] for name in ONE_PER_PAPER} == papers


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in MARKS.items()])
def test_a_spec_runs_from_end_to_end(name: str, tmp_path: Path) -> None:
    spec = load_spec(SPECS[name], ROOT / "specs", load_catalog(ROOT))
    if spec.body.abstract:
        pytest.skip("a spec that others extend has no runs")
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    Project(tmp_path).succeed("pfl", "run", name, "--profile", "smoke")
    reports = tmp_path / "build/smoke/reports"
    cells = pq.read_table(reports / name / "table.parquet").to_pandas()
    trained = cells[(cells["runs"].map(len) > 0) & (cells["verdict"] != "diverged")]
    resolved = json.loads((tmp_path / f"build/smoke/stages/tables/{name}.json").read_text(encoding="utf-8"))
    quantity = any(cell.get("quantity") for cell in resolved["cells"])  # no share of anything
    assert len(trained) and trained["obtained_mean"].between(0, float("inf") if quantity else 100).all()
    for kind in ("md", "tex", "html"):
        page = unescape((reports / "papers" / f"{name.partition('/')[0]}.{kind}").read_text(encoding="utf-8"))
        assert "SMOKE PROFILE" in page and spec.title.split(":")[0] in page.replace("\\", "")


BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def files(folder: str, *patterns: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for one in patterns for path in (ROOT / folder).rglob(one)}


@pytest.mark.slow
def test_a_study_and_the_tutorial_work_with_a_wheel_alone(tmp_path: Path) -> None:
    python, source, site, empty = (tmp_path / name for name in ("venv/bin/python", "source", "site", "empty"))
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: object, cwd: Path = ROOT, **own: str) -> str:
        done = subprocess.run(words, cwd=cwd, env={**without, **own}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

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
    held = set(zipfile.ZipFile(wheel).namelist())
    specs, code = files("specs", "*.yaml", "*.csv", "*.md"), files("pipeline", "*.py", "*.j2", "engine.txt")
    code |= files("pflcore", "*.py")
    assert specs | code | {"constraints.txt", "LICENSE", "docs/studies.md"} <= names
    assert {f"pipeline/{name}" for name in specs} | code <= held
    assert {name.partition("/")[0] for name in held if ".dist-info/" not in name} == {"pflcore", "pipeline"}
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
