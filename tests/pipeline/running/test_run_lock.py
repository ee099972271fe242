"""Only one `pfl run` works in a workspace: a second one says who is at work, and begins when that one has ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path

import pytest

from pipeline.running.runner import _alone
from pipeline.workspace import Workspace


def test_a_second_run_waits_for_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    workspace = Workspace(tmp_path, tmp_path)

    def second() -> bool:
        with _alone(workspace) as waited:
            return waited

    with ThreadPoolExecutor(1) as pool:
        with _alone(workspace) as waited:
            assert not waited
            later = pool.submit(second)
            with pytest.raises(NotYet):
                later.result(timeout=0.5)
        assert later.result(timeout=60)
    assert capfd.readouterr().err == "another pfl run is at work here; waiting for its end, see `pfl status`\n"
    with _alone(workspace) as waited:
        assert not waited


def test_a_run_that_fails_lets_the_next_one_work(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, tmp_path)
    with pytest.raises(KeyError), _alone(workspace):
        raise KeyError
    with _alone(workspace) as waited:
        assert not waited
