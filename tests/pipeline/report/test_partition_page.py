"""The page of a partition and its drawing in a terminal, on clients whose numbers are worked out by hand."""

import dataclasses
import re
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support.pages import squeezed
from support.project import tree
from support.toy_samples import make_samples

from pflcore.data.assignment import Assignment
from pflcore.data.noise import Noise
from pflcore.data.samples import Attribute
from pipeline.browse.partition_view import Drawing
from pipeline.report.partitions import write_partition_page

RECORD = {"dataset": {"name": "toy"}, "partition": {"name": "by_hand", "alpha": 0.5}, "clients": 2, "seed": 0}
# Two classes; client 0 has 3 + 1 of them for training and 0 + 1 for test, client 1 has 0 + 4 and 0 + 1.
HELD = Assignment([np.arange(4), np.arange(4, 8)], [np.array([8]), np.array([9])], "by hand", 0)
SAMPLES = dataclasses.replace(
    make_samples(8, 3, 2),
    labels=np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0]),
    train=np.arange(11) < 8,
    attributes={"domain": Attribute(np.arange(11) % 2, ("Art & <b>", "Real $x$"))},
    class_names=("<script>alert(1)</script>", "a|b \x0b$x$ _y_"),
)


def test_the_page_in_its_formats(tmp_path):
    for name in "ab":
        write_partition_page(RECORD, SAMPLES, HELD, tmp_path / name)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    table = pd.read_csv(tmp_path / "a/clients.csv")
    assert table[["train", "test", "classes"]].to_numpy().tolist() == [[4, 1, 2], [4, 1, 1]]
    # Labels are 3 : 1 and 0 : 4, of all clients 3 : 5; either is tested on class 1 alone.
    distances = table[["entropy", "distance", "split distance"]].to_numpy()
    assert distances == pytest.approx(np.array([[0.811278, 0.375, 0.75], [0, 0.375, 0]]))
    lines = squeezed((tmp_path / "a/index.md").read_text(encoding="utf-8"))
    assert {"# by\\_hand on toy, 2 clients, seed 0", "- partition: by\\_hand (alpha 0.5)"} <= set(lines)
    assert "- samples: 10 held, 1 left out" in lines
    assert any(line.startswith("![Heat map of 2 clients against 2 classes of toy") for line in lines)
    assert "| 'a\\|b \\\\x0b\\$x\\$ \\_y\\_' | 2 | 5 | 2 |" in lines  # class 1, legible and inert
    html = (tmp_path / "a/index.html").read_text(encoding="utf-8")
    assert 'role="img" aria-label="Heat map of 2 clients' in html and "<svg" in html
    assert "<script" not in html and "&lt;script&gt;" in html and not re.search(r'(?:src|href)="(?!#|data:)', html)


def drawn(drawing):
    buffer = StringIO()
    drawing.show(Console(file=buffer, width=120))
    return buffer.getvalue()


def test_the_drawing_in_a_terminal():
    text = drawn(Drawing(RECORD, SAMPLES, HELD))
    assert re.search(r"\n\s+0\s+▓░\s+█{20} 4", text) and re.search(r"\n\s+1\s+ █\s+█{20} 4", text), text
    assert "clients per class: 1 to 2; samples left out: 1\n" in text
    domain = Attribute(np.array([0] * 4 + [1] * 4 + [0, 1, 0]), ("A", "B"))
    held = dataclasses.replace(HELD, noise=Noise((0.0, 5.0), False, 0), novel=(1,))
    text = drawn(Drawing(RECORD, dataclasses.replace(SAMPLES, attributes={"domain": domain}), held))
    assert re.search(r"\n\s*1\*\s.*\sB\s+5\.0", text), text
