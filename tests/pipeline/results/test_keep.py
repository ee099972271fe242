"""Kept results in a real project: kept, cloned, listed, reported, shown without training, refused when not valid."""

import copy
import os
import re
import shutil
from dataclasses import replace

import pytest
import yaml
from support.mistakes import line_of
from support.project import Project, spec, tree

from pflcore.files import write_text
from pflcore.protocols import curve
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import Recorded
from pipeline.ledger import Ledger
from pipeline.results.keep import CURRENT, keep, list_entries, training_time
from pipeline.results.report import EARLIER, write_report
from pipeline.workspace import run_path


def pfl(project, *arguments):
    return project.call("pfl", *arguments, PFL_DEVICE="cpu")


def entry_of(project, method):
    (entry,) = [entry for entry in Ledger(project.root).entries() if entry.run.method == method]
    return entry


def by_earlier_code(project):
    """FedPer's result is that of another version of its code from now on."""
    entry = entry_of(project, "fedper")
    Ledger(project.root).write("tiny", [replace(entry, made_by={**entry.made_by, "method.fedper": "0"})], {})
    return entry


@pytest.mark.matrix
def test_a_clone_shows_the_table_without_training_and_verifies_it(reproduced, tmp_path):
    done = pfl(reproduced, "keep", "tiny")
    assert done.returncode == 0 and done.stdout.startswith("tiny: 2 runs kept in results/tiny.jsonl"), done.stderr
    assert "2 were before" in pfl(reproduced, "keep", "tiny").stdout
    clone = Project(tmp_path / "clone")  # what git would carry: specs and results
    for name in ("specs", "results", ".dvc"):
        shutil.copytree(reproduced.root / name, clone.root / name, ignore=shutil.ignore_patterns("cache", "tmp"))
    for name in ("pyproject.toml", ".dvcignore"):
        shutil.copy(reproduced.root / name, clone.root)
    done = pfl(clone, "run")
    assert done.returncode == 0, done.stderr
    assert not [stage for stage in clone.stages() if ":train@" in stage or ":data" in stage]
    # The table as it was, to the byte; but for the lines that say where its numbers come from.
    pages = [(project.root / "reports/tiny/report.md").read_text("utf-8") for project in (reproduced, clone)]
    entry = entry_of(reproduced, "fedavg")
    said = f"kept results: 2 of 2 runs, on {entry.obtained}"
    before, after = (page.partition("\n## ")[0].replace(f"- {said}\n", "").strip() for page in pages)
    assert after == before and said in pages[1]
    tables = [(project.root / "reports/tiny/table.csv").read_text("utf-8") for project in (reproduced, clone)]
    rows, shown = (table.splitlines()[1:] for table in tables)
    assert [row + entry.obtained for row in rows] == shown
    # What the commands say of it.
    curve_of_it = pfl(reproduced, "ledger", "show", entry.run.id).stdout
    assert f"run: {entry.run.id}\n" in curve_of_it and "lr: 0.1\n" in curve_of_it and "accuracy %" in curve_of_it
    missing = pfl(reproduced, "ledger", "show", entry.run.id[:-1] + "x")
    assert missing.returncode == 2 and f"did you mean '{entry.run.id}'" in missing.stderr
    done = pfl(reproduced, "verify", "tiny", "--cells", "1")
    assert done.returncode == 0 and "the same, every count" in done.stdout, done.stdout + done.stderr
    forged = copy.deepcopy(entry)
    forged.measurements["test"]["correct"][-1][0] -= 1
    Ledger(reproduced.root).write("tiny", [forged], {})
    caught = pfl(reproduced, "verify", "tiny", "--cell", "FedAvg")
    assert caught.returncode == 1 and "DIFFERS, on the same kind of machine" in caught.stdout, caught.stderr
    assert pfl(reproduced, "ledger", "drop", "tiny").stdout.startswith("2 results dropped\n")
    # It had been trained here, and DVC remembers.
    again = reproduced.repro()
    assert again.code == 0 and not [stage for stage in again.ran if stage.startswith("train-")], again.output


def test_what_was_made_otherwise_or_is_not_there_is_not_kept(reproduced):
    workspace = reproduced.workspace()
    compilation = compile_workspace(workspace, ["tiny"])
    (lock,) = reproduced.root.glob("stages/federations/*/dvc.lock")
    text = lock.read_text(encoding="utf-8")
    runs = {run.method: run for run in compilation.runs.values()}
    rounds = workspace.root / run_path(runs["fedper"].id, "rounds.parquet")

    def current():
        found = Recorded(workspace.root, compilation)
        return [name for name, run in sorted(runs.items()) if found.holds(run_path(run.id, "rounds.parquet"))]

    assert current() == ["fedavg", "fedper"]
    document = yaml.safe_load(text)
    train = next(stage for name, stage in document["stages"].items() if "fedper" in name)
    partition = next(dep for dep in train["deps"] if dep["path"].startswith("artifacts/partitions/"))
    for part, name, value in ((train, "cmd", f"{train['cmd']} --seal 1"), (partition, "md5", "0" * 32)):
        before, part[name] = part[name], value
        lock.write_text(yaml.safe_dump(document), encoding="utf-8")
        assert current() == ["fedavg"], name
        part[name] = before
    lock.write_text(text, encoding="utf-8")
    rounds.chmod(0o644)
    rounds.write_bytes(rounds.read_bytes()[:-1] + b"x")
    kept = keep(workspace, "tiny")
    assert kept.added == [runs["fedavg"].id] and kept.skipped == {"are not up to date here": 1}
    assert keep(workspace, "tiny").already_kept == 1
    reproduced.write("specs/weights.yaml", spec(training=", save_weights: true"))
    assert keep(workspace, "weights").skipped == {"have more to keep than accuracies (analyses, weights)": 2}


def test_other_settings_and_other_code_are_not_shown(reproduced):
    assert len(keep(reproduced.workspace(), "tiny").added) == 2
    first = compile_workspace(reproduced.workspace())
    assert first.kept == set(first.runs)
    reproduced.write("specs/tiny.yaml", spec("{FedAvg: fedavg}", training=", momentum: 0.5"))
    assert not compile_workspace(reproduced.workspace()).kept
    reproduced.write("specs/tiny.yaml", spec())
    entry = by_earlier_code(reproduced)
    compilation = compile_workspace(reproduced.workspace())
    assert [run.partition("-")[0] for run in compilation.kept] == ["fedavg"]
    kinds = sorted(stage.kind for stage in compilation.stages if stage.kind in ("evaluate", "recall", "train"))
    assert kinds == ["evaluate", "recall", "train"]
    plain = compile_workspace(reproduced.workspace(), ledger=False)
    states = {line["run"].partition("-")[0]: line for line in list_entries(Ledger(reproduced.root), plain)}
    assert states["fedavg"]["state"] == CURRENT
    assert states["fedper"]["state"] == "made by other versions: method.fedper (0 → 1)"
    assert states["fedper"]["accuracy"] == f"{curve(entry.rounds())[1][-1]:.2f}"
    (path,) = Ledger(reproduced.root).files()
    path.write_text(path.read_text(encoding="utf-8").replace('"loss": [', '"loss": [9', 1), encoding="utf-8")
    assert "edited by hand" in line_of(compile_workspace, reproduced.workspace())


def test_a_choice_by_earlier_code_is_kept_anew_with_its_run(tiny):
    tune = "tune: {space: {training.lr: [0.05, 0.1]}}\n"
    tiny.write("specs/tiny.yaml", spec("[fedper]", partition="{name: iid, validation_share: 0.2}", more=tune))
    assert pfl(tiny, "run").returncode == 0 and len(keep(tiny.workspace(), "tiny").added) == 1
    ledger, (entry,) = Ledger(tiny.root), Ledger(tiny.root).entries()
    old = {**entry.made_by, "method.fedper": "0"}
    ledger.write("tiny", [replace(entry, made_by=old)], {entry.run.tuned: (old, {"trials": []})})
    assert not compile_workspace(tiny.workspace()).kept
    assert len(keep(tiny.workspace(), "tiny").added) == 1
    compilation = compile_workspace(tiny.workspace())
    assert compilation.kept == set(compilation.runs), "its trials would be trained again in a clone"


def test_the_time_of_a_run_that_was_resumed_is_that_of_all_its_rounds(tmp_path):
    path = tmp_path / "timing.json"
    for more, seconds in (("", 30.9), (', "core_seconds": 8.0', 20.0)):  # of cores, whatever else the machine did
        write_text(path, f'{{"seconds": 12.34, "device": "cpu", "rounds": 40{more}}}')
        os.utime(path, (0, 86_400 * 365.25 * 50))
        assert training_time(path, 100) == ("2020-01-01", seconds)
    assert training_time(tmp_path / "none", 100)[1] is None


# `pfl ledger report`: a page of published numbers from kept results alone, and tables in the README.

SPEC = """\
extends: ../tiny.yaml
title: Tiny, published
paper: {name: Mine, citation: Somebody 2020, table: Table 1}
table: {rows: [method], columns: [], metric: final, published: table1.csv}
"""
PUBLISHED = """\
method,mean,std,quoted,note,explained
FedAvg,0.5,0.1,yes,,it is | not so
FedPer,1.5,0.1,,,
"""


@pytest.fixture
def kept(reproduced):
    keep(reproduced.workspace(), "tiny")
    reproduced.write("specs/mine/table1.yaml", SPEC)
    reproduced.write("specs/mine/table1.csv", PUBLISHED)
    return reproduced


def page_of(project):
    write_report(project.workspace())
    return (project.root / "docs/results.md").read_text(encoding="utf-8")


def rows(markdown, first):
    """The cells of the lines of a page that begin with a label."""
    lines = [line for line in markdown.splitlines() if re.match(rf"\| {first} +\|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def last_accuracy(entry):
    """The accuracy in percent after the last round, pooled over clients, as pages print it."""
    test = entry.measurements["test"]
    return round(100 * sum(test["correct"][-1]) / sum(test["total"]), 2)


def test_the_page_says_what_was_published_and_what_was_obtained(kept):
    text = "# Mine\n<!-- results: mine/table1 -->\nold\n<!-- end -->\nmore\n"
    readme = kept.write("README.md", text)
    page, accuracy = page_of(kept), last_accuracy(entry_of(kept, "fedavg"))
    assert set(tree(kept.root / "docs")) == {"results.md", "results/mine-table1.svg"}
    ((_, published, obtained, difference, _),) = [row for row in rows(page, "FedAvg") if row[-1] == "1 of 1"]
    assert (published, float(obtained)) == ("0.50±0.10\\*", accuracy)
    assert float(difference) == pytest.approx(accuracy - 0.5)
    assert "- distance in points: 0 within 1, 0 within 2.5, 0 within 5; median" in page
    assert "- FedAvg: it is \\| not so" in page and "- FedPer:" not in page
    assert rows(page, "Mine") == [["Mine", "2", "2", "0", "0", "0", "1"]]
    # The README has the table where it has a place for it.
    first, place, header, *table, end, last = readme.read_text(encoding="utf-8").splitlines()
    assert [first, place, end, last] == [*text.splitlines()[:2], *text.splitlines()[-2:]] and "old" not in table
    assert [*map(str.strip, header.strip("|").split("|"))] == ["method", "accuracy (%)"]
    assert f"{obtained} (0.50±0.10)" in table[1]
    assert "at the published number or above, the\nmean over runs." in page
    # The same again, also where nothing else is than specs and the ledger.
    before = tree(kept.root / "docs")
    for name in ("artifacts", "docs", "stages"):
        (kept.root / name).rename(kept.root.parent / name)
    assert page_of(kept) == page and tree(kept.root / "docs") == before
    kept.write("README.md", text.replace("mine/table1", "mine/table2"))
    assert "README.md: a place for the results of 'mine/table2'" in line_of(page_of, kept)
    # Nothing kept, and files of somebody's own.
    readme.unlink()
    picture = kept.write("docs/results/mine.svg", "my own")
    for path in Ledger(kept.root).files():
        path.unlink()
    page = page_of(kept)
    assert "- published accuracies: 2\n- obtained: 0\n" in page
    assert rows(page, "Mine") == [["Mine", "2", "0", "0", "0", "0", "0"]]
    assert picture.read_text("utf-8") == "my own" and not (kept.root / "docs/results/mine-table1.svg").exists()
    own = kept.write("docs/results.md", "# My results\n")
    assert "docs/results.md: was not written by this command; move it away" in line_of(page_of, kept)
    assert own.read_text(encoding="utf-8") == "# My results\n"


def test_tables_without_published_values_are_shown_for_what_no_other_has(kept):
    other = SPEC.replace(", published: table1.csv", "").replace("Table 1", "Tried")
    kept.write("specs/mine/tried.yaml", other)
    assert "Tried" not in page_of(kept)  # all of it is in Table 1
    kept.write("specs/mine/table1.yaml", SPEC + "grid: {only: {method: FedAvg}}\n")
    kept.write("specs/mine/table1.csv", "".join(PUBLISHED.splitlines(keepends=True)[:2]))
    kept.write("specs/mine/tried.yaml", other + "grid: {axes: {method: {FedBABU: fedbabu}}}\n")
    entry = by_earlier_code(kept)
    page = page_of(kept)
    assert "FedBABU" not in page and "- published accuracies: 1\n- obtained: 1\n" in page
    tried = page[page.index("### Tried: Tiny, published") :]
    assert rows(tried, "FedPer") == [["FedPer", f"{last_accuracy(entry):.2f}{EARLIER}"]]
    assert f"{EARLIER}: by an earlier state of the code" in tried and "2 runs" in tried


def test_the_readme_marks_numbers_of_earlier_code_and_cells_that_are_partly_done(kept):
    axis, average = "grid: {axes: {seed: [0, 1]}}\n", "columns: [], average_over: [seed]"
    kept.write("specs/mine/table1.yaml", SPEC.replace("columns: []", average) + axis)
    readme = kept.write("README.md", "<!-- results: mine/table1 -->\n<!-- end -->\nmore\n")
    entry = by_earlier_code(kept)
    page_of(kept)
    text = readme.read_text(encoding="utf-8")
    assert rows(text, "FedPer") == [["FedPer", f"{last_accuracy(entry):.2f}{EARLIER} \\[1/2\\] (1.50±0.10)"]]
    assert EARLIER not in rows(text, "FedAvg")[0][1]
    assert f"\n\n{EARLIER}: by an earlier state of the code, see `pfl ledger list`.\n<!-- end -->\nmore\n" in text
