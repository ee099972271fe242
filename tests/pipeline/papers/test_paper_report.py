"""Pages of papers: which specs they gather, what they count, when they are written, and that LaTeX takes them."""

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support import report_demo as rd
from support.command import pfl as pfl
from support.figure_demo import demo as figures
from support.pages import HOSTILE, Document, squeezed
from support.paper_specs import SPECS
from support.project import make_project, spec, tree
from support.report_demo import RECORD, cell, changed, demo, table
from support.rounds import rounds_table

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Entry, Ledger
from pipeline.papers import pages as module
from pipeline.papers.pages import Papers, reports_of, write_paper
from pipeline.papers.paper import Paper, Place, papers_of, read_contents
from pipeline.report.agreement import Agreement, compared_cells
from pipeline.report.printed import print_cell
from pipeline.results.keep import keep
from pipeline.results.report import under_other_protocols
from pipeline.running.runner import update_pages
from pipeline.workspace import run_path

KINDS = ("md", "tex", "html")
CITED = {"name": "FedTP", "citation": "Li et al.", "table": "Table II"}


def write(root, *tables):
    """The pages of the only paper of some tables, by format, and the reports of these tables."""
    runs = {run: of for one in tables for run, of in rd.runs_of(one, root).items()}
    (paper,) = papers_of({one.spec: one for one in tables}, runs).values()
    studies = reports_of(paper, root)
    write_paper(paper, studies, root)
    pages = {kind: (root / f"reports/papers/{paper.name}.{kind}").read_text(encoding="utf-8") for kind in KINDS}
    return pages, studies


def test_papers_are_folders_in_the_order_of_their_tables():
    names = ["quick", "own/b", "own/c", "fedtp/extra/deep", "fedtp/fig1", "fedtp/table10", "fedtp/table2", "alpha/x"]
    about = {name: CITED for name in names if name.startswith("fedtp/") or name == "own/c"}
    tables = {name: table([], ["method"], [], spec=name, title=f"T {name}", paper=about.get(name)) for name in names}
    papers = papers_of(tables, {})
    assert list(papers) == ["fedtp", "alpha", "own", "quick"]  # what is published comes first
    assert list(papers["fedtp"].tables) == ["fedtp/table2", "fedtp/table10", "fedtp/fig1", "fedtp/extra/deep"]
    titles = [(paper.title, paper.citation) for paper in papers.values()]
    assert titles == [("FedTP", "Li et al."), ("T alpha/x", ""), ("own", ""), ("T quick", "")]
    with pytest.raises(UserError, match=r"^specs/papers.yaml: reports/papers is where the pages of papers are"):
        papers_of({"papers": table([], ["method"], [], spec="papers")}, {})
    # Accuracies of specs about the same table count once.
    cells = [cell({"method": name}, [], (50.0, None)) for name in "abc"]
    counts = {"p/table1": 3, "p/table1b": 3, "p/own": 2}.items()
    tables = {spec: table(cells[:count], ["method"], [], spec=spec) for spec, count in counts}
    paper = Paper("p", "P", "Somebody", tables, {})
    assert paper.published == 8
    assert replace(paper, places=(Place("Table 1", "all", ("table1", "table1b")),)).published == 3
    assert Agreement.total([Agreement(3, [1.0]), Agreement(3, [3.0])], 3) == Agreement(3, [1.0, 3.0])


CONTENTS = """\
place,holds,specs,reason
Table 1,accuracy of one,one,
Table 2,"mAP, in percent",,there is no detector
Figure 3,accuracy over rounds,one,
Section 4,it is fast,,nobody measured it
"""


def test_coverage_of_a_paper_is_that_of_its_tables_and_figures(project):
    artifact(project, "tiny")
    project.write("specs/mine/contents.csv", CONTENTS)
    papers = Papers.compile(project.workspace())
    papers.write(["mine", "tiny"])
    index = papers.index.read_text(encoding="utf-8")
    assert "No spec: Table 2, mAP, in percent: there is no detector" in index and "it is fast" not in index
    # Two of mine have a spec and no run, one has none; tiny is one by itself, of whose two cells one is done.
    for bar in ("1 partly, 2 missing, 1 unplanned", "2 missing, 1 unplanned", "1 partly"):
        assert f'aria-label="{bar}"' in index
    for kind in KINDS:
        assert "it is fast: nobody measured it" in papers.page("mine").with_suffix(f".{kind}").read_text("utf-8")
    project.write("specs/mine/contents.csv", CONTENTS.replace("nobody measured it", "it is not"))
    assert Papers.compile(project.workspace()).write(["mine"]) == ["mine"]
    for lines, message in {
        "place,spec": "1: the columns are place, holds, specs, reason",
        "place,holds,specs,reason\nTable 1,x,two,": "2: 'two' is no spec of this paper; known: one",
        "place,holds,specs,reason\nTable 1,x,,": "2: a line has .* either specs or a reason",
    }.items():
        project.write("specs/mine/contents.csv", f"{lines}\n")
        with pytest.raises(UserError, match=f"^specs/mine/contents.csv:{message}"):
            read_contents(project.root / "specs", "mine", ["one"])
    # The papers' own list every table and figure, but for other readings of what is listed, and other data.
    readings = {"table2_all", "table3_settings", "table3_partition", "table4_last", "fig10_released"}
    readings |= {"table1_jpeg", "table1_part", "table3_jpeg", "table3_text", "table7_jpeg"}
    for paper in ("fedtp", "fedofa", "fedperfix", "pfedla"):
        names = [path.stem for path in (SPECS / paper).glob("*.yaml")]
        listed = {name for place in read_contents(SPECS, paper, names) for name in place.specs}
        assert {name for name in names if name.startswith(("table", "fig"))} - listed <= readings


def test_a_page_has_what_the_specs_reports_have(tmp_path):
    one = rd.with_note(demo(tmp_path, notes=["In both.", "In one."]), 1, "printed twice")
    more = {"paper": CITED | {"table": "Table III"}, "figures": ["resources", "gain", "rollout"]}
    two = changed(figures(tmp_path), spec="demo/table3", notes=["In both."], **more)
    text, (found, _) = write(tmp_path, one, two)
    lines = squeezed(text["md"])
    title = "Table II: Transformer-based methods on image data"
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {title} |"))
    assert lines[0] == "# FedTP" and lines[start].startswith(f"| {title} | 28 | 20 | 0 | 2 | 2 | 4 |")
    claims = "1 one seed: undecided, 1 not yet, 1 contradicted"
    assert lines[start + 2] == f"| all | 34 | 26 | 0 | 2 | 2 | 4 | 0 | {claims} |"
    assert lines.count("- In both.") == 1 and lines.count("- In one.") == 1
    for kind in KINDS:
        plain = Document(text[kind]).text if kind == "html" else text[kind]
        for words in ("FedTP beats every other method", "Resources", "he paper's own table contradicts it"):
            assert words in plain, (kind, words)
    linked = [*re.findall(r"!\[.*\]\((.*)\)", text["md"]), *re.findall(r"includegraphics\{(.*?)\}", text["tex"])]
    assert len(linked) == 8 and all((tmp_path / "reports/papers" / path).is_file() for path in linked)
    # What the script shows of cells and their runs.
    data = json.loads(re.search(r"^const data = (.*);$", text["html"], re.MULTILINE)[1])
    cells = data["tables"]["s1"]["cells"]
    (run,), number = cells[5][2]["runs"], dict(cells[5][2]["facts"])["obtained"]
    assert run == ["fedtp-d50", f"seed 0: {number}"] and re.fullmatch(r"8\d\.\d\d±0\.\d\d", number)
    facts = dict(data["runs"]["fedtp-d50"])
    assert (facts["device"], facts["data (SHA-256)"], facts["metric last_rounds"]) == ("cpu", "d" * 64, number)
    assert dict(cells[0][1]["facts"])["note"] == "printed twice" and data["tables"]["s1"]["command"].endswith("table2")
    assert found.coverage == Counter(done=20, missing=2, diverged=2, quoted=4)
    assert found.verdicts == Counter({"not yet": 1, "one seed: undecided": 1, "contradicted": 1})


def test_pages_of_a_long_paper_come_go_and_have_links_that_lead_somewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_TABLES", 1)
    href = "../partitions/digits-iid-n3-s0-00000000/index"
    for name in (f"reports/papers/{href}.html", "reports/demo/t1/report.html"):
        write_text((tmp_path / name).resolve(), "made")
    one = changed(figures(tmp_path), notes=["In all."], figures=["resources"])
    tables = [changed(one, spec=f"demo/t{i}") for i in (1, 2)]
    first = write(tmp_path, *tables)[0]["html"]
    papers = tmp_path / "reports/papers"
    parts = {path.name: path.read_text(encoding="utf-8") for path in papers.glob("demo/*.html")}
    assert set(parts) == {"t1.html", "t2.html"}
    assert "../../demo/t1/report.html" in parts["t1.html"] and f"../{href}.html" in parts["t1.html"]
    for folder, text in [(papers, first), *((papers / "demo", text) for text in parts.values())]:
        assert text.count("In all.</li>") == 1
        for target in re.findall(r' href="([^"#]+)"', text):
            assert target.endswith("../index.html") or (folder / target).exists(), target
        for anchor in re.findall(r'href="#([^"]+)"', text):
            assert f'id="{anchor}"' in text, anchor
    write(tmp_path, *tables[:-1])
    assert not list(papers.glob("demo/*.html")) and (papers / "demo/t1/curves.svg").is_file()


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
def test_plain_pdflatex_compiles_it_without_overfull_lines(tmp_path):
    words = {"title": HOSTILE, "notes": [HOSTILE]}
    text, _ = write(tmp_path, demo(tmp_path, profile="smoke", **words), changed(figures(tmp_path), spec="demo/more"))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "demo.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path / "reports/papers", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    packages = re.findall(r"usepackage(?:\[.*\])?\{(.*)\}", text["tex"])
    assert packages == ["geometry", "booktabs,longtable,graphicx,color"]


@pytest.fixture
def project(tmp_path):
    project = make_project(tmp_path, default=["tiny"])
    project.write("specs/mine/one.yaml", spec("[fedavg]", title="One", rounds=3))
    return project


def artifact(project, name):
    """The first run of a spec gets artifacts; its id."""
    compilation = compile_workspace(project.workspace(), [name])
    run = next(iter(compilation.tables[name].runs))
    measured(project.root, run, [80] * compilation.runs[run].training.rounds)
    return run


def test_pages_are_written_when_they_change(project, pfl, monkeypatch):
    def files():
        return {name: (reports / name).stat().st_mtime_ns for name in tree(reports)}

    specs, reports, mine = project.root / "specs", project.root / "reports", "../reports/papers/mine.html"
    assert pfl(specs, "report") == (0, f"{mine}\n../reports/papers/tiny.html\n../reports/index.html\n", "")
    first = files()
    of_mine = {"index.html", *(f"papers/mine.{kind}" for kind in KINDS)}
    assert set(first) == of_mine | {f"papers/tiny.{kind}" for kind in KINDS}
    assert "<h2>Provenance</h2>" in (reports / "papers/mine.html").read_text()  # though no run is there
    assert pfl(specs, "report", "mine")[1] == f"{mine} (up to date)\n../reports/index.html\n"
    assert files() == first
    papers = Papers.compile(project.workspace())
    run = artifact(project, "mine/one")
    assert papers.write(papers.select([])) == ["mine"]
    changes = {name for name, written in files().items() if first.get(name) != written}
    assert changes == of_mine | {f"papers/mine/one/curves.{kind}" for kind in ("svg", "png", "csv")}
    # The same artifacts give the same bytes, from nothing, and where what is remembered is damaged.
    same = tree(reports)
    shutil.rmtree(reports)
    project.write(".pfl/papers.json", '{"tiny": {"state": "x"}}')
    assert papers.write(papers.select([])) == ["mine", "tiny"] and tree(reports) == same
    assert pfl(specs, "report", "mines") == (2, "", "pfl: unknown spec 'mines'; did you mean 'mine'?\n")
    for names in (["mine"], ["mine/one"], ["specs/mine/one.yaml"], ["specs/mine/"]):
        assert papers.select(names) == ["mine"]
    (project.root / run_path(run, "rounds.parquet")).write_bytes(b"damaged")
    with pytest.raises(UserError):
        papers.write(["mine"])
    # A file that goes away while pages are looked at is one that is not there.
    monkeypatch.setattr(Path, "exists", lambda path: True)
    assert module.stamp(project.root / "gone") == "-"


def test_a_kept_result_changes_the_pages_of_its_own_paper(project):
    Papers.compile(project.workspace()).write(["mine", "tiny"])
    compilation = compile_workspace(project.workspace(), ["tiny"])
    run = next(iter(compilation.runs.values()))
    facts = {**rd.KEPT, "diverged": {"round": 1, "client": 0}}
    entry = Entry(run, compilation.made_by[run.id], "2026-11-22", None, facts, {})
    Ledger(project.root).write("tiny", [entry], {})
    assert Papers.compile(project.workspace()).write(["mine", "tiny"]) == ["tiny"]


def test_a_page_shows_neither_results_of_earlier_code_nor_files_in_place_of_kept_ones(reproduced):
    def shown():
        papers = Papers.compile(reproduced.workspace())
        assert papers.write(["tiny"]) == ["tiny"]
        page = (reproduced.root / "reports/papers/tiny.md").read_text("utf-8")
        return re.findall(r"^\| Fed\w+ +\| +\W*([\d.]+|—)", page, re.MULTILINE)

    before = shown()
    (lock,) = reproduced.root.glob("stages/federations/*/dvc.lock")
    text = lock.read_text(encoding="utf-8")
    lock.write_text(re.sub(r"(stage train fedper\S+\s+--seal\s+)", r"\1old-", text), encoding="utf-8")
    assert shown() == [before[0], "—"]
    lock.write_text(text, encoding="utf-8")
    keep(reproduced.workspace(), "tiny")
    for run in compile_workspace(reproduced.workspace()).runs:
        measured(reproduced.root, run, [1, 1])
    assert shown() == before


def test_the_end_of_a_trial_run(project, monkeypatch):
    monkeypatch.chdir(project.root)
    workspace = project.workspace("smoke")
    compilation = compile_workspace(workspace, ["mine/one"])
    line = update_pages(workspace, compilation, ["mine/one"])
    assert line == "By paper: build/smoke/reports/papers/mine.html; all papers: build/smoke/reports/index.html"
    index = project.root / "build/smoke/reports/index.html"
    assert "tiny" not in index.read_text(encoding="utf-8")  # its specs have not been looked at
    Papers.compile(workspace).write(["tiny"])
    whole = index.read_text(encoding="utf-8")
    assert 'href="papers/tiny.html"' in whole and 'href="papers/mine.html"' in whole
    index.unlink()
    project.write("specs/mine/broken.yaml", "grid: {}\n")  # nobody asked for it
    assert update_pages(workspace, compilation, ["mine/one"]) == line and index.read_text(encoding="utf-8") == whole
    monkeypatch.setattr(module.Papers, "write", lambda *_, **__: pytest.fail("nothing has been run"))
    assert update_pages(workspace, compilation, ["mine/one"], idle=True) == line


def measured(root, run, percents):
    """A run of two clients with 100 samples each, which after round i both classify `percents[i]` of them."""
    rows = [(at, client, percent, 100, 1.0) for at, percent in enumerate(percents, 1) for client in (0, 1)]
    path = root / "artifacts/runs" / run / "rounds.parquet"
    write_table(path, rounds_table(rows), "rounds/2", run=run, diverged=None)


def obtained(root, curves, cells, metric="final", **changes):
    """What is obtained for the cells of a table, of runs with seeds of their own; one without percents is not made."""
    evaluation, records = {"every": 1, "window": 0, "curve_every": 1}, {}
    for seed, (run, percents) in enumerate(curves.items()):
        training = {"rounds": len(percents) or 1}
        records[run] = {**RECORD, "seed": seed, "training": training, "evaluation": evaluation}
        if percents:
            measured(root, run, percents)
    resolved = rd.with_records(root, table(cells, ["method"], [], metric=metric, **changes), records)
    results = rd.results_of(resolved, root)
    found = [(one, print_cell(one, 2), under_other_protocols(results, one)) for one in compared_cells(results)]
    return found, resolved.published_accuracies


def test_what_is_obtained_for_published_numbers(tmp_path):
    def of(curves, published, metric="final"):
        ((one,), _) = obtained(tmp_path, curves, [cell({"method": "FedTP"}, list(curves), published)], metric)
        return one

    one, printed, elsewhere = of({"a": [10, 20, *[80] * 9, 90], "later": []}, (85.5, 3.0))
    assert (one.n, printed.partial) == (1, "1/2")
    assert (printed.published, printed.obtained, printed.last) == ("85.50±3.00", "90.00", "")
    assert printed.comparison == "+4.50" and elsewhere["reached in round"] == "12"
    assert elsewhere["last ten"] == "81.00" and elsewhere["best by test"] == "90.00"
    assert "last round" not in elsewhere  # which is what the table shows
    runs = {run: [*[10] * 11, last] for run, last in zip("abc", (70, 73, 79), strict=True)}
    _, printed, elsewhere = of(runs, (60, None))
    # 70, 73, 79 are 4, 1 and 5 from their mean; Student's quantile with two degrees of freedom is 4.3027.
    assert printed.comparison == f"+14.00 beyond noise ({4.302653 * ((16 + 1 + 25) / 2 / 3) ** 0.5:.2f})"
    assert elsewhere["reached in round"] == "12"
    # Where a paper names no round it is the mean of the last ten beside the last.
    _, printed, elsewhere = of({"a": [10, 20, *[80] * 9, 90], "b": [40, 50]}, (62.0, None), "last_ten")
    assert (printed.obtained, printed.last, printed.comparison) == ("63.00±18.00", "70.00±20.00", "+1.00")
    assert "last ten" not in elsewhere and "last round" not in elsewhere and elsewhere["reached in round"] == "—"
    # What is not published or not obtained is left out, and clients count by themselves.
    cells = [
        cell({"method": "both"}, ["a"], (51.0, None, "quoted")),
        cell({"method": "own"}, ["a"]),
        cell({"method": "later"}, ["later"], (51.0, None)),
        cell({"method": "client"}, ["a"], (49.0, 0.2), client=0),
    ]
    curves = {"a": [50, 51], "later": []}
    ((both, *_), (client, printed, elsewhere)), published = obtained(
        tmp_path, curves, cells, clients={"method": {"client": 0}}
    )
    assert both.labels == {"method": "both"} and both.quoted and published == 3
    assert obtained(tmp_path, curves, cells, "clients.auc", clients={"method": {"client": 0}}) == ([], 0)
    assert client.labels == {"method": "client"} and printed.comparison == "+2.00"
    assert elsewhere["best by test"] == "51.00"
