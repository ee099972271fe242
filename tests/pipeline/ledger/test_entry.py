from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.project import make_project

from pflcore.errors import UserError
from pipeline.ledger.entry import FACTS, Entry, read_entry
from pipeline.ledger.ledger import Ledger, difference

LINES = "test samples: 8 12\nround 2, accuracy 55.00, loss 1.75: 3 8\n"


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    run = next(iter(make_project(tmp_path / "project").compiled().runs.values()))
    facts = dict.fromkeys(FACTS, None) | {"device": "cpu", "positions": 1, "diverged": {"round": 3, "client": 0}}
    return Entry(run, {"engine": "abc", "method.fedavg": "123e4567"}, "2026-11-22", 12.5, facts, LINES)


def test_written_and_read_back(entry: Entry, tmp_path: Path) -> None:
    path = tmp_path / f"{entry.run.id}.yaml"
    entry.write(path)
    assert read_entry(path) == entry
    assert path.read_text(encoding="utf-8").endswith(LINES)


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
    replace(entry, facts={}).write(other)
    with pytest.raises(UserError, match="not a kept result"):
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
