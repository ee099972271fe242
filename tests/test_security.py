"""SECURITY.md: each promise names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_promise_names_a_test_that_exists() -> None:
    promises = [line for line in TEXT.splitlines() if line.startswith("- ")]
    assert len(promises) > 20 and all("::test_" in line for line in promises)
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TEXT):
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test
