"""What `make test` leaves out is combinations only; each promise of SECURITY.md names a test that exists."""

import re
from pathlib import Path

from support.cohorts import PAIRS, QUICK

from pflcore.backbones import BACKBONES
from pflcore.methods import METHODS

ROOT = Path(__file__).parents[1]


def test_every_method_and_every_backbone_is_tried():
    methods, backbones = (set(names) for names in zip(*QUICK, strict=True))
    # Detectors have tests of their own, which try each with every method.
    classify = {name for name in BACKBONES.names() if BACKBONES.get(name).predicts == "classes"}
    assert methods == set(METHODS.names()) and backbones >= classify and len(classify) == len(BACKBONES.names()) - 1
    assert len(QUICK) < len(PAIRS) / 2


def test_every_promise_names_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    promises = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(promises) > 20 and all("::test_" in line for line in promises)
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text):
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), test
