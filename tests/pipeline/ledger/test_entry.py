from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.report_demo import RECORD

from pflcore.errors import UserError
from pipeline.ledger.entry import _HEAD, FACTS, Entry, _digest, read_entry
from pipeline.ledger.ledger import Ledger, difference, trusted
from pipeline.spec.run import Run

LINES = "test samples: 8 12\nround 2, accuracy 55.00, loss 1.75: 3 8\n"


@pytest.fixture
def entry() -> Entry:
    run = Run({**RECORD, "training": {"rounds": 2, "lr": 0.1}})
    facts = {name: 3 if kind is int else "cpu" for name, kind in FACTS.items()} | {
        "diverged": {"round": 3, "client": 0},
        "chosen": None,
    }
    return Entry(run, {"engine": "abc", "method.fedavg": "123e4567"}, "2026-11-22", 12.5, facts, LINES)


def test_written_and_read_back(entry: Entry, tmp_path: Path) -> None:
    path = tmp_path / f"{entry.run.id}.yaml"
    entry.write(path)
    assert read_entry(path) == entry
    assert path.read_text(encoding="utf-8").endswith(LINES)


def test_digests_stay_as_they_are() -> None:
    """Or all that has been kept would be refused."""
    assert _digest("a") == "ca978112ca1bbdca"


def test_an_edit_is_noticed(entry: Entry, tmp_path: Path) -> None:
    path = tmp_path / f"{entry.run.id}.yaml"
    entry.write(path)
    text = path.read_text(encoding="utf-8")
    for before, after in (("3 8", "3 9"), ("12.5", "12.6"), ("lr: 0.1", "lr: 0.2"), (LINES, "")):
        assert text.count(before) == 1
        path.write_text(text.replace(before, after), encoding="utf-8")
        with pytest.raises(UserError, match="edited by hand, or cut"):
            read_entry(path)


def test_what_is_no_entry(entry: Entry, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    entry.write(other)
    with pytest.raises(UserError, match=f"its settings are those of {entry.run.id}; rename it"):
        read_entry(other)
    worse: list[dict[str, Any]] = [
        {"facts": {}},
        {"facts": entry.facts | {"macs": "many"}},
        {"obtained": "<b>today</b>"},
    ]
    for change in [*worse, {"facts": entry.facts | {"positions": True}}, {"facts": entry.facts | {"device": None}}]:
        replace(entry, **change).write(other)
        with pytest.raises(UserError, match="not a kept result"):
            read_entry(other)
    other.write_text(f"{_HEAD}digest: {_digest('a: [1')}\na: [1", encoding="utf-8")
    with pytest.raises(UserError, match=r"^[^\n]*not a kept result \(ValueError: while parsing [^\n]*$"):
        read_entry(other)
    with pytest.raises(UserError, match="cannot be read"):
        read_entry(tmp_path / "none.yaml")
    endless = tmp_path / "endless.yaml"
    endless.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="not a file"):
        read_entry(endless)
    other.write_bytes(b"a" * 5_000_000)
    with pytest.raises(UserError, match="larger than any kept result"):
        read_entry(other)


def test_only_what_the_code_would_give_now_is_found(entry: Entry, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.find(entry.run, entry.made_by) is None
    entry.write(ledger.path(entry.run))
    assert ledger.find(entry.run, entry.made_by) == entry
    later = {**entry.made_by, "engine": "abd", "backbone.convnet": "7"}
    assert ledger.find(entry.run, later) is None
    assert difference(entry, later) == "made by other code: engine, backbone.convnet"
    assert ledger.paths() == [ledger.path(entry.run)]


def test_what_cannot_be_trusted_says_why(entry: Entry, tmp_path: Path) -> None:
    path = Ledger(tmp_path).path(entry.run)
    assert "cannot be read" in str(trusted(path))
    entry.write(path)
    assert trusted(path) == entry


@pytest.mark.parametrize("what", ["folder", "/dev/zero", "/nowhere"])
def test_what_lies_in_the_place_of_a_kept_result_is_told(what: str, entry: Entry, tmp_path: Path) -> None:
    path = Ledger(tmp_path).path(entry.run)
    path.parent.mkdir(parents=True)
    if what == "folder":
        path.mkdir()
    else:
        path.symlink_to(what)
    with pytest.raises(UserError, match=r"not a file; move it away|cannot be read"):
        Ledger(tmp_path).find(entry.run, entry.made_by)
