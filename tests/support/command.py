"""The command line in this process, for tests that need no process of its own."""

import sys
from collections.abc import Callable

import pytest

from pipeline import cli

Pfl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pfl(monkeypatch, capfd) -> Pfl:
    """Call `pfl` with some words in a folder; return its exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")

    def call(folder, *words):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["pfl", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capfd.readouterr()

    return call
