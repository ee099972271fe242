"""Conditions in specs, in what runs leave behind, and in what is kept of it."""

import numpy as np
from support import report_demo as rd
from support.fake_catalog import BASE, resolved
from support.rounds import rounds_table

from pflcore.artifacts import read_table, write_table
from pflcore.protocols import curve, final_clients
from pipeline.measurements import from_table, to_table
from pipeline.report.legend import legend
from pipeline.spec.run import Run
from pipeline.study.small_run import SEQUENTIAL, UNEVEN, SmallRun, fixed_environment, perform
from pipeline.workspace import run_path


def spec(*conditions):
    return f"grid:\n  base: {BASE}\n  axes:\n    condition: {{{', '.join(conditions)}}}\n"


def test_a_condition_is_part_of_a_run_and_none_is_not(tmp_path):
    text = spec("calm: none", "bad: storm", "worse: {name: storm, force: 0.9, clients: 9}")
    calm, bad, worse = resolved(tmp_path / "a", text).runs
    (plain,) = resolved(tmp_path / "b", f"grid:\n  base: {BASE}\n").runs
    assert calm == plain and "condition" not in plain.record and plain.condition == ""
    assert bad.record == {**plain.record, "condition": {"name": "storm", "force": 0.5}} and bad.id != plain.id
    assert (worse.clients, worse.options("condition")) == (9, {"force": 0.9})
    assert all(run.federation_id == plain.federation_id for run in (calm, bad))
    small = resolved(tmp_path / "c", spec("calm: none", "bad: storm"), "smoke").runs
    assert [run.condition for run in small] == ["", "storm"]


def test_attackers_are_measured_apart_and_kept_so(tmp_path):
    attack = {"name": "attack", "share": 0.4}
    partition = {**UNEVEN, "validation_share": 0.3, "novel_share": 0.2}
    small = SmallRun("attacked", {"name": "fedper"}, partition=partition, clients=6, condition=attack)
    with fixed_environment():
        table, meta = read_table(perform(small, SEQUENTIAL, tmp_path) / "rounds.parquet", "rounds/2")
    rows = table.to_pandas()
    of = {name: sorted(set(own["client"])) for name, own in rows.groupby("population", observed=True)}
    assert len(of["novel"]) == 1 and len(of["attacker"]) == 2 and of["test"] == of["validation"]
    assert sorted([*of["test"], *of["novel"], *of["attacker"]]) == [0, 1, 2, 3, 4, 5]
    benign = rows[rows["population"] == "test"].groupby("round")[["correct", "total"]].sum()
    np.testing.assert_allclose(curve(table)[1], 100 * benign["correct"] / benign["total"])
    assert final_clients(table)["client"].to_pylist() == of["test"]
    again = to_table(from_table(table, meta["positions"])).to_pandas()
    named = ["round", "client", "population", "correct", "total"]
    before, after = (sorted(map(tuple, one[named].astype(str).to_numpy())) for one in (rows, again))
    assert before == after and "epsilon" not in meta
    assert Run(small.run.record).condition == "attack"


def test_a_report_says_of_attackers_and_of_privacy(tmp_path):
    conditions = {"a": {}, "b": {"condition": {"name": "attack", "share": 0.2}}}
    conditions |= {name: {"condition": {"name": "privacy", "delta": 1e-4}} for name in ("c", "d")}
    cells = [rd.cell({"condition": name}, [name]) for name in conditions]
    records = {name: {**rd.RECORD, **own} for name, own in conditions.items()}
    one = rd.with_records(tmp_path, rd.table(cells, ["condition"], []), records)
    plain = legend(rd.results_of(rd.changed(one, cells=cells[:1], runs={"a": one.runs["a"]}), tmp_path))
    assert "attackers" not in plain and "private" not in plain
    for name, epsilon in (("c", 2.0), ("d", 12.345)):
        path = tmp_path / run_path(name, "rounds.parquet")
        write_table(path, rounds_table([(100, 0, 3, 4, 0.5)]), "rounds/2", run=name, diverged=None, epsilon=epsilon)
    rd.write_run(tmp_path, "b", 50)
    text = legend(rd.results_of(one, tmp_path))
    assert "Of runs with attackers the other clients alone are measured." in text
    assert "differentially private for a client with ε = 2 to 12.3 at δ = 0.0001" in text
