"""What `benchmarks/mutants.py` plants is still there to be changed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks/mutants.py"
_SPEC = importlib.util.spec_from_file_location("mutants", SCRIPT)
assert _SPEC and _SPEC.loader
mutants = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(mutants)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: str(mutant[0]))
def test_a_mistake_can_be_planted(mutant: tuple[str, str, str, str]) -> None:
    _, name, before, after = mutant
    assert (SCRIPT.parents[1] / name).read_text(encoding="utf-8").count(before) == 1 and before != after
