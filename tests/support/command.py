"""The command line in this process, for tests that need no process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import cli

Pfl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pfl(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Pfl:
    """Call `pfl` with some words in a folder; return its exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")

    def call(folder: Path, *words: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["pfl", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capfd.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return call
