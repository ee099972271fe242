"""Whatever reads a file of others refuses one that never ends, or that is enormous, in a line, or does not see it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.loaders import LOADERS
from support.official import offline

from pflcore.errors import UserError


@pytest.mark.parametrize("loader", LOADERS)
def test_what_has_no_end(loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = LOADERS[loader]
    reader.prepare(monkeypatch)
    offline(monkeypatch)
    (tmp_path / "data").mkdir()
    path = reader.write(tmp_path / "data")
    for endless in (True, False):
        path.unlink()
        os.mkfifo(path) if endless else path.touch()
        if not endless:
            os.truncate(path, 5 * 2**30)  # a hole
        try:
            reader.read(path)
        except UserError as error:
            assert "\n" not in str(error)
