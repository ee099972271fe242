"""`pfl compare`: the cells that two tables have in common."""

import re
import shutil

import pytest
from support.command import pfl as pfl
from support.mistakes import line_of
from support.project import make_project, spec
from support.report_demo import by_seed, cell, report, table

from pflcore.errors import UserError
from pipeline.library import compare as tables
from pipeline.library.study import Study

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
    for at, name in enumerate(("a", "b/c")):
        rows = {label: {"x": own[at]} for label, own in CELLS.items() if own[at] is not None}
        write(tmp_path / name, name, rows, decimals=1)
        shutil.copytree(tmp_path / name / "reports", tmp_path / "reports", dirs_exist_ok=True)
    found = {one.labels.removesuffix(", x"): one for one in tables.compare(study, "a", "b/c")}
    assert {name: one.verdict for name, one in found.items()} == {name: own[2] for name, own in CELLS.items() if own[2]}
    numbers = [(one.first, one.second, one.difference) for one in (found["differs"], found["never run"])]
    assert numbers == [("81.0±0.8", "72.0±1.0", "\N{MINUS SIGN}9.0"), ("—", "70.2±0.0", "")]
    # They are matched on the axes that both tables have.
    write(tmp_path, "d", {"M": {"s": [80.0], "t": [80.5]}})
    write(tmp_path, "e", {"M": {"t": [81.0]}})
    write(tmp_path, "g", {"N": {"t": [82.0]}})
    report(table([cell({"method": "M"}, ["M-t-0"])], ["method"], [], spec="f"), tmp_path, tmp_path / "reports/f")
    (pair,) = tables.compare(study, "d", "e")
    assert (pair.labels, pair.first, pair.second, pair.difference) == ("M, t", "80.50±0.00", "81.00±0.00", "+0.50")
    assert [one.labels for one in tables.compare(study, "e", "f")] == ["M"]
    assert [one.second for one in tables.compare(study, "f", "d", {"setting": "t"})] == ["80.50±0.00"]
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
    with pytest.raises(UserError, match="no axis of these tables; did you mean 'setting'"):
        tables.compare(study, "f", "d", {"setings": "t"})
    for specs, line in {
        ("f", "d"): "d: several cells for M; choose one label of setting, .* --where setting=LABEL",
        ("f", "g"): "f and g have no cells with the same labels",
        ("f", "j"): "f and j have no axis in common; theirs are method, rate",
        ("f", "h"): "h: its report has not been made; type `pfl run h`",
    }.items():
        assert re.fullmatch(line, line_of(tables.compare, study, *specs))


def test_the_command_shows_the_cells_that_differ(tmp_path, pfl):
    make_project(tmp_path, {f"specs/{name}.yaml": spec() for name in ("one/a", "one/b", "c")})
    for name, value in (("one/a", 70.0), ("c", 72.0)):
        write(tmp_path, name, {"x": {"s": [80.0]}, "y[z]": {"s": [value]}})
    code, out, _ = pfl(tmp_path, "compare", "one/a", "c")
    _, line, last = out.splitlines()
    assert (code, last) == (0, "2 cells: 1 the same, 1 fewer than two seeds")
    assert line.split()[:5] == ["y[z],", "s", "70.00±0.00", "72.00±0.00", "+2.00"]
    assert pfl(tmp_path, "compare", "c", "one")[::2] == (2, "pfl: pfl compare takes two specs, not a folder of them\n")
