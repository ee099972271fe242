"""Output that is closed, full, of few characters, or that nobody reads any more ends no work and gives no traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.project import Project, make_project, spec


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]")}, default=["tiny"])


def test_streams_that_are_closed_full_left_or_of_few_characters(project: Project) -> None:
    def shell(command: str, **variables: str) -> tuple[int, str, str]:
        done = project.call("bash", "-c", command, **variables)
        return done.returncode, done.stdout, done.stderr

    assert shell("pfl describe fedtp | true; exit ${PIPESTATUS[0]}") == (0, "", "")
    assert shell("pfl list methods >&-; pfl list nonsense >&- 2>&-") == (2, "", "")
    code, shown, _ = shell("pfl describe fedtp", PYTHONIOENCODING="ascii")
    assert code == 0 and shown.isascii() and "server_momentum" in shown
    if Path("/dev/full").exists():
        assert shell("pfl list methods > /dev/full") == (2, "", "pfl: standard output: No space left on device\n")


@pytest.mark.matrix
@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_whose_output_or_terminal_has_gone_ends_as_ever(project: Project, terminal: bool) -> None:
    ours, theirs = os.openpty()
    os.close(ours)
    command = ["pfl", "run"] if terminal else ["bash", "-c", "pfl run >&- 2> >(exit)"]
    done = subprocess.run(
        command, cwd=project.root, env=project.environment(TERM="xterm"), stdout=theirs, stderr=theirs, check=False
    )
    os.close(theirs)
    assert done.returncode == 0 and (project.root / "reports/tiny/report.md").is_file()
    assert "up to date" in project.call("dvc", "status").stdout
