"""Each promise of SECURITY.md names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_promise_names_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    promises = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(promises) > 20 and all("::test_" in line for line in promises)
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text):
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), test
