"""Pages of papers: which specs they gather, what they count, when they are written, and that LaTeX takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from support.command import Pfl
from support.command import pfl as pfl
from support.figure_demo import demo as figures
from support.pages import HOSTILE, Document, squeezed
from support.paper_specs import SPECS
from support.project import Project, make_project, spec
from support.report_demo import (
    EVALUATION,
    RECORD,
    cell,
    changed,
    demo,
    report,
    results_of,
    rounds_table,
    runs_of,
    table,
    with_note,
    with_records,
    write_metrics,
    write_run,
)

from pflcore.artifacts import read_table, write_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import summarise as summary_of
from pipeline.compile.compiler import compile_workspace
from pipeline.papers import pages as papers_module
from pipeline.papers.obtained import Obtained, collect_obtained, count_published
from pipeline.papers.pages import Papers, summarise, write_paper
from pipeline.papers.paper import Brief, Paper, Place, Summary, papers_of, read_contents
from pipeline.papers.refresh import refresh
from pipeline.report.agreement import Agreement
from pipeline.report.coverage import cover
from pipeline.report.statistics import BEYOND, NO_VERDICT
from pipeline.report.study import Study
from pipeline.spec.table import ResolvedTable
from pipeline.workspace import run_path

KINDS = ("md", "tex", "html")
CITED = {"name": "FedTP", "citation": "Li et al.", "table": "Table II"}


def only_paper(root: Path, *tables: ResolvedTable) -> Paper:
    """The one that all these tables belong to."""
    runs = {run: of for one in tables for run, of in runs_of(one, root).items()}
    (paper,) = papers_of({one.spec: one for one in tables}, runs).values()
    return paper


def write(root: Path, *tables: ResolvedTable) -> dict[str, str]:
    """The page of the only paper of some tables, by format."""
    paper = only_paper(root, *tables)
    write_paper(paper, root)
    return {kind: (root / f"reports/papers/{paper.name}.{kind}").read_text(encoding="utf-8") for kind in KINDS}


def data_of(page: str) -> dict[str, Any]:
    """What the scripts of a page are given."""
    found = re.search(r"^const data = (.*);$", page, re.MULTILINE)
    assert found
    return dict(json.loads(found[1]))


def files(root: Path) -> dict[str, tuple[int, bytes]]:
    """All files below reports/ with the time of their last change."""
    found = sorted(path for path in (root / "reports").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_papers_are_folders_in_the_order_of_their_tables() -> None:
    names = ["quick", "own/b", "fedtp/extra/deep", "fedtp/fig1", "fedtp/table10", "fedtp/table2", "alpha/x"]
    tables = {
        name: table([], ["method"], [], spec=name, title=f"T {name}", paper=CITED if "fedtp" in name else None)
        for name in names
    }
    papers = papers_of(tables, {})
    assert list(papers) == ["fedtp", "alpha", "own", "quick"]  # what is published comes first
    fedtp = papers["fedtp"]
    assert list(fedtp.tables) == ["fedtp/table2", "fedtp/table10", "fedtp/fig1", "fedtp/extra/deep"]
    assert (fedtp.title, fedtp.citation) == ("FedTP", "Li et al.")
    assert fedtp.folder("fedtp/extra/deep") == "fedtp/extra/deep" and papers["quick"].folder("quick") == "quick/quick"
    assert (papers["quick"].title, papers["own"].citation) == ("T quick", "")
    tables["own/c"] = table([], ["method"], [], spec="own/c", paper=CITED)
    own = papers_of(tables, {})["own"]
    assert (own.title, own.citation) == ("own", "")  # one of its studies is about a paper


@pytest.mark.parametrize(("name", "where"), [("papers", "specs/papers.yaml"), ("papers/x", "specs/papers/")])
def test_the_folder_of_pages_is_nobodys_name(name: str, where: str) -> None:
    with pytest.raises(UserError) as error:
        papers_of({name: table([], ["method"], [], spec=name)}, {})
    assert str(error.value) == f"{where}: reports/papers is where the pages of papers are; rename it"


def test_coverage_counts_every_kind_of_cell_once(tmp_path: Path) -> None:
    for run in "abc":
        write_metrics(tmp_path, run, 80.0)
    write_run(tmp_path, "bad", 80.0, diverged=True)
    cells = [
        cell({"method": "all"}, ["a", "b"]),
        cell({"method": "some"}, ["c", "later"]),
        cell({"method": "none"}, ["later"], (80.0, 0.1, "quoted")),
        cell({"method": "burst"}, ["a", "bad"]),
        cell({"method": "quoted"}, [], (80.0, 0.1, "quoted")),
        cell({"method": "printed"}, [], (80.0, 0.1)),
        cell({"method": "hole"}, []),  # excluded from the grid: nobody expects anything
    ]
    found = cover(results_of(table(cells, ["method"], []), tmp_path).cells)
    assert found == Counter(done=1, partly=1, missing=1, diverged=1, quoted=1, unplanned=1)


CONTENTS_OF_ONE = """\
place,holds,specs,reason
Table 1,accuracy of one,one,
Table 2,"mAP, in percent",,there is no detector
Figure 3,accuracy over rounds,one,
Section 4,it is fast,,nobody measured it
"""


def test_coverage_of_a_paper_is_that_of_its_tables_and_figures(project: Project) -> None:
    artifact(project, "tiny")
    project.write("specs/mine/contents.csv", CONTENTS_OF_ONE)
    papers = Papers.compiled(project.workspace())
    papers.write(["mine", "tiny"])
    index = papers.index.read_text(encoding="utf-8")
    assert "No spec: Table 2, mAP, in percent: there is no detector" in index and "it is fast" not in index
    # Two of mine have a spec and no run, one has none; tiny is one by itself, of whose two cells one is done.
    assert 'aria-label="1 partly, 2 missing, 1 unplanned"' in index
    assert 'aria-label="2 missing, 1 unplanned"' in index
    assert 'aria-label="1 partly"' in index
    for kind in KINDS:
        page = papers.page("mine").with_suffix(f".{kind}").read_text(encoding="utf-8")
        assert "Not covered" in page and "it is fast: nobody measured it" in page
    before = papers.page("mine").read_bytes()
    project.write("specs/mine/contents.csv", CONTENTS_OF_ONE.replace("nobody measured it", "it is not"))
    assert Papers.compiled(project.workspace()).write(["mine"]) == ["mine"]
    assert papers.page("mine").read_bytes() != before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("place,spec", "1: the columns are place, holds, specs, reason"),
        ("Table 1,x,two,", "2: 'two' is no spec of this paper; known: one"),
        ("Table 1,x,,", "2: either specs are about Table 1, or there is a reason"),
        ("Table 1,x", "2: a line has a place, what it holds, specs and"),
    ],
)
def test_contents_that_make_no_sense(tmp_path: Path, line: str, message: str) -> None:
    text = f"{line}\n" if line.startswith("place") else f"place,holds,specs,reason\n{line}\n"
    write_text(tmp_path / "mine/contents.csv", text)
    with pytest.raises(UserError, match=f"^specs/mine/contents.csv:{message}"):
        read_contents(tmp_path, "mine", ["one"])


def test_the_papers_contents_name_every_table_and_figure_of_their_specs() -> None:
    papers = {path.parent.name for path in SPECS.glob("*/contents.csv")}
    assert papers == {"fedtp", "fedofa", "fedperfix", "pfedla"}
    for paper in papers:
        names = [path.stem for path in (SPECS / paper).glob("*.yaml")]
        places = read_contents(SPECS, paper, names)
        listed = {name for place in places for name in place.specs}
        shown = {name for name in names if name.startswith(("table", "fig"))}
        # Other readings of what is listed, and other data.
        readings = {"table2_all", "table3_settings", "table3_partition", "table4_last", "fig10_released"}
        assert shown - listed <= readings | {"table1_jpeg", "table1_part", "table3_jpeg", "table3_text"}


def test_summary_of_the_demo_survives_json(tmp_path: Path) -> None:
    found = summarise(only_paper(tmp_path, demo(tmp_path)), tmp_path)
    assert found.coverage == Counter(done=20, missing=2, diverged=2, quoted=4)
    assert found.claims == Counter({"not yet": 1, "one seed: undecided": 1, "contradicted": 1})
    kinds = TypeAdapter(Summary)
    assert kinds.validate_json(kinds.dump_json(found)) == found


def test_a_page_has_what_the_specs_reports_have(tmp_path: Path) -> None:
    one = demo(tmp_path, notes=["In both.", "In one."])
    two = changed(figures(tmp_path), spec="demo/table3", notes=["In both."], paper=CITED | {"table": "Table III"})
    text = write(tmp_path, one, two)
    lines = squeezed(text["md"])
    assert lines[0] == "# FedTP"
    start = lines.index("| | cells | done | partly done | missing | diverged | quoted | not planned | claims |")
    assert lines[start + 2].startswith(
        "| Table II: Transformer-based methods on image data | 28 | 20 | 0 | 2 | 2 | 4 |"
    )
    assert lines[start + 3] == "| Table III: Figures | 6 | 6 | 0 | 0 | 0 | 0 | 0 | |"
    claims = "1 one seed: undecided, 1 not yet, 1 contradicted"
    assert lines[start + 4] == f"| all | 34 | 26 | 0 | 2 | 2 | 4 | 0 | {claims} |"
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == [
        *("## Notes on all tables", "## Table II: Transformer-based methods on image data", "## Table III: Figures"),
        "## Provenance",
    ]
    assert lines.count("- In both.") == 1 and lines.count("- In one.") == 1
    for kind in KINDS:
        plain = {"html": Document(text[kind]).text}.get(kind, text[kind])
        for words in ("FedTP beats every other method in every setting", "Against the published values", "Resources"):
            assert words in plain, (kind, words)
        assert "he paper's own table contradicts it" in plain
    assert sum("run" in line and "torch" in line for line in lines) == 1  # one table says where all numbers come from
    for path in re.findall(r"!\[.*\]\((.*)\)", text["md"]):
        assert (tmp_path / "reports/papers" / path).is_file(), path
    for path in re.findall(r"includegraphics\{(.*?)\}", text["tex"]):
        assert path.endswith(".png") and (tmp_path / "reports/papers" / path).is_file(), path
    assert text["tex"].count("includegraphics{demo/table2/curves.png}") == 1


def test_pages_of_a_long_paper_come_go_and_have_links_that_lead_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers_module, "MOST_TABLES", 1)
    href = "../partitions/digits-iid-n3-s0-00000000/index"
    for name in (f"reports/papers/{href}.html", "reports/demo/t1/report.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("made")
    one = changed(figures(tmp_path), notes=["In all."], figures=["resources"])
    tables = [changed(one, spec=f"demo/t{i}") for i in (1, 2)]
    first = write(tmp_path, *tables)["html"]
    papers = tmp_path / "reports/papers"
    parts = {path.name: path.read_text(encoding="utf-8") for path in papers.glob("demo/*.html")}
    assert set(parts) == {"t1.html", "t2.html"}
    assert "In all." in first and all(text.count("<li>In all.</li>") == 1 for text in parts.values())
    assert "../../demo/t1/report.html" in parts["t1.html"] and f"../{href}.html" in parts["t1.html"]
    for folder, text in [(papers, first), *((papers / "demo", text) for text in parts.values())]:
        for target in re.findall(r' href="([^"#]+)"', text):
            assert target.endswith("../index.html") or (folder / target).exists(), target
        for anchor in re.findall(r'href="#([^"]+)"', text):
            assert f'id="{anchor}"' in text, anchor
    assert set(data_of(parts["t1.html"])["tables"]) == {"s1"} and not data_of(first)["tables"]
    write(tmp_path, *tables[:-1])
    assert not list(papers.glob("demo/*.html")) and (papers / "demo/t1/curves.svg").is_file()


def test_details_of_a_cell_and_its_runs(tmp_path: Path) -> None:
    data = data_of(write(tmp_path, with_note(demo(tmp_path), 1, "printed twice"))["html"])
    cells = data["tables"]["s1"]["cells"]
    fedtp, diverged, quoted = cells[5][2], cells[0][1], cells[6][0]
    assert fedtp["title"] == "FedTP · CIFAR-10 · Dirichlet · clients = 50"
    rounds, _ = read_table(tmp_path / run_path("fedtp-d50", "rounds.parquet"), "rounds/2")
    metrics = summary_of(rounds, EVALUATION, 100)["last_rounds"]
    number = f"{metrics['mean']:.2f}±{metrics['std']:.2f}"
    assert fedtp["runs"] == [["fedtp-d50", f"seed 0: {number}"]] and ["obtained", number] in fedtp["facts"]
    facts = dict(data["runs"]["fedtp-d50"]["facts"])
    assert (facts["device"], facts["data (SHA-256)"], facts["metric last_rounds"]) == ("cpu", "d" * 64, number)
    assert dict(diverged["facts"])["obtained"] == "diverged" and "in round" in diverged["runs"][0][1]
    assert dict(diverged["facts"])["note"] == "printed twice"
    assert "quoted" in dict(quoted["facts"])["published"] and not quoted["runs"]
    assert data["tables"]["s1"]["command"] == "pfl run demo/table2"
    assert len(data["parts"]) == 6  # what all runs share is there once


def test_the_page_can_read_values_off_the_curves(tmp_path: Path) -> None:
    resolved = demo(tmp_path)
    curves = Study(results_of(resolved, tmp_path)).sections[0]
    assert curves.picture and curves.name == "curves"
    root = ET.fromstring(curves.picture.svg)
    panels = [group for group in root.iter(f"{SVG}g") if group.get("id", "").startswith("panel,")]
    assert len(panels) == 4
    _, _, *scales, label = str(panels[2].get("id")).split(",")
    assert (*scales[:2], label) == ("linear", "linear", "round")
    x0, x1, y0, y1 = map(float, scales[2:])
    across, down = zip(*_points(panels[2]), strict=True)
    left, right, top, bottom = min(across), max(across), min(down), max(down)
    (line,) = [group for group in panels[2] if re.fullmatch("line,.*,FedTP", group.get("id", ""))]
    x, y = _points(line)[-1]
    column = "FedTP / CIFAR-10 / Dirichlet / 50"
    assert x0 + (x - left) / (right - left) * (x1 - x0) == pytest.approx(curves.data["round"].iloc[-1], abs=1e-3)
    assert y1 - (y - top) / (bottom - top) * (y1 - y0) == pytest.approx(curves.data[column].iloc[-1], abs=1e-3)


SVG = "{http://www.w3.org/2000/svg}"


def _points(group: ET.Element) -> list[tuple[float, float]]:
    """The points of the first path in a group."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", next(group.iter(f"{SVG}path")).attrib["d"])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
@pytest.mark.parametrize("hostile", [False, True])
def test_plain_pdflatex_compiles_it_without_overfull_lines(tmp_path: Path, hostile: bool) -> None:
    words = {"title": HOSTILE, "notes": [HOSTILE]} if hostile else {}
    write(tmp_path, demo(tmp_path, profile="smoke", **words), changed(figures(tmp_path), spec="demo/more"))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "demo.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path / "reports/papers", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    packages = re.findall(r"usepackage(?:\[.*\])?\{(.*)\}", (tmp_path / "reports/papers/demo.tex").read_text())
    assert packages == ["geometry", "booktabs,longtable,graphicx,color"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = make_project(tmp_path, default=["tiny"])
    project.write("specs/mine/one.yaml", spec("[fedavg]", title="One", rounds=3))
    return project


def artifact(project: Project, name: str) -> str:
    """The first run of a spec gets artifacts; its id."""
    workspace = project.workspace()
    compilation = compile_workspace(workspace, [name])
    run = next(iter(compilation.tables[name].runs))
    measured(workspace.root, run, [80] * compilation.runs[run].training.rounds)
    return run


def test_pages_are_written_when_they_change(project: Project) -> None:
    workspace = project.workspace()
    papers = Papers.compiled(workspace)
    assert papers.write(papers.chosen([])) == ["mine", "tiny"]
    before = files(project.root)
    assert set(before) == {
        "reports/index.html",
        *(f"reports/papers/{name}.{kind}" for name in ("mine", "tiny") for kind in KINDS),
    }
    assert papers.write(papers.chosen([])) == [] and files(project.root) == before
    artifact(project, "mine/one")
    assert papers.write(papers.chosen([])) == ["mine"]
    after = files(project.root)
    assert {name for name in before if after[name] != before[name]} == {
        "reports/index.html",
        *(f"reports/papers/mine.{kind}" for kind in KINDS),
    }
    assert set(after) - set(before) == {f"reports/papers/mine/one/curves.{kind}" for kind in ("svg", "png", "csv")}
    # The same artifacts give the same bytes, from nothing.
    shutil.rmtree(project.root / "reports")
    assert papers.write(papers.chosen([])) == ["mine", "tiny"]
    assert {name: text for name, (_, text) in files(project.root).items()} == {
        n: text for n, (_, text) in after.items()
    }
    assert not (project.root / "stages").exists() and not (project.root / "dvc.yaml").exists()


def test_what_is_remembered_may_be_lost_or_damaged(project: Project) -> None:
    papers = Papers.compiled(project.workspace())
    papers.write(papers.chosen([]))
    before = {name: text for name, (_, text) in files(project.root).items()}
    for damaged in ("{", "[]", '{"tiny": {"state": "x"}}', '{"tiny": 1}'):
        project.write(".pfl/papers.json", damaged)
        assert papers.write(papers.chosen([])) == ["mine", "tiny"]
        assert {name: text for name, (_, text) in files(project.root).items()} == before


def test_one_paper_alone_and_the_index_of_all(project: Project) -> None:
    run = artifact(project, "tiny")
    papers = Papers.compiled(project.workspace())
    for names in (["mine"], ["mine/one"], ["specs/mine/one.yaml"], ["specs/mine/"]):
        assert papers.chosen(names) == ["mine"]
    papers.write(["mine"])
    assert not papers.page("tiny").exists()
    index = papers.index.read_text(encoding="utf-8")
    assert 'href="papers/mine.html"' in index and 'href="papers/tiny.html"' not in index
    assert "pfl report tiny" in index
    assert re.search(r'aria-label="1 partly, 1 missing"', index)
    assert "1 of 2" in index and "0 of 1" in index
    (project.root / run_path(run, "rounds.parquet")).write_bytes(b"damaged")
    with pytest.raises(UserError):
        papers.write(["mine"])
    with pytest.raises(UserError, match=r"unknown paper 'mines'; did you mean 'mine'"):
        papers.chosen(["mines"])
    with pytest.raises(UserError, match=r"unknown paper 'mine/two'"):
        papers.chosen(["mine/two"])


def test_the_end_of_a_trial_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    workspace = project.workspace("smoke")
    compilation = compile_workspace(workspace, ["mine/one"])
    line = refresh(workspace, compilation, ["mine/one"])
    assert line == "By paper: build/smoke/reports/papers/mine.html; all papers: build/smoke/reports/index.html"
    index = project.root / "build/smoke/reports/index.html"
    assert "tiny" not in index.read_text(encoding="utf-8")  # its specs have not been looked at
    everything = Papers.compiled(workspace)
    everything.write(["tiny"])
    whole = index.read_text(encoding="utf-8")
    assert 'href="papers/tiny.html"' in whole and 'href="papers/mine.html"' in whole
    index.unlink()
    assert refresh(workspace, compilation, ["mine/one"]) == line and index.read_text(encoding="utf-8") == whole
    monkeypatch.setattr(papers_module.Papers, "write", lambda *_, **__: pytest.fail("nothing has been run"))
    assert refresh(workspace, compilation, ["mine/one"], idle=True) == line
    monkeypatch.undo()
    monkeypatch.chdir(project.root)
    project.write("specs/mine/broken.yaml", "grid: {}\n")  # nobody asked for it
    index.unlink()
    assert refresh(workspace, compilation, ["mine/one"]) == line and index.is_file()


def test_the_command(project: Project, pfl: Pfl) -> None:
    specs = project.root / "specs"
    assert pfl(specs, "report", "mine") == (0, "../reports/papers/mine.html\n../reports/index.html\n", "")
    index = "../reports/papers/tiny.html\n../reports/index.html\n"
    assert pfl(specs, "report")[1] == f"../reports/papers/mine.html (up to date)\n{index}"
    assert pfl(specs, "report", "mines") == (2, "", "pfl: unknown paper 'mines'; did you mean 'mine'?\n")


# Published numbers with what was obtained: verdicts, other protocols, and what the index says of them.


def measured(root: Path, run: str, percents: list[int]) -> None:
    """A run of two clients with 100 samples each, which after round i both classify `percents[i]` of them."""
    rounds = [round_ for round_ in range(1, len(percents) + 1) for _ in range(2)]
    correct = [percent for percent in percents for _ in range(2)]
    made = rounds_table(rounds, [0, 1] * len(percents), correct, [100] * len(rounds), [1.0] * len(rounds))
    write_table(root / "artifacts/runs" / run / "rounds.parquet", made, "rounds/2", run=run, diverged=None)


def of_seeds(root: Path, runs: list[str], published: Any, metric: str = "final") -> ResolvedTable:
    """A table of one cell that shows the last round of some runs, each with a seed of its own."""
    one = table([cell({"method": "FedTP"}, runs, published)], ["method"], [], metric=metric)
    records = {}
    for seed, run in enumerate(runs):
        path = root / run_path(run, "rounds.parquet")
        rounds = read_table(path, "rounds/2")[0]["round"].to_pylist()[-1] if path.is_file() else 1
        evaluation = {"every": 1, "window": 0, "curve_every": 1}
        records[run] = {**RECORD, "seed": seed, "training": {"rounds": rounds}, "evaluation": evaluation}
    return with_records(root, one, records)


def only(resolved: ResolvedTable, root: Path) -> Obtained:
    (one,) = collect_obtained(results_of(resolved, root))
    return one


def test_of_one_seed_there_is_no_verdict(tmp_path: Path) -> None:
    measured(tmp_path, "a", [10, 20, *[80] * 9, 90])
    one = only(of_seeds(tmp_path, ["a", "later"], (85.5, 3.0)), tmp_path)
    assert (one.difference, one.verdict, one.noise, one.runs, one.ids) == (4.5, NO_VERDICT, None, (1, 2), ("a",))
    assert (one.published, one.obtained, one.last, one.compared) == ("85.50±3.00", "90.00", "", "+4.50")
    assert one.reached == 12  # the others end at 80
    assert one.elsewhere["last ten"] == 81.0 and one.elsewhere["best by test"] == 90.0
    assert "last round" not in one.elsewhere  # which is what the table shows


def test_of_three_seeds_there_is_one(tmp_path: Path) -> None:
    for run, last in zip("abc", (70, 73, 79), strict=True):
        measured(tmp_path, run, [*[10] * 11, last])
    one = only(of_seeds(tmp_path, ["a", "b", "c"], (60.0, None)), tmp_path)
    # 70, 73, 79 are 4, 1 and 5 from their mean; Student's quantile with two degrees of freedom is 4.3027.
    assert one.noise == pytest.approx(4.302653 * ((16 + 1 + 25) / 2 / 3) ** 0.5, abs=1e-4)
    assert (one.difference, one.verdict, one.reached, one.compared) == (14.0, BEYOND, 12, "+14.00 beyond noise (11.38)")
    assert one.elsewhere["last ten"] == pytest.approx((16 + 16.3 + 16.9) / 3, abs=1e-6)


def test_where_a_paper_names_no_round_it_is_the_mean_of_the_last_ten_beside_the_last(tmp_path: Path) -> None:
    measured(tmp_path, "a", [10, 20, *[80] * 9, 90])
    measured(tmp_path, "b", [40, 50])
    resolved = of_seeds(tmp_path, ["a", "b"], (62.0, None), "last_ten")
    one = only(resolved, tmp_path)
    assert (one.obtained, one.last, one.difference) == ("63.00±18.00", "70.00±20.00", 1.0)
    assert "last ten" not in one.elsewhere and "last round" not in one.elsewhere
    out = tmp_path / "out"
    report(resolved, tmp_path, out)
    assert "**63.00±18.00** / 70.00±20.00 (**62.00**)" in (out / "report.md").read_text("utf-8")
    assert "</span> / 70.00±20.00</span>" in (out / "report.html").read_text("utf-8")
    assert r"/ 70.00$\pm$20.00" in (out / "report.tex").read_text("utf-8")
    (row,) = read_table(out / "table.parquet", "table/2")[0].to_pylist()
    assert (row["obtained_mean"], row["last_round"]) == (63.0, 70.0)


def test_what_is_not_published_or_not_obtained_is_left_out_and_clients_count_by_themselves(tmp_path: Path) -> None:
    measured(tmp_path, "a", [50, 51])
    cells = [
        cell({"method": "both"}, ["a"], (51.0, None, "quoted")),
        cell({"method": "own"}, ["a"]),
        cell({"method": "later"}, ["b"], (51.0, None)),
        cell({"method": "client"}, ["a"], (49.0, 0.2), client=0),
    ]
    resolved = table(cells, ["method"], [], metric="final", clients={"method": {"client": 0}})
    record = {**RECORD, "training": {"rounds": 2}, "evaluation": {"every": 1, "window": 0, "curve_every": 1}}
    resolved = with_records(tmp_path, resolved, {"a": record})
    both, client = collect_obtained(results_of(resolved, tmp_path))
    assert both.labels == ("both",) and both.quoted and count_published(resolved) == 3
    assert client.labels == ("client",) and client.difference == 2.0 and client.elsewhere["best by test"] == 51.0


def some(difference: float) -> Obtained:
    return Obtained(
        ("x",), "1.00", "2.00", "", difference, NO_VERDICT, None, (1, 1), False, {"window": 1.5}, "", ("a",)
    )


def test_a_paper_counts_each_of_its_tables_once() -> None:
    briefs = [
        Brief("p/table1", "", published=30, obtained=(some(1.0),), agreement=Agreement(30, [1.0])),
        Brief("p/table1_again", "", published=30, obtained=(some(3.0),), agreement=Agreement(30, [3.0])),
        Brief("p/own", "", published=7),
    ]
    places = [Place("Table 1", "all", ("table1", "table1_again"))]
    paper = Summary("p", "P", "Somebody", briefs, places)
    assert paper.published == 30 and len(paper.obtained) == 2
    assert paper.agreement == Agreement(30, [1.0, 3.0])
    assert Summary("p", "P", "Somebody", briefs).published == 67
