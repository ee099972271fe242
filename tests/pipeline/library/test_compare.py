"""`pfl compare`: the cells that two tables have in common."""

import re
import shutil

import pytest
from support.command import pfl as pfl
from support.mistakes import line_of, refuses
from support.project import make_project, spec
from support.report_demo import RECORD, by_seed, cell, report, table, with_records, write_evaluation

from pipeline.library import compare as tables
from pipeline.library.study import Study
from pipeline.spec.metrics import Quantity

FITTING = {"name": "convnet", "kernel": 3, "padding": 1}
"""A backbone for images as small as the digits."""

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


# The reports are written by hand, not by their stages.
@pytest.mark.filterwarnings("ignore::pipeline.library.study.NotUpToDate")
def test_cells_of_two_tables(tmp_path):
    specs = {f"specs/{name}.yaml": spec() for name in ("b/c", *"defghij")}
    decimals = spec(more="table: {rows: [method], decimals: 1}")
    specs["specs/k.yaml"] = spec(more="table: {rows: [method], metric: final}")
    study = Study(make_project(tmp_path, {**specs, "specs/a.yaml": decimals}).workspace())
    for index, name in enumerate(("a", "b/c")):
        rows = {label: {"x": expected[index]} for label, expected in CELLS.items() if expected[index] is not None}
        write(tmp_path / name, name, rows, decimals=1)
        shutil.copytree(tmp_path / name / "reports", tmp_path / "reports", dirs_exist_ok=True)
    pairs = {pair.labels.removesuffix(", x"): pair for pair in tables.compare(study, "a", "b/c")}
    assert {name: pair.verdict for name, pair in pairs.items()} == {
        name: cell_[2] for name, cell_ in CELLS.items() if cell_[2]
    }
    numbers = [(pair.first, pair.second, pair.difference) for pair in (pairs["differs"], pairs["never run"])]
    assert numbers == [("81.0±0.8", "72.0±1.0", "\N{MINUS SIGN}9.0"), ("—", "70.2±0.0", "")]
    # They are matched on the axes that both tables have.
    write(tmp_path, "d", {"M": {"s": [80.0], "t": [80.5]}})
    write(tmp_path, "e", {"M": {"t": [81.0]}})
    write(tmp_path, "g", {"N": {"t": [82.0]}})
    report(table([cell({"method": "M"}, ["M-t-0"])], ["method"], [], spec="f"), tmp_path, tmp_path / "reports/f")
    (pair,) = tables.compare(study, "d", "e")
    assert (pair.labels, pair.first, pair.second, pair.difference) == ("M, t", "80.50±0.00", "81.00±0.00", "+0.50")
    assert [pair.labels for pair in tables.compare(study, "e", "f")] == ["M"]
    assert [pair.second for pair in tables.compare(study, "f", "d", {"setting": "t"})] == ["80.50±0.00"]
    report(table([cell({"rate": "1"}, ["never"])], ["rate"], [], spec="j"), tmp_path, tmp_path / "reports/j")
    published = cell({"method": "M"}, ["never"], (70.25, 0.5))
    report(table([published], ["method"], [], spec="i"), tmp_path, tmp_path / "reports/i")
    (pair,) = tables.compare(study, "i", "e")
    assert (pair.first, pair.second, pair.verdict) == ("— (70.25±0.50)", "81.00±0.00", tables.NOT_RUN)
    # Only the seeds that both have are compared: the second is worse by 1 under each, though its mean is higher.
    write(tmp_path, "e", {"M": {"w": [None, 79.0, 79.5, 81.1]}})
    write(tmp_path, "d", {"M": {"w": [50.0, 80.0, 80.5, 82.0]}})
    (pair,) = tables.compare(study, "d", "e")
    assert (pair.difference, pair.verdict) == ("\N{MINUS SIGN}0.97 (3 shared seeds)", tables.BEYOND)
    assert line_of(tables.compare, study, "d", "e", {"setting": "z"}).startswith("--where setting=z: no label of this")
    write(tmp_path, "k", {"M": {"w": [81.0]}}, metric="final")
    line = "d shows last_rounds and k shows final; compare tables of one metric"
    assert line_of(tables.compare, study, "d", "k") == line
    write(tmp_path, "d", {"M": {"s": [80.0], "t": [80.5]}})
    refuses("no axis of these tables; did you mean 'setting'", tables.compare, study, "f", "d", {"setings": "t"})
    for specs, line in {
        ("f", "d"): "d: several cells for M; choose one label of setting, .* --where setting=LABEL",
        ("f", "g"): "f and g have no cells with the same labels",
        ("f", "j"): "f and j have no axis in common; theirs are method, rate",
        ("f", "h"): "h: its report has not been made; type `pfl run h`",
    }.items():
        assert re.fullmatch(line, line_of(tables.compare, study, *specs))


@pytest.mark.filterwarnings("ignore::pipeline.library.study.NotUpToDate")
def test_costs_that_do_not_depend_on_chance_differ(tmp_path):
    """They have units, and no test over seeds is needed."""
    metrics = {"a": "parameters", "b": "parameters", "c": "bytes_up", "d": "bytes_up"}
    table_of = "table: {{rows: [method], metric: {}}}"
    specs = {f"specs/{name}.yaml": spec(more=table_of.format(metric)) for name, metric in metrics.items()}
    study = Study(make_project(tmp_path, specs).workspace())
    values = {
        "a": [45_178.0] * 3,
        "b": [45_000.0] * 3,
        "c": [1000.0] * 3,
        "d": [900.0] * 3,
    }
    for name, own in values.items():
        shown = Quantity(metric=metrics[name])
        records = {f"{name}{seed}": RECORD | {"seed": seed, "backbone": FITTING} for seed in range(3)}
        for run, value in zip(records, own, strict=True):
            write_evaluation(tmp_path, run, {shown.key: {"mean": value, "std": 0.0, "n": 1}})
        one = cell({"method": "FedAvg"}, list(records)).model_copy(update={"quantity": shown})
        made = with_records(tmp_path, table([one], ["method"], [], spec=name), records)
        report(made, tmp_path, tmp_path / "reports" / name)
    (pair,) = tables.compare(study, "a", "b")
    assert (pair.first, pair.second, pair.difference, pair.verdict) == ("45.18 K", "45.00 K", "−178", "differs")
    assert [tables.compare(study, "c", name)[0].verdict for name in "cd"] == [tables.SAME, "differs"]


@pytest.mark.filterwarnings("ignore::pipeline.library.study.NotUpToDate")
def test_cells_of_unlike_metrics_are_not_compared(tmp_path):
    shape = """\
    shown: {{one: {{}}, two: {{}}}}
table: {{rows: [method], columns: [shown], metric: clients, quantities: {{shown: {{two: {{metric: {}}}}}}}}}"""
    metrics = {"a": "final", "b": "worst_tenth"}
    specs = {f"specs/{name}.yaml": spec(more=shape.format(metric)) for name, metric in metrics.items()}
    study = Study(make_project(tmp_path, specs).workspace())
    for name in "ab":
        cells = [cell({"method": "FedAvg", "shown": shown}, ["run"]) for shown in ("one", "two")]
        report(table(cells, ["method"], ["shown"], spec=name), tmp_path, tmp_path / "reports" / name)
    line = "FedAvg, two: a shows final in % and b shows worst_tenth in %; choose cells of one metric by --where"
    assert line_of(tables.compare, study, "a", "b") == line
    assert [pair.labels for pair in tables.compare(study, "a", "b", {"shown": "one"})] == ["FedAvg, one"]


def test_the_command_shows_the_cells_that_differ(tmp_path, pfl):
    make_project(tmp_path, {f"specs/{name}.yaml": spec() for name in ("one/a", "one/b", "c")})
    for name, value in (("one/a", 70.0), ("c", 72.0)):
        write(tmp_path, name, {"x": {"s": [80.0]}, "y[z]": {"s": [value]}})
    code, out, _ = pfl(tmp_path, "compare", "one/a", "c")
    _, line, last = out.splitlines()
    assert (code, last) == (0, "2 cells: 1 the same, 1 fewer than two seeds")
    assert line.split()[:5] == ["y[z],", "s", "70.00±0.00", "72.00±0.00", "+2.00"]
    assert pfl(tmp_path, "compare", "c", "one")[::2] == (2, "pfl: pfl compare takes two specs, not a folder of them\n")
