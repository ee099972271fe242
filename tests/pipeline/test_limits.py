"""Limits of the machine, and input beyond measure: one line says where and what to do."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest
from support.project import make_project, spec
from support.tiny import backbone, method, result_bytes, run

from pflcore.errors import UserError, bounded
from pflcore.files import atomic_path
from pipeline import cli
from pipeline.running.local import attempt
from pipeline.workspace import Workspace

LONG = "k" * 5000


def test_a_message_has_its_beginning_and_its_end_however_long_it_is() -> None:
    assert bounded("a  b\nc") == "a b c" and bounded("x" * 299) == "x" * 299
    assert bounded(f"specs/a.yaml:3: {LONG} is wrong") == f"specs/a.yaml:3: {'k' * 100}...{'k' * 40} is wrong"
    whole = str(UserError(f"specs/a.yaml:3: {'word ' * 2000}do this"))
    assert len(whole) <= 4000 and whole.startswith("specs/a.yaml:3: word") and whole.endswith("do this")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"extends: [{'x/' * 3000}y.yaml]\n", "specs/tiny.yaml:1: extends[0]: "),
        (spec(more=f"table: {{rows: [method], published: {LONG}.csv}}\n"), "specs/tiny.yaml:12: table.published: "),
        (spec(f"[{LONG}]"), "specs/tiny.yaml:11: grid.axes.method[0]: "),
    ],
)
def test_names_beyond_what_a_system_takes(text: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        make_project(tmp_path, {"specs/tiny.yaml": text}).compiled()
    assert str(refusal.value).startswith(where) and len(str(refusal.value)) < 600


def test_workers_need_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(*_: object) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: Success (0)")

    monkeypatch.setenv("PFL_WORKERS", "2")
    for name in ("_share_filename_cpu_", "_share_fd_cpu_"):
        monkeypatch.setattr(torch.UntypedStorage, name, full)
    pooled, alone = (run(method("fedavg"), backbone("convnet"), executor=name) for name in ("pooled", "sequential"))
    assert result_bytes(pooled) == result_bytes(alone)


def test_folders_that_are_called_specs_are_not_all_studies(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "below/deep").mkdir(parents=True)
    assert Workspace.find(tmp_path).root == tmp_path
    with pytest.raises(UserError, match="neither here nor above"):
        Workspace.find(tmp_path / "below/deep")
    (tmp_path / ".pfl").mkdir()
    assert Workspace.find(tmp_path / "below/deep").root == tmp_path
    (tmp_path / "below/pyproject.toml").write_text("[tool.pfl]\n")
    assert Workspace.find(tmp_path / "below/deep").root == tmp_path / "below"


def test_a_full_disk_is_a_line_with_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(error: Exception) -> None:
        with atomic_path(tmp_path / "out.parquet"):
            raise error

    for error in (  # pyarrow's and safetensors'
        OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ):
        outcome, message = attempt(lambda error=error: write(error))  # type: ignore[misc]
        assert (outcome, message) == ("failed", f"{tmp_path}/out.parquet: No space left on device")
        assert capsys.readouterr().out == f"pfl: {message}\n" and not list(tmp_path.iterdir())

    def full() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("pipeline.cli.commands.app", full)
    with pytest.raises(SystemExit) as end:
        cli._call()
    assert end.value.code == 2
    assert capsys.readouterr().err == "pfl: DVC's own database of files: disk I/O error; is the disk full?\n"
