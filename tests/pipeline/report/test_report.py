"""Reports of small tables in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.fake_catalog import BASE, resolved
from support.pages import HOSTILE, Document, squeezed
from support.project import tree
from support.report_demo import (
    EVALUATION,
    RECORD,
    cell,
    claim,
    demo,
    report,
    results_of,
    table,
    with_records,
    write_metrics,
    write_run,
)

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import summarise
from pipeline.report.claims import judge_claims
from pipeline.report.drawing.sections import PlainTable, drop_constant_columns
from pipeline.report.formats import csv_text
from pipeline.report.legend import PROTOCOLS, facts, legend
from pipeline.report.render import escape_latex, escape_markdown
from pipeline.report.settings import confounded_settings
from pipeline.spec.table import Published, ResolvedTable, read_resolved
from pipeline.workspace import report_files

FILES = ["claims.csv"]
FILES += [f"curves.{kind}" for kind in ("csv", "png", "svg")]
FILES += [*(f"report.{kind}" for kind in ("html", "md", "tex")), "table.csv", "table.parquet"]


def build(resolved: ResolvedTable, root: Path) -> dict[str, str]:
    """The text files of a report by name."""
    out = root / "reports" / "out"
    report(resolved, root, out)
    assert {path.relative_to(root).as_posix() for path in out.iterdir()} == set(report_files("out"))
    paths = {path.name: path for path in out.rglob("*") if path.is_file() and path.parent.name != "metrics"}
    text = {name: paths[name].read_text("utf-8") for name in paths if not name.endswith((".png", ".parquet"))}
    drawn = "curves.csv" in text
    assert sorted(paths) == [
        name for name in FILES if (drawn or "curves" not in name) and (resolved.claims or name != "claims.csv")
    ]
    assert ("includegraphics{figures/curves.png}" in text["report.tex"]) == drawn
    return text


CITED = ("name", "citation", "table")
Made = tuple[ResolvedTable, Path, dict[str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The demonstration: its table, its folder and the text files of its report; not to be changed."""
    root = tmp_path_factory.mktemp("demo")
    resolved = demo(root)
    return resolved, root, build(resolved, root)


def test_cells_of_every_kind(made: Made) -> None:
    resolved, root, _ = made
    frame = results_of(resolved, root).to_arrow().to_pandas().set_index(["method", "setting", "clients"])
    diverged = frame.loc[("Local-T", "Pathological", "100")]
    assert diverged["verdict"] == "diverged" and math.isnan(diverged["obtained_mean"]) and diverged["n"] == 0
    missing = frame.loc[("pFedMe-T", "Dirichlet", "100")]
    assert missing["verdict"] == "missing" and math.isnan(missing["obtained_mean"])
    absent = frame.loc[("pFedGP", "Dirichlet", "50")]
    assert absent["verdict"] == "absent" and absent["quoted"] and absent["runs"] == ""
    fedtp = frame.loc[("FedTP", "Dirichlet", "50")]
    rounds, _ = read_table(root / "artifacts/runs/fedtp-d50/rounds.parquet", "rounds/2")
    metrics = summarise(rounds, EVALUATION, 100)["last_rounds"]
    assert (fedtp["obtained_mean"], fedtp["obtained_std"]) == (metrics["mean"], metrics["std"])
    assert fedtp["difference"] == pytest.approx(metrics["mean"] - 81.24)
    assert fedtp["best_obtained"] and fedtp["best_published"]
    best = frame[frame["best_published"]].reset_index()
    assert best["method"].tolist() == ["FedPer-T", "FedTP", "FedTP", "FedTP"]  # FedTP loses one setting in its paper


def test_seeds_are_averaged_and_missing_ones_are_not_zero(tmp_path: Path) -> None:
    for seed, mean in enumerate((80.0, 84.0, 88.0)):
        write_metrics(tmp_path, f"a-{seed}", mean, 1.0)
    write_metrics(tmp_path, "b-0", 70.0, 1.5)
    cells = [
        cell({"method": "A"}, ["a-0", "a-1", "a-2"]),
        cell({"method": "B"}, ["b-0"]),
        cell({"method": "C"}, ["a-0", "a-2", "not-run"]),
        cell({"method": "D"}, ["b-0", "not-run"]),
    ]
    resolved = table(cells, ["method"], [])
    a, b, c, d = results_of(resolved, tmp_path).cells
    assert a.obtained and (a.obtained.mean, a.obtained.std, a.n) == (84.0, pytest.approx(math.sqrt(32 / 3)), 3)
    assert b.obtained and (b.obtained.mean, b.obtained.std, b.n) == (70.0, 1.5, 1)
    assert c.obtained and (c.obtained.mean, c.obtained.std, c.n) == (84.0, 4.0, 2)
    assert d.obtained and (d.obtained.mean, d.obtained.std, d.n) == (70.0, None, 1), (
        "± is to be over seeds, of two or more"
    )
    text = build(resolved, tmp_path)
    assert "| C | **84.00±4.00** \\[2/3\\] |" in squeezed(text["report.md"])
    assert "[n/m]: n of the cell's m runs are done." in Document(text["report.html"]).text
    assert r"\textbf{84.00$\pm$4.00} {[}2/3{]}" in text["report.tex"]


def test_ties_as_printed_are_all_best(tmp_path: Path) -> None:
    for run, mean in {"a": 90.004, "b": 90.0, "c": 89.99}.items():
        write_metrics(tmp_path, run, mean)
    cells = [cell({"method": run.upper()}, [run]) for run in "abc"]
    for better, best in {"higher": [True, True, False], "lower": [False, False, True]}.items():
        resolved = table(cells, ["method"], [], better=better)
        assert [c.best_obtained for c in results_of(resolved, tmp_path).cells] == best


def test_markdown_of_the_demo(made: Made) -> None:
    lines = squeezed(made[2]["report.md"])
    start = lines.index("| method | CIFAR-10 | | | |")
    assert lines[start + 2] == "| | *Pathological* | | *Dirichlet* | |"
    assert lines[start + 3] == "| | *clients = 50* | *clients = 100* | *clients = 50* | *clients = 100* |"
    assert re.fullmatch(
        r"\| Local-T \| 8\d\.\d\d±0\.\d\d \(84\.55±0\.15\) \| diverged \(82\.21±0\.08\) .*", lines[start + 4]
    )
    pfedme, pfedgp = lines[start + 7], lines[start + 10]
    assert "| — (77.57±0.52) |" in pfedme and pfedme.startswith("| pFedMe-T |")
    assert pfedgp == ("| pFedGP | (89.20±0.30\\*)† | (88.80±0.30\\*)† | (63.30±0.30\\*)† | (61.30±0.30\\*)† |")
    text = "\n".join(lines)
    assert "- no run is planned: pFedGP" in text
    assert "20 no verdict, 2 missing, 2 diverged, 4 absent" in text
    assert "1. **Not yet**: FedTP beats every other method in every setting. (The paper's own table contradicts" in text
    assert "2. **One seed: undecided**: Vanilla personalisation beats FedAvg." in text
    start = lines.index(next(line for line in lines if line.startswith("| claim |")))
    assert lines[start + 3] == (
        "| | published | fails | 20 of 20 | FedTP against FedPer-T | CIFAR-10 · Pathological · clients = 100 "
        "| 88.39±0.14 | 89.01±0.12 | −0.62 | −0.98 to −0.26 | |"
    )
    assert {"- protocol: last\\_rounds", "- measured: last 20 rounds, every 5", "- n: 5", "- clients: 3"} <= set(lines)
    # It has not been run, so nothing is known of where its number comes from.
    assert not [line for line in lines if line.startswith("| pfedme-t-p100 |")]
    assert "data dddddddddddd, partition eeeeeeeeeeee, code c0de00c0de00, device cpu, torch 2.11.0, param" in text
    assert [line for line in lines if line.startswith("| fedtp-p50 ")]
    assert "`.pfl/timings/demo/table2.md`" in text


def test_files_hold_what_the_table_holds(made: Made) -> None:
    _, root, text = made
    rows, meta = read_table(root / "reports/out/table.parquet", "table/2")
    assert rows.num_rows == 28
    assert rows.schema.names == [
        *("spec", "method", "dataset", "setting", "clients", "published_mean", "published_std", "quoted"),
        *("obtained_mean", "obtained_std", "n", "difference", "best_published", "best_obtained", "tied"),
        *("verdict", "runs", "kept_since", "by_seed"),
    ]
    assert rows["by_seed"][5].as_py() == [{"seed": 0, "value": rows["obtained_mean"][5].as_py()}]
    assert rows["obtained_mean"].null_count == 8  # two diverged, two missing, four absent
    assert meta["metric"] == "last_rounds" and meta["rows"] == ["method"]
    table_csv = list(csv.DictReader(io.StringIO(text["table.csv"])))
    assert [row["verdict"] for row in table_csv] == rows["verdict"].to_pylist()
    assert table_csv[5]["obtained_mean"] == f"{rows['obtained_mean'][5].as_py():.6g}"
    claims = list(csv.DictReader(io.StringIO(text["claims.csv"])))
    assert len(claims) == 16 + 20 + 4 + 4  # what can be compared, obtained and printed
    assert {row["claim_verdict"] for row in claims} == {"not yet", "fails", "one seed: undecided", "holds"}
    assert {row["seeds"] for row in claims if row["values"] == "obtained"} == {"1"}
    assert {(row["values"], row["p"] == "", row["low"] == "") for row in claims} == {
        ("obtained", False, True),
        ("published", True, False),
    }
    curves = list(csv.DictReader(io.StringIO(text["curves.csv"])))
    assert [int(row["round"]) for row in curves] == [10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 100]
    assert len(curves[0]) == 1 + 22  # what is missing or absent has no curve
    assert curves[-1]["Local-T / CIFAR-10 / Pathological / 100"] == ""  # diverged before
    assert float(curves[-1]["FedTP / CIFAR-10 / Dirichlet / 50"]) > 75


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    resolved = demo(tmp_path)
    report(resolved, tmp_path, tmp_path / "one")
    write_text(tmp_path / "table.json", resolved.model_dump_json())
    report(read_resolved(tmp_path / "table.json"), tmp_path, tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert str(tmp_path) not in (tmp_path / "one" / "report.html").read_text()


def test_a_smoke_report_says_so_first(tmp_path: Path) -> None:
    text = build(demo(tmp_path, profile="smoke"), tmp_path)
    assert text["report.md"].splitlines()[2].startswith("> **SMOKE PROFILE: ")
    assert text["report.tex"].index("SMOKE PROFILE") < text["report.tex"].index("begin{table}")
    assert "2. **No verdict**: Vanilla personalisation beats FedAvg." in text["report.md"]


def test_hostile_labels_stay_text(tmp_path: Path) -> None:
    for run, mean in (("a", 80.0), ("b", 70.0)):
        write_run(tmp_path, run, mean)
    cells = [
        cell({"method": HOSTILE, "set_up": HOSTILE}, ["a"], (80.0, 0.1)),
        cell({"method": "_hidden", "set_up": HOSTILE}, ["b"], (80.0, 0.1)),
        cell({"method": "C", "set_up": HOSTILE}, [], (80.0, 0.1), note=HOSTILE),
    ]
    words = {"title": HOSTILE, "caption": HOSTILE, "notes": [HOSTILE], "paper": dict.fromkeys(CITED, HOSTILE)}
    words["claims"] = [claim({"method": [HOSTILE]}, {"method": ["_hidden"]}, text=HOSTILE)]
    text = build(table(cells, ["method"], ["set_up"], **words), tmp_path)
    markdown = text["report.md"]
    assert "<script" not in markdown
    rows = [line for line in markdown.partition("## Claims")[0].splitlines() if line[:1] == "|" and "script" in line]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)  # the label opens no column
    assert re.search(r"(?<!\\)[$_`]", markdown.split("## Provenance")[0]) is None
    document = Document(text["report.html"])
    assert document.tags.count("script") == document.tags.count("svg") == 1 and document.text.count(HOSTILE) >= 8
    assert escape_latex(HOSTILE) in text["report.tex"] and HOSTILE not in text["report.tex"]
    assert next(csv.DictReader(io.StringIO(text["table.csv"])))["method"] == HOSTILE
    assert f"_hidden / {HOSTILE}" in next(csv.reader(io.StringIO(text["curves.csv"])))
    ET.fromstring(text["curves.svg"])


def test_escapes_one_by_one() -> None:
    assert escape_markdown("a_b|c*d<e&f$g\\h\ni") == r"a\_b\|c\*d&lt;e&amp;f\$g\\h i"
    assert escape_latex("a_b & 5% $x$ #1 {y}") == r"a\_b \& 5\% \$x\$ \#1 \{y\}"
    assert (
        escape_latex("\\^~<|>")
        == r"\textbackslash{}\textasciicircum{}\textasciitilde{}\textless{}\textbar{}\textgreater{}"
    )
    assert escape_latex("α ≥ 0.3, 90±1, −2") == r"$\alpha$ $\geq$ 0.3, 90$\pm$1, $-$2"
    assert escape_latex("Müller, Ångström, Łódź") == r"M{\"{u}}ller, {\r{A}}ngstr{\"{o}}m, \L{}{\'{o}}d{\'{z}}"
    assert escape_latex("中\u200b") == r"\texttt{U+4E2D}\texttt{U+200B}"


def test_latex_headers_span(made: Made) -> None:
    tex = made[2]["report.tex"]
    assert r"method & \multicolumn{4}{c}{CIFAR-10} \\" in tex
    assert r" & \multicolumn{2}{c}{Pathological} & \multicolumn{2}{c}{Dirichlet} \\" in tex
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in tex
    assert r"pFedGP & \published{89.20$\pm$0.30$^{*}$}$\dagger$" in tex
    assert r"\published{\textbf{90.31$\pm$0.26}}" in tex


def test_html_is_one_page_that_loads_nothing(made: Made) -> None:
    page = made[2]["report.html"]
    assert not {"link", "img", "iframe"} & set(Document(page).tags)
    # Namespaces of the drawing are names, not addresses that are loaded.
    rest = re.sub(r'xmlns(:xlink)?="http://www\.w3\.org/\S+"', "", page)
    assert "http:" not in rest and "https:" not in rest and "url(" not in rest.replace("url(#", "")
    fedtp = page[page.index('scope="row">FedTP<') :]
    values = re.search(r'data-obtained="([\d.]+)" data-published="90.31" data-difference="(-?[\d.]+)"', fedtp)
    assert values and float(values[1]) - 90.31 == pytest.approx(float(values[2]), abs=1e-3)
    markup = re.sub(r"<!--.*?-->|<script>.*?</script>", "", page, flags=re.DOTALL)
    ids = re.findall(r'\bid="([^"]+)"', markup)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:href="#|url\(#)([^")]+)', markup)) <= set(ids)


def test_without_columns_or_rows_or_runs(tmp_path: Path) -> None:
    text = build(table([cell({"method": "A"}, ["a"]), cell({"method": "B"}, ["b"])], ["method"], []), tmp_path)
    lines = squeezed(text["report.md"])
    start = lines.index("| method | accuracy (%) |")
    assert lines[start + 2 : start + 4] == ["| A | — |", "| B | — |"]
    assert "Convergence" not in text["report.md"]
    write_metrics(tmp_path, "a", 90.0, 0.5)
    lines = squeezed(build(table([cell({"clients": "50"}, ["a"])], [], ["clients"]), tmp_path)["report.md"])
    start = lines.index("| clients = 50 |")
    assert lines[start + 2] == "| **90.00±0.50** |"


def test_two_row_axes_and_a_hole(tmp_path: Path) -> None:
    at = [("vit", "A", "x"), ("vit", "A", "y"), ("vit", "B", "x"), ("cnn", "A", "x")]
    for index, (backbone, method, setting) in enumerate(at):
        write_metrics(tmp_path, f"{backbone}-{method}-{setting}".lower(), 80.0 - index, 0.1)
    cells = [
        cell({"backbone": b, "method": m, "setting": s}, [f"{b}-{m}-{s}".lower()], (79.0, None) if b == "vit" else None)
        for b, m, s in at
    ]
    cells.append(cell({"backbone": "cnn", "method": "A", "setting": "y"}, [], (60.0, None)))
    lines = squeezed(build(table(cells, ["backbone", "method"], ["setting"]), tmp_path)["report.md"])
    start = lines.index("| backbone | method | x | y |")
    assert lines[start + 2 : start + 5] == [
        "| vit | A | **80.00±0.10** (**79.00**) | **79.00±0.10** (**79.00**) |",
        "| | B | 78.00±0.10 (**79.00**) | |",  # excluded from the grid: nothing is missing
        "| cnn | A | 77.00±0.10 | (60.00)† |",
    ]
    assert "- no run is planned: cnn · A · y" in lines


@pytest.mark.parametrize(
    ("metric", "n", "measured"),
    [
        ("last_rounds", "5", "last 20 rounds, every 5"),  # from 80 to 100, both ends
        ("clients", "12", None),
        ("worst_tenth", "2", None),
        ("final", "1", None),
        ("best_by_validation", None, None),  # not measured on validation samples
    ],
)
def test_the_protocol_is_named(tmp_path: Path, metric: str, n: str | None, measured: str | None) -> None:
    write_run(tmp_path, "a", 80.0, clients=12)
    resolved = with_records(
        tmp_path, table([cell({"method": "A"}, ["a"])], ["method"], [], metric=metric), {"a": RECORD}
    )
    results = results_of(resolved, tmp_path)
    found = dict(facts(results))
    assert (found["protocol"], found.get("n"), found.get("measured")) == (metric, n, measured)
    assert (found["rounds"], found["clients"], found["seeds per cell"]) == ("100", "3", "1")
    assert PROTOCOLS[metric] in legend(results)
    text = build(resolved, tmp_path)
    printed_text = [text[name].replace("\\", "") for name in ("report.md", "report.tex")]
    for plain in (*printed_text, Document(text["report.html"]).text):
        assert f"protocol: {metric}" in plain and f"{metric}: " in plain
    printed = re.search(r"\| A +\| +\*\*([\d.±]+)\*\*", text["report.md"])
    assert bool(printed) == (n is not None)
    if printed:
        assert ("±" in printed[1]) == (metric != "final")


@pytest.mark.parametrize(
    ("seeds", "per_cell", "runs"),
    [
        ([[0, 1, 2], [0, 1, 2]], "3", None),
        ([[0, 1, 2], [0, 1]], "2, 3", None),
        ([[0, 0, 1, 1]], "2", "4"),
        ([[0, 0]], "1", "2"),
        ([[0], [0, 1]], "1, 2", None),
    ],
)
def test_the_facts_say_over_how_many_runs(tmp_path: Path, seeds: list[list[int]], per_cell: str, runs: str) -> None:
    records = {f"{row}-{at}": RECORD | {"seed": seed} for row, own in enumerate(seeds) for at, seed in enumerate(own)}
    for run in records:
        write_run(tmp_path, run, 80.0)
    cells = [cell({"method": str(row)}, [f"{row}-{at}" for at in range(len(own))]) for row, own in enumerate(seeds)]
    results = results_of(with_records(tmp_path, table(cells, ["method"], []), records), tmp_path)
    found = dict(facts(results))
    assert (found["seeds per cell"], found.get("runs per cell")) == (per_cell, runs)
    assert "± of a cell of several runs: population standard deviation over them." in legend(results)


def test_durations_stay_out_of_the_report(tmp_path: Path) -> None:
    resolved = demo(tmp_path)
    before = build(resolved, tmp_path)
    assert not (tmp_path / ".pfl").exists()
    write_text(tmp_path / ".pfl/timings/fedtp-p50.json", '{"seconds": 12.34, "device": "cpu", "rounds": 2}')
    write_text(tmp_path / ".pfl/timings/fedtp-d50.json", '{"seconds": 7.66, "device": "NVIDIA H200", "rounds": 2}')
    assert build(resolved, tmp_path) == before
    assert (tmp_path / ".pfl/timings/demo/table2.md").read_text() == (
        "# Training time of demo/table2\n\n| run | device | seconds |\n|:---|:---|---:|\n"
        "| fedtp-d50 | NVIDIA H200 | 7.7 |\n| fedtp-p50 | cpu | 12.3 |\n| **all** | | 20.0 |\n"
    )


def test_metrics_are_a_file_per_row_and_an_entry_per_column(tmp_path: Path) -> None:
    for run, mean in {"a": 81.23456, "b": 92.5, "c": 70.0}.items():
        write_metrics(tmp_path, run, mean)
    labels = [("Ours (β=1)/2", "x", "1", "a"), ("Ours (β=1)/2", "y", "1", "b"), ("Ours (β=1)\\2", "x", "1", "c")]
    cells = [cell({"method": row, "set": one, "of": two}, [run]) for row, one, two, run in labels]
    cells.append(cell({"method": "Ours (β=1)\\2", "set": "y", "of": "1"}, ["unmade"]))
    report(table(cells, ["method"], ["set", "of"]), tmp_path, tmp_path / "out")
    report(table(cells, ["method"], ["set", "of"]), tmp_path, tmp_path / "out")  # nothing is left of the first time
    metrics = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out/metrics").iterdir()}
    assert metrics == {
        "Ours_(_1)_2.json": {"x": {"1": 81.2346}, "y": {"1": 92.5}},
        "Ours_(_1)_2_2.json": {"x": {"1": 70.0}},
    }


def test_damaged_measurements_and_reserved_names(tmp_path: Path) -> None:
    resolved = table([cell({"method": "A"}, ["a"])], ["method"], [])
    path = tmp_path / "artifacts/runs/a/rounds.parquet"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(UserError, match=r"rounds\.parquet: not a readable Parquet file"):
        report(resolved, tmp_path, tmp_path / "out")
    path.unlink()
    with pytest.raises(UserError, match=r"demo/table2: an axis cannot be named 'n'"):
        report(table([cell({"n": "A"}, ["a"])], ["n"], []), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_reports_do_not_import_torch() -> None:
    code = "import sys, pipeline.report.write, pflcore.protocols; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_misprint_is_shown_and_compared_with_nothing(tmp_path: Path) -> None:
    wrong = Published(mean=None, std=None, quoted=False, note="the mean is 80.00", printed="99.00", misprint=True)
    cells = [cell({"m": "A"}, ["a"]).model_copy(update={"published": wrong}), cell({"m": "B"}, ["b"], (80.0, None))]
    claims = [claim({"m": ["A"]}, {"m": ["B"]})]
    made = table(cells, ["m"], [], claims=claims)
    for run in ("a", "b"):
        write_run(tmp_path, run, 80.0)
    results = results_of(made, tmp_path)
    first, second = results.cells
    assert first.published is None and first.difference is None and not first.best_published and second.best_published
    assert first.verdict == "misprint"
    (judgement,) = judge_claims(results)
    assert judgement.published is None
    report(made, tmp_path, tmp_path / "out")
    page = (tmp_path / "out/report.md").read_text()
    assert "(99.00§)" in page and "§: printed so, though it cannot be" in page
    assert "A: the mean is 80.00" in page
    assert "1 no verdict" in page
    assert r"99.00\S{}" in (tmp_path / "out/report.tex").read_text()
    assert "99.00§" in (tmp_path / "out/report.html").read_text()


# CSV that no spreadsheet executes.

FORMULAS = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "\t=1", " =1", "=", "-x"]
PLAIN = ["FedAvg", "-0.5", "+1", "-12", "a=b", "'quoted'", "", "λ = 5"]


def test_formulas_are_made_inert_and_nothing_else_changes() -> None:
    frame = pd.DataFrame({"method": [*FORMULAS, *PLAIN], "=head": np.arange(16) - 8.5, "best": [True, None] * 8})
    rows = list(csv.reader(io.StringIO(csv_text(frame))))
    assert rows[0] == ["method", "'=head", "best"]
    assert [row[0] for row in rows[1:]] == [*(f"'{text}" for text in FORMULAS), *PLAIN]
    assert [float(row[1]) for row in rows[1:]] == list(np.arange(16) - 8.5)  # a negative number is a number
    assert [row[2] for row in rows[1:3]] == ["True", ""]
    rows = list(csv.reader(io.StringIO(csv_text(pd.DataFrame({"a": ["a\r\nb", "\r=1"]})))))
    assert rows == [["a"], ["a \nb"], ["' =1"]]  # no text begins a line
    assert csv_text(pd.DataFrame({"=a": [0.123456789]}, index=[20]), "round") == "round,'=a\n20,0.123457\n"


def test_columns_in_which_all_rows_are_equal_are_dropped() -> None:
    header, one, other = ("run", "device", "torch", "bytes"), ("a", "cpu", "2.1", "7"), ("b", "cpu", "2.2", "7")
    rest, told = drop_constant_columns(PlainTable(header, [one, other], labels=3))
    assert rest == PlainTable(("run", "torch"), [("a", "2.1"), ("b", "2.2")], labels=2)
    assert told == "device cpu, bytes 7"
    rest, told = drop_constant_columns(PlainTable(header, [one, one], labels=3), keep=3)
    assert (rest, told) == (PlainTable(header[:3], [one[:3]] * 2, labels=3), "bytes 7")
    for rows in ([], [one]):
        assert drop_constant_columns(PlainTable(header, rows, labels=3)) == (PlainTable(header, rows, labels=3), "")


# What a table's runs differ in beside what its labels say is printed with it.

SPEC = """\
grid:
  base: {base}
  axes:
{axes}
table: {{rows: [{rows}], columns: [{columns}]}}
"""
METHODS = "    method: {FedAvg: fedavg, FedPer: {name: fedper, layers: 1%s}, FedTP: fedtp}\n"


Rows = list[tuple[str, ...]]


def told(folder: Path, axes: str, rows: str = "method", columns: str = "clients") -> Rows:
    text = SPEC.format(base=BASE, axes=axes.rstrip(), rows=rows, columns=columns)
    result = resolved(folder, text)
    assert result.table is not None
    return confounded_settings(result.table, {run.id: run for run in result.runs})


SHRUNK = "FedAvg: {name: fedavg, partition: {name: pathological, shrink: 0.5}}"
UNLIKE: dict[str, Rows] = {
    METHODS % "": [],
    METHODS % ", training: {lr: 0.05, momentum: 0.9}": [
        ("method", "training.lr", "0.01", "0.05 (FedPer)"), ("method", "training.momentum", "0", "0.9 (FedPer)"),
    ],
    # Another component is its name; options of unlike entries are not compared, those of like ones are.
    METHODS % ", backbone: convnet": [("method", "backbone", "vit", "convnet (FedPer)")],
    METHODS % ", backbone: {dropout: 0.1}": [("method", "backbone.dropout", "none", "0.1 (FedPer)")],
    # An option that came later is in no record at its default.
    f"    method: {{{SHRUNK}, FedTP: {{name: fedtp, partition: pathological}}}}\n": [
        ("method", "partition.shrink", "0.5", "its default (FedTP)"),
    ],
    # What changes no number.
    METHODS % ", training: {save_weights: true}, evaluation: {curve_every: 7}, analyses: [weights], seed: 1": [],
}  # fmt: skip


@pytest.mark.parametrize("axes", UNLIKE)
def test_settings_of_a_row(tmp_path: Path, axes: str) -> None:
    assert told(tmp_path, axes + "    clients: [5, 9]\n") == UNLIKE[axes]


def test_an_override_is_told_as_well_and_for_every_axis(tmp_path: Path) -> None:
    more = (
        "    clients: [5, 9, 20]\n"
        "  overrides:\n"
        "    - {when: {method: [FedAvg, FedPer], clients: 9}, set: {training: {rounds: 70}}}\n"
        "    - {when: {method: [FedAvg, FedPer], clients: 20}, set: {training: {rounds: 90}}}"
    )
    assert told(tmp_path, METHODS % "" + more) == [
        ("method", "training.rounds", "70, 90", "1500 (FedTP)"),
        ("clients", "training.rounds", "1500", "70 (9); 90 (20)"),
    ]


def test_what_an_axis_is_about_is_not_told(tmp_path: Path) -> None:
    axes = (
        "    training.lr: [0.1, 0.2]\n"
        "    model: {A: {method: fedavg}, B: {method: fedtp, backbone: convnet}, C: {method: fedtp, clients: 3}}\n"
    )
    assert told(tmp_path, axes, "training.lr", "model") == [("model", "clients", "20", "3 (C)")]


def test_every_format_says_it_under_the_table(tmp_path: Path) -> None:
    resolved_demo = demo(tmp_path)
    fast = {**RECORD, "training": {"rounds": 100, "lr": 0.05}}
    report(with_records(tmp_path, resolved_demo, {"fedtp-p50": fast}), tmp_path, tmp_path / "out")
    text, html, tex = ((tmp_path / f"out/report.{kind}").read_text("utf-8") for kind in ("md", "html", "tex"))
    markdown = "\n".join(squeezed(text))
    row = "| method | training.lr | 0.01 | 0.05 (FedTP) |"
    assert 0 < markdown.index(row) < markdown.index("Against the published values")
    assert 'scope="row">training.lr</th>\n<td>0.01</td>\n<td>0.05 (FedTP)</td>' in html
    assert r"method & training.lr & 0.01 & 0.05 (FedTP) \\" in tex
