"""What is shown of a partition: figures by hand, the page in its formats, the drawing on the terminal."""

from __future__ import annotations

import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support.toy_samples import make_samples

from pflcore.data.assignment import Assignment
from pflcore.data.heterogeneity import heterogeneity
from pflcore.data.noise import Noise
from pflcore.data.samples import Attribute, Samples
from pflcore.partitions import PARTITIONS
from pipeline.browse.partition_view import Drawing, example_record
from pipeline.report.partitions import write_partition_page
from pipeline.spec.catalog import build_catalog

CATALOG = build_catalog()


def small() -> tuple[Samples, Assignment]:
    """Two classes; client 0 has 3 + 1 of them for training and 0 + 1 for test, client 1 has 0 + 4 and 0 + 1."""
    samples = dataclasses.replace(
        make_samples(8, 3, 2),
        labels=np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0]),
        train=np.arange(11) < 8,
        attributes={"domain": Attribute(np.arange(11) % 2, ("Art & <b>", "Real $x$"))},
    )
    held = Assignment([np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7])], [np.array([8]), np.array([9])], "by hand", 0)
    return samples, held


def test_what_is_held_back_for_validation_is_shown(tmp_path: Path) -> None:
    samples, held = small()
    held = dataclasses.replace(held, train=[held.train[0][:3], held.train[1]], validation=[np.array([3]), np.array([])])
    held = dataclasses.replace(held, validation=[rows.astype(np.int64) for rows in held.validation])
    found = heterogeneity(samples, held)
    assert found.validation is not None and found.validation.tolist() == [[0, 1], [0, 0]] and found.used == 10
    write_partition_page(record(2), samples, held, tmp_path)
    rows = pd.read_csv(tmp_path / "clients.csv")
    assert rows[["train", "test", "validation"]].to_numpy().tolist() == [[3, 1, 1], [4, 1, 0]]
    assert "validation: samples held back" in (tmp_path / "index.md").read_text()
    assert ">validation<" in (tmp_path / "index.html").read_text()
    write_partition_page(record(2), *small(), tmp_path)
    assert "validation" not in (tmp_path / "index.md").read_text() + (tmp_path / "clients.csv").read_text()


def record(clients: int) -> dict[str, object]:
    return {"dataset": {"name": "toy"}, "partition": {"name": "by_hand", "alpha": 0.5}, "clients": clients, "seed": 0}


def test_figures_by_hand() -> None:
    found = heterogeneity(*small())
    assert found.train.tolist() == [[3, 1], [0, 4]] and found.test.tolist() == [[0, 1], [0, 1]]
    assert found.holders.tolist() == [1, 2] and found.used == 10
    assert found.entropy == pytest.approx([-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)), 0.0])
    assert found.distance == pytest.approx([0.75 - 3 / 8, 3 / 8])
    assert found.split_distance == pytest.approx([0.75, 0.0])
    assert found.attributes["domain"].tolist() == [[3, 2], [2, 3]]


def test_the_page_in_its_formats(tmp_path: Path) -> None:
    samples, held = small()
    write_partition_page(record(2), samples, held, tmp_path / "a")
    table = pd.read_csv(tmp_path / "a/clients.csv")
    assert table["train"].tolist() == [4, 4] and table["classes"].tolist() == [2, 1]
    assert table["entropy"].tolist() == pytest.approx([0.811278, 0])
    markdown = (tmp_path / "a/index.md").read_text(encoding="utf-8")
    assert "# by\\_hand on toy, 2 clients, seed 0" in markdown and "10 held, 1 left out" in markdown
    assert "by\\_hand (alpha 0.5)" in markdown and "![Heat map of 2 clients against 2 classes of toy" in markdown
    rows = [re.findall(r"[^| ]+", line) for line in markdown.splitlines() if line.startswith("| 0 ")]
    assert ["0", "1", "3", "0"] in rows or ["0", "1", "3", "1"] in rows  # class 0: one client, three training samples
    html = (tmp_path / "a/index.html").read_text(encoding="utf-8")
    assert 'role="img" aria-label="Heat map of 2 clients' in html and "<svg" in html
    loaded = re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']*)""", html)
    assert not loaded and "<script" not in html
    ET.fromstring((tmp_path / "a/picture.svg").read_text(encoding="utf-8"))
    write_partition_page(record(2), samples, held, tmp_path / "b")
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_characters_can_be_seen(tmp_path: Path) -> None:
    samples, held = small()
    text = dataclasses.replace(samples, class_names=(" ", "\x0b"))
    write_partition_page(record(2), text, held, tmp_path)
    for name in ("index.md", "index.html"):
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", (tmp_path / name).read_text(encoding="utf-8"))
    assert any("from ' ' to '\\x0b'" in line for line in drawn(text, held))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    samples, held = small()
    hostile = dataclasses.replace(samples, class_names=("<script>alert(1)</script>", "a|b $x$ _y_"))
    write_partition_page(record(2), hostile, held, tmp_path)
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "a\\|b \\$x\\$ \\_y\\_" in (tmp_path / "index.md").read_text(encoding="utf-8")


def drawn(samples: Samples, held: Assignment) -> list[str]:
    buffer = StringIO()
    Drawing(record(held.clients), samples, held).show(Console(file=buffer, width=120))
    return buffer.getvalue().splitlines()


def test_the_drawing_by_hand() -> None:
    lines = drawn(*small())
    assert any(re.match(r"\s+0\s+▓░\s+█{20} 4", line) for line in lines), lines
    assert any(re.match(r"\s+1\s+ █\s+█{20} 4", line) for line in lines), lines
    assert "clients per class: 1 to 2; samples left out: 1" in lines


def test_novel_clients_noise_and_pure_attributes_are_drawn() -> None:
    samples, held = small()
    domain = Attribute(np.array([0] * 4 + [1] * 4 + [0, 1, 0]), ("A", "B"))
    pure = dataclasses.replace(samples, attributes={"domain": domain})
    lines = drawn(pure, dataclasses.replace(held, noise=Noise((0.0, 5.0), False, 0), novel=(1,)))
    assert any(re.match(r"\s*1\*\s.*\sB\s+5\.0", line) for line in lines), lines


@pytest.mark.parametrize("name", PARTITIONS.names())
def test_every_partition_is_drawn_on_what_it_suggests(name: str, tmp_path: Path) -> None:
    shown = example_record(name, CATALOG, dataset=None, clients=None, seed=0, options=[])
    buffer = StringIO()
    Drawing.make(shown, tmp_path).show(Console(file=buffer, width=120))
    text = buffer.getvalue()
    assert "over clients" in text and "Drawn with generated labels" in text
