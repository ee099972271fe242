"""What `benchmarks/mutation.yaml` names is there: modules, their tests, and the lines of what is argued."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLAN = yaml.safe_load((ROOT / "benchmarks/mutation.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", PLAN["modules"])
def test_a_module_has_tests(module: str) -> None:
    assert (ROOT / module).is_file() and PLAN["modules"][module]
    for test in PLAN["modules"][module]:
        path, _, name = test.partition("::")
        name = name.partition("[")[0]  # of one of its cases
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8") if name else (ROOT / path).is_file(), test


@pytest.mark.parametrize(
    "argued", PLAN["argued"], ids=lambda argued: f"{argued['module']}: {argued.get('becomes', argued['line'])}"
)
def test_what_is_argued_can_be_planted(argued: dict[str, str]) -> None:
    lines = [line.strip() for line in (ROOT / argued["module"]).read_text(encoding="utf-8").splitlines()]
    assert argued["module"] in PLAN["modules"] and argued["line"] in lines and argued["why"]
    assert argued.get("becomes") != argued["line"]
