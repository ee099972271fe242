"""Splits to and from other tools: CSV, through a spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project, make_project, spec

from pflcore.errors import UserError


@pytest.mark.matrix
def test_a_split_goes_out_and_comes_back_as_a_spec(original: Project, tmp_path: Path) -> None:
    """CSV → a spec, whose partition is the one that was exported; a change of the file is another."""
    done = original.call("pfl", "export-split", "tiny", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    (origin, *_) = sorted((tmp_path / "out").glob("*-s0-*.csv"))
    project = make_project(tmp_path / "study", {"specs/own.yaml": ""}, ["own"])
    project.write("specs/own/split.csv", origin.read_text())
    project.write("specs/own.yaml", spec("[fedavg]", partition="{name: from_file, path: specs/own/split.csv}"))
    project.compile()
    (run,) = project.compiled().runs.values()
    assert run.record["partition"]["content"].startswith("sha256:")
    done = project.repro(f"stages/federations/{run.federation_id}/dvc.yaml:partition", PFL_DEVICE="cpu")
    assert done.code == 0, done.output
    done = project.call("pfl", "export-split", "own", "--out", "again")
    assert done.returncode == 0, done.stderr
    (again,) = (project.root / "again").glob("*.csv")
    assert again.read_bytes() == origin.read_bytes()
    (before,) = project.compiled().runs
    project.write("specs/own/split.csv", origin.read_text().replace("\n0,", "\n1797,", 1))
    assert before not in project.compiled().runs


def test_a_spec_that_names_no_such_file_says_where(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/own.yaml": ""}, ["own"])
    for path, line in [
        ("specs/none.csv", r"own\.yaml:\d+: .*'specs/none.csv': no such file"),
        ("data/split.csv", r"own\.yaml:\d+: .*'data/split.csv': must be a file in specs/"),
        ("specs/../../split.csv", r"own\.yaml:\d+: .*must be a file in specs/"),
    ]:
        project.write("specs/own.yaml", spec("[fedavg]", partition=f"{{name: from_file, path: {path}}}"))
        with pytest.raises(UserError, match=line):
            project.compiled()
