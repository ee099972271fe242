"""Files that were made to harm whoever reads them: every loader refuses them in a line, in bounded memory and time."""

from __future__ import annotations

import sys

import pytest
from support.loaders import LOADERS
from support.trials import trials

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc")


@pytest.mark.parametrize("loader", LOADERS)
def test_what_has_no_end(loader: str) -> None:
    hole = "5 GiB of a hole after it"
    for file in ["a pipe", *([hole] if loader != "a checkpoint" else [])]:  # of which it would compute the hash
        (found,) = trials([loader], file)
        assert not found.fault


@pytest.mark.matrix
@pytest.mark.parametrize("loader", LOADERS)
def test_every_file(loader: str) -> None:
    found = list(trials([loader], ""))
    assert len(found) > 18 and {one.file: one.fault for one in found if one.fault} == {}
