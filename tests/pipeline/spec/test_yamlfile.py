"""Scalars, positions and limits of the YAML subset. What is refused is in test_malformed.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.spec import yamlfile
from pipeline.spec.yamlfile import MAX_NODES, Mark, dotted, load_yaml, parse_yaml, show


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("0.1", 0.1),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("no", "no"),
        ("True", "True"),
        ("007", "007"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("''", ""),
        ("=", "="),
        ("FedAvg-T", "FedAvg-T"),
        ("Δ×", "Δ×"),
    ],
)
@pytest.mark.parametrize("loader", [yamlfile._LOADER, yaml.SafeLoader])
def test_scalars(text: str, value: Any, loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlfile, "_LOADER", loader)
    found = parse_yaml(f"key: {text}\n", "a.yaml").data["key"]
    assert found == value
    assert type(found) is type(value)


def test_keys_become_text() -> None:
    assert parse_yaml("50: a\ntrue: b\n1.0: c\n", "a.yaml").data == {
        "50": "a",
        "true": "b",
        "1.0": "c",
    }


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    text = "title: t\nshared: &s\n  lr: 1\ngrid:\n  copy: *s\n  list:\n    - 1\n    - {a: 2}\n"
    (tmp_path / "a.yaml").write_text("\ufeff" + text, encoding="utf-8")
    document = load_yaml(tmp_path / "a.yaml", "specs/a.yaml")
    assert document.data["grid"] == {"copy": {"lr": 1}, "list": [1, {"a": 2}]}
    lines = {dotted(address): mark.line for address, mark in document.marks.items()}
    assert lines == {
        "": 1,
        "title": 1,
        "shared": 2,
        "shared.lr": 3,
        "grid": 4,
        "grid.copy": 5,
        "grid.copy.lr": 3,  # where it is written
        "grid.list": 6,
        "grid.list[0]": 7,
        "grid.list[1]": 8,
        "grid.list[1].a": 8,
    }
    assert document.mark(("grid", "list", 1, "missing", 0)) == Mark("specs/a.yaml", 8)
    assert str(document.error(("grid", "copy", "lr"), "bad")) == "specs/a.yaml:3: grid.copy.lr: bad"


def test_a_repeated_value_is_not_shared() -> None:
    data = parse_yaml("a: &a {x: 1}\nb: *a\n", "a.yaml").data
    data["a"]["x"] = 2
    assert data["b"] == {"x": 1}


def test_as_many_values_as_allowed() -> None:
    text = "a:\n" + "- 1\n" * (MAX_NODES - 2)
    assert len(parse_yaml(text, "a.yaml").data["a"]) == MAX_NODES - 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "null"),
        ("None", "'None'"),
        ("a\nb", r"'a\nb'"),
        (1.0, "1.0"),
        ("x" * 80, f"'{'x' * 56}..."),
    ],
)
def test_values_in_messages(value: Any, text: str) -> None:
    assert show(value) == text
