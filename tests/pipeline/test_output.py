"""Output that is closed, full, of few characters, or that nobody reads any more ends no work and gives no traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.killing import Victim
from support.project import Project, make_project, spec


def shell(project: Project, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command line, with what of it has not been led elsewhere."""
    return project.call("bash", "-c", command, **variables)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]")}, default=["tiny"])


@pytest.mark.parametrize("command", ["describe fedtp", pytest.param("schema", marks=pytest.mark.matrix)])
def test_a_reader_that_leaves_is_no_error(project: Project, command: str) -> None:
    done = shell(project, f"pfl {command} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_streams_that_are_closed_full_or_of_few_characters(project: Project) -> None:
    done = shell(project, "pfl list methods >&-; pfl list nonsense >&- 2>&-")
    assert (done.returncode, done.stderr) == (2, "")
    done = shell(project, "pfl describe fedtp", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.isascii() and "server_momentum" in done.stdout
    if Path("/dev/full").exists():
        done = shell(project, "pfl list methods > /dev/full")
        assert (done.returncode, done.stderr) == (2, "pfl: standard output: No space left on device\n")


@pytest.mark.matrix
def test_a_run_without_output_ends_as_ever(project: Project) -> None:
    done = shell(project, "pfl run >&- 2> >(exit)")
    assert done.returncode == 0
    assert (project.root / "reports/tiny/report.md").is_file() and (project.root / "reports/index.html").is_file()
    assert "up to date" in project.call("dvc", "status").stdout


@pytest.mark.matrix
def test_training_ends_when_its_terminal_has_gone(tmp_path: Path) -> None:
    victim = Victim(tmp_path, "fedavg", rounds=3)
    ours, theirs = os.openpty()
    os.close(ours)
    done = subprocess.run(
        ["pfl", "stage", "train", victim.run.id],
        cwd=tmp_path,
        env=victim.project.environment(PFL_DEVICE="cpu", TERM="xterm"),
        stdout=theirs,
        stderr=theirs,
        check=False,
    )
    os.close(theirs)
    assert done.returncode == 0 and (victim.out / "rounds.parquet").is_file()
