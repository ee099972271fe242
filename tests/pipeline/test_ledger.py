"""Kept results as lines of a file: written, found again by versions, refused when they were edited."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.mistakes import line_of
from support.report_demo import KEPT, RECORD
from support.rounds import rounds_table

from pflcore.errors import UserError
from pflcore.protocols import curve, final_clients, summarise
from pflcore.settings import Evaluation, View
from pipeline.ledger import FACTS, Entry, Ledger, difference
from pipeline.measurements import from_table, to_table
from pipeline.spec.run import Run

NAMES = ("round", "client", "population", "correct", "total", "last_correct")
# Three clients, the last of them novel; the other two hold samples back. Texts of four characters each.
ROWS = [
    (2, 0, "test", 3, 8, 2.5, 1), (2, 1, "test", 8, 12, 1.25, 2), (2, 2, "novel", 5, 20, 0.5, 1),
    (2, 0, "validation", 1, 4, 1.0, 1), (2, 1, "validation", 2, 6, 2.0, 0),
    (5, 0, "test", 4, 8, 0.1, 0), (5, 1, "test", 11, 12, 1 / 3, 3), (5, 2, "novel", 0, 20, 7.0, 0),
    (5, 0, "validation", 4, 4, 0.5, 1), (5, 1, "validation", 5, 6, 0.5, 1),
]  # fmt: skip
TESTED = [row for row in ROWS if row[2] != "validation"]
# Losses over the two clients that are not novel: (8 * 2.5 + 12 * 1.25) / 20 and (4 * 1 + 6 * 2) / 10 at first.
TEST = {"total": [8, 12, 20], "round": [2, 5], "loss": [1.75, 0.24], "correct": [[3, 8, 5], [4, 11, 0]]}
VALIDATION = {"total": [4, 6], "round": [2, 5], "loss": [1.6, 0.5], "correct": [[1, 2], [4, 5]]}
LAST = [[1, 2, 1], [0, 3, 0]]
VERSIONS = {"engine": "2", "method.fedavg": "1"}


def measured(rows: list) -> pa.Table:
    _, _, populations, *_, last = zip(*rows, strict=True)
    return rounds_table([(*row[:2], *row[3:6]) for row in rows], populations, last=last, positions=4)


def test_measurements_are_counts_by_round_and_every_figure_survives() -> None:
    assert from_table(measured(TESTED), 4) == {"novel": [2], "test": {**TEST, "last": LAST}}
    assert from_table(measured(ROWS), 1) == {"novel": [2], "test": TEST, "validation": VALIDATION}
    assert from_table(measured(ROWS).slice(0, 0), 1) == {} and len(to_table({})) == 0
    for rows in (TESTED, ROWS):
        before = measured(rows)
        after = to_table(from_table(before, 4)).replace_schema_metadata(before.schema.metadata)
        for name in NAMES:
            assert after[name].to_pylist() == before[name].to_pylist()
        schedule = Evaluation(every=3, window=3, curve_every=0)
        assert summarise(after, schedule, 5) == summarise(before, schedule, 5)
        assert final_clients(after).drop_columns("loss").equals(final_clients(before).drop_columns("loss"))
        assert np.allclose(curve(after), curve(before))
    train = [0.5, 0.25, None, 0.5, 0.25, 0.125, None, None, 0.125, None]
    kept = from_table(measured(ROWS).append_column("train_loss", pa.array(train)), 1)
    assert kept["test"]["train_loss"] == [0.375, 0.125]
    assert to_table(kept)["train_loss"].to_pylist() == [0.375] * 5 + [0.125] * 5
    first, last = TESTED[:3], TESTED[3:]
    for wrong in ([*last[:2], (5, 2, "novel", 0, 21, 7.0, 0)], [*last[:2], last[1]], [last[1], last[0], last[2]]):
        with pytest.raises(UserError, match="not all of its clients were measured in every round, on the same samples"):
            from_table(measured([*first, *wrong]), 4)


def test_metrics_and_further_views_are_kept() -> None:
    usual = measured(ROWS).append_column("auc", pa.array([0.25, None, 1 / 3, *[0.5] * 7]))
    further = measured(TESTED[:2]).append_column("auc", pa.array([0.75, 0.125]))
    parts = [
        one.append_column("model", pa.array([model] * len(one))).replace_schema_metadata(None)
        for one, model in ((usual.slice(0, 5), "personal"), (further, "global"), (usual.slice(5), "personal"))
    ]
    before = pa.concat_tables(parts)
    kept = from_table(before, 4)
    after = to_table(json.loads(json.dumps(kept, allow_nan=False)))
    assert kept["metrics"]["auc"][:3] == [0.25, None, 0.3333333] and kept["views"]["correct"] == [3, 8]
    for name in (*NAMES, "model"):
        assert after[name].to_pylist() == before[name].to_pylist()
    schedule = Evaluation(window=0, curve_every=3)
    for view in (View(), View("global")):
        old, new = (summarise(one, schedule, 5 if view == View() else 2, view) for one in (before, after))
        assert old.keys() == new.keys() and "clients.auc" in old
        assert [one["mean"] for one in new.values()] == pytest.approx([one["mean"] for one in old.values()], rel=1e-6)


@pytest.fixture
def entry() -> Entry:
    run = Run({**RECORD, "training": {"rounds": 2, "lr": 0.1}})
    facts = {**KEPT, "diverged": {"round": 3, "client": 0}, "epsilon": 2.5}
    return Entry(run, VERSIONS, "2026-11-22", 12.5, facts, from_table(measured(TESTED), 4))


def test_written_found_and_dropped(entry: Entry, tmp_path: Path) -> None:
    other, trials = replace(entry, run=Run({**entry.run.record, "seed": 7})), {"trials": [{"mean": 81.5}]}
    ledger = Ledger(tmp_path)
    assert ledger.find(entry.run, VERSIONS) is None
    assert ledger.write("a/table", [entry], {"choice": (VERSIONS, trials)}) == tmp_path / "results/a/table.jsonl"
    ledger.write("b", [other], {})
    for one in (ledger, Ledger(tmp_path)):
        assert {kept.run.id: kept for kept in one.entries()} == {entry.run.id: entry, other.run.id: other}
        assert one.find(other.run, VERSIONS) == other and one.selection("choice", VERSIONS) == trials
        assert one.path(entry.run.id) == one.path("choice") == "results/a/table.jsonl" and one.path("none") is None
        assert one.get("choice") is None and one.selection(entry.run.id) is None
    later = {**VERSIONS, "method.fedavg": "2", "backbone.convnet": "1"}
    assert ledger.find(entry.run, later) is None and ledger.selection("choice", later) is None
    assert ledger.get(entry.run.id) == entry and ledger.selection("choice") == trials
    assert difference(VERSIONS, later) == "made by other versions: method.fedavg (1 → 2), backbone.convnet (none → 1)"
    assert difference(VERSIONS, VERSIONS) == ""
    newer = replace(other, seconds=99.0)
    ledger.write("c", [newer], {})  # stays in its file
    assert Ledger(tmp_path).get(other.run.id) == newer and len(Ledger(tmp_path).files()) == 2
    (tmp_path / "results/merged.jsonl").write_bytes((tmp_path / "results/b.jsonl").read_bytes())
    assert ledger.drop([other.run.id, "none"]) == 1 and [path.name for path in ledger.files()] == ["table.jsonl"]


def refused(root: Path) -> str:
    return line_of(lambda: Ledger(root).entries()[0].rounds())


def test_an_edit_and_what_is_no_entry_are_noticed(entry: Entry, tmp_path: Path) -> None:
    path = Ledger(tmp_path).write("a", [entry], {})
    text = path.read_text(encoding="utf-8")
    line = json.loads(text)
    assert list(line) == ["run", "digest", "obtained", "seconds", "made_by", "facts", "settings", "measurements"]
    assert line["run"] == entry.run.id and line["settings"] == entry.run.record and list(line["facts"]) == list(FACTS)
    for before, after in (("[3, 8, 5]", "[3, 9, 5]"), ("12.5", "12.6"), ('"lr": 0.1', '"lr": 1')):
        assert text.count(before) == 1
        path.write_text(text.replace(before, after), encoding="utf-8")
        assert refused(tmp_path).startswith(f"results/a.jsonl: {entry.run.id}: edited by hand, or cut")
    for line in ("{}", '{"digest": "a"}', "[" * 10**5):
        path.write_text(text + line, encoding="utf-8")
        assert refused(tmp_path).startswith("results/a.jsonl:2: not a kept result")
    for name in ("made_by", "facts", "settings", "measurements", "obtained"):  # edited together with the digest
        for wrong in (None, [1], {"test": 1}):
            content = {**json.loads(text), name: wrong}
            signed = {key: value for key, value in content.items() if key not in ("run", "digest")}
            content["digest"] = hashlib.sha256(json.dumps(signed, ensure_ascii=False).encode()).hexdigest()[:16]
            path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            if (name, wrong) not in (("made_by", {"test": 1}), ("facts", {"test": 1})):
                assert entry.run.id in refused(tmp_path) and "edited by hand, or cut" in refused(tmp_path)
    path.write_text(text.replace(entry.run.id, "another"), encoding="utf-8")
    assert f"another: its settings are those of {entry.run.id}" in refused(tmp_path)
