"""`pfl compare` of two tables, and `pfl verify`: how a kept run is compared with the same run trained again."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.command import pfl as pfl
from support.project import make_project, spec
from support.report_demo import RECORD, by_seed, cell, report, table

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pipeline.ledger import FACTS, Entry, Ledger
from pipeline.measurements import to_table
from pipeline.results import compare as tables
from pipeline.results import verify as module
from pipeline.results.verify import compare, verify
from pipeline.running.options import RunOptions
from pipeline.spec.run import Run
from pipeline.workspace import Workspace, run_path

FAR = [80.0, 81.0, 82.0, 80.0, 81.0, 82.0]
CELLS = {  # values by seed in the first table, in the second one, and what is said of the two
    "same": (FAR, FAR, tables.SAME),
    "differs": (FAR, [value - 9.0 + (-1) ** seed / 2 for seed, value in enumerate(FAR)], tables.BEYOND),
    "chance": (FAR, [81.2 + (-1) ** seed for seed in range(6)], tables.CHANCE),
    "one seed": ([80.0], [80.5], tables.ONE_SEED),
    "other seeds": ([80.0, 82.0, None, None], [None, None, 80.0, 82.0], tables.ONE_SEED),
    "never run": ([None], [70.25], tables.NOT_RUN),
    "first alone": (FAR, None, ""),
    "second alone": (None, FAR, ""),
}


def write(root, name, rows, **changes):
    """The report of a table of methods and settings, with values by seed."""
    report(by_seed(root, rows, spec=name, **changes), root, root / "reports" / name)


def test_cells_of_two_tables(tmp_path):
    workspace = Workspace(tmp_path, tmp_path, "paper")
    for at, name in enumerate(("a", "b/c")):
        rows = {label: {"x": own[at]} for label, own in CELLS.items() if own[at] is not None}
        write(tmp_path / name, name, rows, decimals=1)
        shutil.copytree(tmp_path / name / "reports", tmp_path / "reports", dirs_exist_ok=True)
    found = {one.labels.removesuffix(", x"): one for one in tables.compare(workspace, "a", "b/c")}
    assert {name: one.verdict for name, one in found.items()} == {name: own[2] for name, own in CELLS.items() if own[2]}
    numbers = [(one.first, one.second, one.difference) for one in (found["differs"], found["never run"])]
    assert numbers == [("81.0±0.8", "72.0±1.0", "\N{MINUS SIGN}9.0"), ("—", "70.2±0.0", "")]
    # They are matched on the axes that both tables have.
    write(tmp_path, "d", {"M": {"s": [80.0], "t": [80.5]}})
    write(tmp_path, "e", {"M": {"t": [81.0]}})
    write(tmp_path, "g", {"N": {"t": [82.0]}})
    report(table([cell({"method": "M"}, ["M-t-0"])], ["method"], [], spec="f"), tmp_path, tmp_path / "reports/f")
    (pair,) = tables.compare(workspace, "d", "e")
    assert (pair.labels, pair.first, pair.second, pair.difference) == ("M, t", "80.50±0.00", "81.00±0.00", "+0.50")
    assert [one.labels for one in tables.compare(workspace, "e", "f")] == ["M"]
    assert [one.second for one in tables.compare(workspace, "f", "d", {"setting": "t"})] == ["80.50±0.00"]
    with pytest.raises(UserError, match="no axis of these tables; did you mean 'setting'"):
        tables.compare(workspace, "f", "d", {"setings": "t"})
    for specs, line in {
        ("f", "d"): "d: several cells for M; choose one label of setting, .* --where setting=LABEL",
        ("f", "g"): "f and g have no cells with the same labels",
        ("f", "h"): "h: its report has not been made; type `pfl run h`",
    }.items():
        with pytest.raises(UserError, match=f"^{line}$"):
            tables.compare(workspace, *specs)


def test_the_command_shows_the_cells_that_differ(tmp_path, pfl):
    make_project(tmp_path, {f"specs/{name}.yaml": spec() for name in ("one/a", "one/b", "c")})
    for name, value in (("one/a", 70.0), ("c", 72.0)):
        write(tmp_path, name, {"x": {"s": [80.0]}, "y[z]": {"s": [value]}})
    code, out, _ = pfl(tmp_path, "compare", "one/a", "c")
    _, line, last = out.splitlines()
    assert (code, last) == (0, "2 cells: 1 the same, 1 fewer than two seeds")
    assert line.split()[:5] == ["y[z],", "s", "70.00±0.00", "72.00±0.00", "+2.00"]
    assert pfl(tmp_path, "compare", "c", "one")[::2] == (2, "pfl: pfl compare takes two specs, not a folder of them\n")


# Trained again: the same, every count; or, on another kind of machine, a cell that differs by chance.

HERE = {
    **{name: 3 if kind is int else "x" for name, kind in FACTS.items()},
    **{"device": "cpu", "torch": "2.11", "positions": 1, "diverged": None, "chosen": None, "epsilon": None},
}
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
    return made.kept, made.again, made.verdict, made.good


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
    Ledger(tmp_path).write("tiny", [replace(entry(KEPT), run=run) for run in runs[:3]], {})
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
    assert [(one.cell, one.run, one.good) for one in found] == [(name, run.id, True) for name, run in expected]
    assert asked == [  # of C only the seed that is kept
        RunOptions(("tiny",), cells=("A, *",), seeds=(0, 1)),
        RunOptions(("tiny",), cells=("B, *", "C, *"), seeds=(2,)),
    ]
    assert [path.exists() for path in before] == [False, False, True], "so that it can be resumed"
    assert [len({one.cell for one in verify(workspace, "tiny", cells, [])}) for cells in (1, 9)] == [1, 3]
    with pytest.raises(UserError, match=r"^no kept cell 'D, \*' .*did you mean '[ABC], \*'\?$"):
        verify(workspace, "tiny", 1, ["D, *"])
    failed[0] = 1
    with pytest.raises(UserError, match=r"^tiny: a run failed; see above$"):
        verify(workspace, "tiny", 1, [])
    compilation.kept = set()
    with pytest.raises(UserError, match=r"^tiny: none of its cells is kept and current"):
        verify(workspace, "tiny", 1, [])
