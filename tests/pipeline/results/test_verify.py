"""`pfl verify`: how a kept run is compared with the same run trained again."""

from types import SimpleNamespace

import pytest
from support import report_demo
from support.mistakes import line_of, refuses
from support.report_demo import RECORD, cell

from pflcore.artifacts import write_table
from pipeline.ledger import Entry, Ledger
from pipeline.measurements import to_table
from pipeline.results import verify as module
from pipeline.results.verify import compare, verify
from pipeline.running.options import RunOptions
from pipeline.spec.run import Run
from pipeline.workspace import Workspace, run_path

# Trained again: the same, every count; or, on another kind of machine, a cell that differs by chance.

HERE = {**report_demo.KEPT, "torch": "2.11", "positions": 1}
SAME, DIFFERS = ("the same, every count", True), ("DIFFERS, on the same kind of machine", False)
AGREES = "the cell agrees, on another kind of machine (kept: a processor)"


def counts(last, first, total):
    return {"total": [*total], "round": [2, 4], "loss": [1.0, 1.0], "correct": [[*first], [*last]]}


def measured(*last, first=(5, 15), total=(10, 30)):
    return {"novel": [], "test": counts(last, first, total)}


KEPT = measured(6, 18)


def entry(measurements, run=None, machine="a processor", **facts):
    return Entry(run or Run(RECORD), {"engine": "1"}, "2026-11-22", None, HERE | facts, measurements, machine)


def compared(kept, found, **facts):
    (made,) = compare("a cell", [entry(kept)], [entry(found, **facts)])
    return made.kept, made.repeated, made.verdict, made.agrees


def test_every_count_has_to_agree_on_the_same_kind_of_machine():
    assert compared(KEPT, KEPT) == (55.0, 55.0, *SAME)
    more_clients = measured(6, 18, 1, total=(10, 30, 2), first=(5, 15, 1))
    for other in (measured(7, 17), measured(6, 18, first=(5, 16)), more_clients):
        assert compared(KEPT, other)[2:] == DIFFERS
    # Losses are not kept of single clients; validation samples are compared, and not counted.
    assert compared(KEPT, {**KEPT, "test": {**KEPT["test"], "loss": [2.0, 3.0]}})[2:] == SAME
    kept, other = ({**KEPT, "validation": counts(last, (1, 2), (4, 4))} for last in ((3, 4), (0, 0)))
    assert compared(kept, other) == (55.0, 55.0, *DIFFERS)
    # Of further views counts are compared, and not metrics.
    views = {"client": [0], "correct": [3], "loss": [0.5], "auc": [0.7]}
    for change, verdict in (({"loss": [0.6], "auc": [None]}, SAME), ({"correct": [2]}, DIFFERS)):
        assert compared({**KEPT, "views": views}, {**KEPT, "views": views | change})[2:] == verdict
    assert compared({}, {})[2:] == SAME  # a run may never have been measured
    for data in ("dataset", "partition"):
        assert compared(KEPT, KEPT, **{f"{data}_hash": "e"})[2:] == (f"made on other data ({data})", False)


def test_on_other_machines_a_cell_may_differ_by_chance():
    for last, first, now, verdict in (
        # Of the kept run 50 and 60 %: deviation 5 points. Clients differ by 0 and -5/3 points, three errors are 1.33.
        ((6, 18), (5, 14), 53.75, AGREES),
        ((6, 16), (5, 14), 51.25, AGREES),  # by 0 and -5, the mean by -3.75; three errors are 3.98
        ((6, 21), (6, 15), 60.0, "the cell DIFFERS by 5.00 points, more than 0.50"),  # each client by 5
    ):
        for change in ({"device": "cuda"}, {"torch": "2.12"}, {"machine": "another processor"}):
            found = compared(KEPT, measured(*last, first=first), **change)
            assert found == (55.0, pytest.approx(now), verdict, verdict == AGREES)
    # Seeds of a cell say how much it varies: each run differs by up to 10 points, and the mean of three by 0.
    kept = [entry(measured(*own, first=own)) for own in ((6, 18), (8, 24), (7, 21))]
    now = [measured(8, 24, first=(8, 24)), measured(6, 18, first=(6, 18)), measured(7, 20, first=(7, 22))]
    again = [entry(one, device="cuda") for one in now]
    assert [one.verdict for one in compare("a cell", kept, again)] == [AGREES] * 3
    assert "DIFFERS by 20.00 points" in compare("a cell", kept[:1], again[:1])[0].verdict
    # Half a point is never too much.
    before, near, far = (measured(right, total=(200,), first=(right,)) for right in (100, 101, 102))
    assert compared(before, near, device="cuda")[3] and not compared(before, far, device="cuda")[3]


def test_which_cells_are_trained_again(tmp_path, monkeypatch):
    """A spec of four cells, of which two are kept and one in part; training is pretended."""
    workspace, asked, failed = Workspace(tmp_path, tmp_path, "paper"), [], [0]
    runs = [Run({**RECORD, "seed": seed}) for seed in range(4)]
    in_table = {"A": runs[:2], "B": runs[2:3], "C": runs[2:], "D": []}
    cells = [cell({"method": name, "setting": "*"}, [run.id for run in own]) for name, own in in_table.items()]
    Ledger(tmp_path).write("tiny", [entry(KEPT, run) for run in runs[:3]], {})
    kept, by_id = {run.id for run in runs[:3]}, {run.id: run for run in runs}
    compilation = SimpleNamespace(table=lambda spec: SimpleNamespace(cells=cells), kept=kept, runs=by_id)

    def train(scratch, options):
        asked.append(options)
        assert scratch.root == tmp_path / "build/verify" and scratch.home == tmp_path
        for run in runs:
            write_table(scratch.root / run_path(run.id, "rounds.parquet"), to_table(KEPT), "rounds/2", **HERE)
        return failed[0]

    monkeypatch.setattr(module, "compile_workspace", lambda *_: compilation)
    monkeypatch.setattr(module, "run_specs", train)
    before = [tmp_path / "build/verify" / name for name in ("artifacts/a", ".pfl/states/a", ".pfl/checkpoints/a")]
    for path in before:
        path.parent.mkdir(parents=True)
        path.write_text("of the last time")
    found = verify(workspace, "tiny", 1, ["B, *", "A, *", "C, *"])
    expected = [("A, *", runs[0]), ("A, *", runs[1]), ("B, *", runs[2]), ("C, *", runs[2])]
    assert [(one.cell, one.run, one.agrees) for one in found] == [(name, run.id, True) for name, run in expected]
    assert asked == [  # of C only the seed that is kept
        RunOptions(("tiny",), cells=("A, *",), seeds=(0, 1)),
        RunOptions(("tiny",), cells=("B, *", "C, *"), seeds=(2,)),
    ]
    assert [path.exists() for path in before] == [False, False, True], "so that it can be resumed"
    assert [len({one.cell for one in verify(workspace, "tiny", cells, [])}) for cells in (1, 9)] == [1, 3]
    refuses(r"^no kept cell 'D, \*' .*did you mean '[ABC], \*'\?$", verify, workspace, "tiny", 1, ["D, *"])
    failed[0] = 1
    assert line_of(verify, workspace, "tiny", 1, []) == "tiny: a run failed; see above"
    compilation.kept = set()
    assert line_of(verify, workspace, "tiny", 1, []).startswith("tiny: none of its cells is kept and current")
