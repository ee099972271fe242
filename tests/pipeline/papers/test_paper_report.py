"""Pages of papers: which specs they gather, what they count, when they are written, and that LaTeX takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.figure_demo import demo as figures
from support.pages import HOSTILE, Document, squeezed
from support.paper_specs import SPECS
from support.project import Project, make_project, spec
from support.report_demo import (
    cell,
    changed,
    claim,
    demo,
    results_of,
    runs_of,
    table,
    with_note,
    write_metrics,
    write_run,
)

from pflcore.artifacts import read_meta, read_table, write_table
from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.papers import pages as papers_module
from pipeline.papers import paper_page
from pipeline.papers.contents import read_contents
from pipeline.papers.coverage import Claims, Coverage, cover
from pipeline.papers.pages import Papers
from pipeline.papers.paper import Paper, Summary, papers_of, summary
from pipeline.papers.paper_page import write_paper
from pipeline.papers.refresh import refresh
from pipeline.report.drawing.curves import draw_curves
from pipeline.report.drawing.hover import MOST_POINTS, hover_data
from pipeline.report.pages.study import examine
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
    assert found == Coverage(done=1, partly=1, missing=1, diverged=1, quoted=1, unplanned=1)
    assert (found + found).total() == 12


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
        ("place,spec", "specs/mine/contents.csv:1: the columns are place, holds, specs, reason"),
        ("Table 1,x,two,", "specs/mine/contents.csv:2: 'two' is no spec of this paper; known: one"),
        ("Table 1,x,,", "specs/mine/contents.csv:2: either specs are about Table 1, or there is a reason why none is"),
        (
            "Table 1,x",
            "specs/mine/contents.csv:2: a line has a place, what it holds, specs and, without these, a reason",
        ),
    ],
)
def test_contents_that_make_no_sense(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "mine").mkdir()
    text = f"{line}\n" if line.startswith("place") else f"place,holds,specs,reason\n{line}\n"
    (tmp_path / "mine/contents.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_contents(tmp_path, "mine", ["one"])
    assert str(error.value) == message


def test_the_papers_contents_name_every_table_and_figure_of_their_specs() -> None:
    papers = {path.parent.name for path in SPECS.glob("*/contents.csv")}
    assert papers == {"fedtp", "fedofa", "fedperfix", "pfedla"}
    for paper in papers:
        names = [path.stem for path in (SPECS / paper).glob("*.yaml")]
        places = read_contents(SPECS, paper, names)
        listed = {name for place in places for name in place.specs}
        shown = {name for name in names if name.startswith(("table", "fig"))}
        # Other readings of what is listed, and other data.
        readings = {
            "table2_all",
            "table3_settings",
            "table3_partition",
            "table4_last",
            "fig10_released",
            "table3_commands",
        }
        assert shown - listed <= readings | {"table1_jpeg", "table1_part", "table3_jpeg"}


def test_summary_of_the_demo_survives_json(tmp_path: Path) -> None:
    told = summary(only_paper(tmp_path, demo(tmp_path)), tmp_path)
    assert told.coverage == Coverage(done=20, missing=2, diverged=2, quoted=4)
    assert told.claims == Claims({"not yet": 1, "one seed: undecided": 1, "contradicted": 1})
    assert list(told.claims.numbers) == ["one seed: undecided", "not yet", "contradicted"]
    assert Summary.from_json(json.loads(json.dumps(told.to_json()))) == told


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


def test_links_lead_somewhere(tmp_path: Path) -> None:
    resolved = demo(tmp_path)
    href = "../partitions/digits-iid-n3-s0-00000000/index"
    assert f"{href}.html" not in write(tmp_path, resolved)["html"]
    for name in (f"reports/papers/{href}.html", "reports/demo/table2/report.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("made")
    text = write(tmp_path, resolved)
    assert f'<a href="{href}.html">' in text["html"] and f"]({href}.md)" in text["md"]
    for target in re.findall(r'href="([^"#]+)"', text["html"]):
        assert target == "../index.html" or (tmp_path / "reports/papers" / target).exists(), target
    for anchor in re.findall(r'href="#([^"]+)"', text["html"]):
        assert f'id="{anchor}"' in text["html"], anchor


def test_pages_of_a_long_paper_come_go_and_have_links_that_lead_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_page, "MOST_TABLES", 2)
    href = "../partitions/digits-iid-n3-s0-00000000/index"
    for name in (f"reports/papers/{href}.html", "reports/demo/t1/report.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("made")
    tables = [changed(figures(tmp_path), spec=f"demo/t{i}", notes=["In all."]) for i in (1, 2, 3)]
    first = write(tmp_path, *tables)["html"]
    papers = tmp_path / "reports/papers"
    parts = {path.name: path.read_text(encoding="utf-8") for path in papers.glob("demo/*.html")}
    assert set(parts) == {f"t{i}.html" for i in (1, 2, 3)}
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
    fedtp = cells[5][2]
    assert fedtp["title"] == "FedTP · CIFAR-10 · Dirichlet · clients = 50" and fedtp["runs"] == ["fedtp-d50"]
    run = data["runs"]["fedtp-d50"]
    path = tmp_path / run_path("fedtp-d50", "evaluation.parquet")
    metrics = read_meta(path, "evaluation/1")["protocols"]["last_rounds"]
    assert run["values"]["last_rounds"] == [metrics["mean"], metrics["std"]]
    assert run["facts"]["device"] == "cpu" and run["facts"]["data (SHA-256)"] == "d" * 64
    assert cells[0][1]["obtained"] == "diverged" and data["runs"]["local-t-p100"]["diverged"]["client"] == 3
    assert cells[0][1]["note"] == "printed twice"
    assert cells[6][0]["quoted"] and "runs" not in cells[6][0]
    assert data["tables"]["s1"]["command"] == "pfl run demo/table2"
    assert len(data["parts"]) == 6  # what all runs share is there once


def test_commands_of_real_runs(tmp_path: Path) -> None:
    project = make_project(tmp_path, default=["tiny"])
    workspace = project.workspace()
    papers = Papers.of(workspace, compile_workspace(workspace))
    assert papers.write(["tiny"]) == ["tiny"]
    data = data_of(papers.page("tiny").read_text(encoding="utf-8"))
    stages = {f"{stage.file}:{stage.name}" for stage in compile_workspace(workspace).stages}
    assert len(data["runs"]) == 2 and {run["train"] for run in data["runs"].values()} <= stages
    parts = data["runs"][next(iter(data["runs"]))]["parts"]
    assert data["parts"][parts["training"]]["lr"] == 0.1


def test_hover_points_lie_where_the_curves_are_drawn(tmp_path: Path) -> None:
    resolved = demo(tmp_path)
    study = examine(resolved, runs_of(resolved, tmp_path), tmp_path)
    found = hover_data(study.results.layout, study.curves, study.drawn)
    assert len(found["panels"]) == 4 and found["panels"][2]["title"] == "CIFAR-10 · Dirichlet · clients = 50"
    panel = found["panels"][2]
    name, rounds, values, row = panel["curves"][-1]
    assert name == " · ".join(study.results.layout.rows[row])
    assert f'id="series-{row}-{found["panels"].index(panel)}"' in study.drawn.svg
    curve = next(c for c in study.curves if c.row == ("FedTP",) and c.column[1:] == ("Dirichlet", "50"))
    assert (name, found["rounds"][rounds]) == ("FedTP", [int(r) for r in curve.points.index])
    assert values == pytest.approx(curve.points.tolist(), abs=0.005)
    left, top, width, height = panel["box"]
    x = left + (100 - panel["x"][0]) / (panel["x"][1] - panel["x"][0]) * width
    y = top + (1 - (values[-1] - panel["y"][0]) / (panel["y"][1] - panel["y"][0])) * height
    ends = [path.split("L")[-1].split() for path in re.findall(r'<path d="(M [^"]*L[^"]*)" clip-path', study.drawn.svg)]
    assert any(abs(float(a) - x) < 0.1 and abs(float(b) - y) < 0.1 for a, b in ends)


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    resolved = demo(tmp_path)
    study = examine(resolved, runs_of(resolved, tmp_path), tmp_path)
    long = study.curves[0]
    points = type(long.points)([50.0] * 1501, index=range(1, 1502))
    layout, curves = study.results.layout, [type(long)(long.row, long.column, points)]
    found = hover_data(layout, curves, draw_curves(layout, curves))
    (panel,), (rounds,) = found["panels"], found["rounds"]
    assert len(panel["curves"][0][2]) == MOST_POINTS
    assert rounds[0] == 1 and rounds[-1] == 1501


def test_a_run_that_diverged_at_once_has_no_curve(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 80.0, diverged=True)
    path = tmp_path / run_path("a", "rounds.parquet")
    rounds, meta = read_table(path, "rounds/2")
    write_table(path, rounds.slice(0, 0), "rounds/2", **meta | {"diverged": {"round": 1, "client": 3}})
    text = write(tmp_path, table([cell({"method": "A"}, ["a"])], ["method"], []))
    assert "Test accuracy (%) over rounds, 1 curve." in text["md"]
    data = data_of(text["html"])
    assert [panel["curves"] for panel in data["curves"]["s1"]["panels"]] == [[]]
    assert data["runs"]["a"]["diverged"] == {"round": 1, "client": 3}


def test_smoke_is_on_every_page(tmp_path: Path) -> None:
    text = write(tmp_path, demo(tmp_path, profile="smoke"))
    assert text["md"].startswith("# FedTP (SMOKE PROFILE)\n\n> **SMOKE PROFILE: ")
    assert "<title>FedTP (SMOKE PROFILE)</title>" in text["html"] and 'class="banner"' in text["html"]
    assert r"\pagestyle{myheadings}" in text["tex"] and "SMOKE PROFILE" in text["tex"].split(r"\begin{document}")[0]
    assert data_of(text["html"])["tables"]["s1"]["command"] == "pfl run demo/table2 --profile smoke"
    assert "SMOKE" not in "".join(write(tmp_path, demo(tmp_path)).values())


def test_hostile_words_stay_text(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 80.0)
    hostile = HOSTILE.replace("<script>", "</script><script>")
    cells = [
        cell({"method": hostile}, ["a"], (80.0, 0.1), note=hostile),
        cell({"method": "B"}, [], (80.0, 0.1), note=hostile),
    ]
    resolved = table(
        cells,
        ["method"],
        [],
        **dict.fromkeys(("title", "caption"), hostile),
        paper={"name": hostile, "citation": hostile, "table": hostile},
        claims=[claim({"method": [hostile]}, {"method": ["B"]}, text=hostile)],
        notes=[hostile],
    )
    text = write(tmp_path, resolved)
    document = Document(text["html"])
    assert document.tags.count("script") == 1 and document.text.count(hostile) >= 8
    assert data_of(text["html"])["tables"]["s1"]["cells"][0][0]["note"] == hostile
    assert hostile not in text["tex"] and "<script" not in text["md"]


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


def test_html_loads_nothing(tmp_path: Path) -> None:
    page = write(tmp_path, demo(tmp_path), changed(figures(tmp_path), spec="demo/more"))["html"]
    assert not {"link", "img", "iframe"} & set(Document(page).tags)
    rest = re.sub(r'xmlns(:xlink)?="http://www\.w3\.org/\S+"', "", page)
    assert "http:" not in rest and "https:" not in rest
    for target in re.findall(r'href="([^"]{0,20})', page):
        assert target.startswith(("#", "data:image/png;", "../")), target
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = make_project(tmp_path, default=["tiny"])
    project.write("specs/mine/one.yaml", spec("[fedavg]", title="One", rounds=3))
    return project


def artifact(project: Project, name: str, mean: float = 80.0) -> str:
    """The first run of a spec gets artifacts; its id."""
    workspace = project.workspace()
    run = next(iter(compile_workspace(workspace, [name]).tables[name].runs))
    write_run(workspace.root, run, mean)
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


def test_the_end_of_a_run_refreshes_what_it_touched(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    workspace = project.workspace()
    compilation = compile_workspace(workspace)
    line = refresh(workspace, compilation, ["mine/one"])
    assert line == "By paper: reports/papers/mine.html; all papers: reports/index.html"
    assert (project.root / "reports/papers/mine.html").is_file()
    assert not (project.root / "reports/papers/tiny.html").exists()
    run = artifact(project, "mine/one")
    (project.root / run_path(run, "evaluation.parquet")).write_text("{")
    assert refresh(workspace, compilation, ["mine/one"]).startswith("pages of papers: ")


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


def test_the_command(project: Project) -> None:
    def pfl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline", *arguments]
        return subprocess.run(command, cwd=project.root / "specs", capture_output=True, text=True, check=False)

    done = pfl("report", "mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "../reports/papers/mine.html\n../reports/index.html\n"
    again = pfl("report")
    assert (
        again.stdout == "../reports/papers/mine.html (up to date)\n../reports/papers/tiny.html\n../reports/index.html\n"
    )
    wrong = pfl("report", "mines")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "pfl: unknown paper 'mines'; did you mean 'mine'?\n"
