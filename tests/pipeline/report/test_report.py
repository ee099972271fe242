"""Reports of small tables: every format and file, what is printed of a cell, and what is refused."""

import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from support import report_demo as rd
from support.fake_catalog import BASE, resolved
from support.figure_demo import record, write_analysis, write_rounds
from support.pages import HOSTILE, Document, squeezed
from support.project import tree
from support.report_demo import cell, claim, table, write_metrics

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.protocols import summarise
from pipeline.report.claims import judge_claims
from pipeline.report.formats import chars_without_latex, csv_text, escape_latex, escape_markdown
from pipeline.report.legend import PROTOCOLS, facts, legend
from pipeline.report.settings import confounded_settings, settings_of
from pipeline.spec.run import short_hash
from pipeline.spec.table import Published, read_resolved
from pipeline.workspace import report_files


def build(resolved, root):
    """The text files of a report by name."""
    out = root / "reports" / "out"
    rd.report(resolved, root, out)
    assert {path.relative_to(root).as_posix() for path in out.iterdir()} == set(report_files("out"))
    paths = {path.name: path for path in out.rglob("*.*") if path.parent.name != "metrics"}
    return {name: path.read_text("utf-8") for name, path in paths.items() if path.suffix not in (".png", ".parquet")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The text files of the demonstration's report, and its folder."""
    root = tmp_path_factory.mktemp("demo")
    return build(rd.demo(root), root), root


def test_files_hold_cells_of_every_kind(made):
    made, root = made
    rows, meta = read_table(root / "reports/out/table.parquet", "table/2")
    frames = {name: pd.read_csv(io.StringIO(text)) for name, text in made.items() if name.endswith(".csv")}
    frame = frames["table.csv"].astype({"clients": str})
    assert list(frame) == [
        *("spec", "method", "dataset", "setting", "clients", "published_mean", "published_std", "quoted"),
        *("obtained_mean", "obtained_std", "n", "difference", "best_published", "best_obtained", "tied"),
        *("verdict", "runs", "kept_since"),
    ]
    assert len(frame) == 28 and meta["rows"] == ["method"] and rows.schema.names == [*frame, "by_seed"]
    cells = frame.set_index(["method", "setting", "clients"])
    verdicts = {("Local-T", "Pathological", "100"): "diverged", ("pFedMe-T", "Dirichlet", "100"): "missing"}
    for at, verdict in {**verdicts, ("pFedGP", "Dirichlet", "50"): "absent"}.items():
        one = cells.loc[at]
        assert one["verdict"] == verdict and math.isnan(one["obtained_mean"]) and one["n"] == 0
        assert one["quoted"] == (verdict == "absent") == pd.isna(one["runs"])
    fedtp, run = cells.loc[("FedTP", "Dirichlet", "50")], root / "artifacts/runs/fedtp-d50/rounds.parquet"
    figure = summarise(read_table(run, "rounds/2")[0], rd.EVALUATION, 100)["last_rounds"]
    assert (fedtp["obtained_mean"], fedtp["obtained_std"]) == pytest.approx((figure["mean"], figure["std"]), rel=1e-5)
    assert fedtp["difference"] == pytest.approx(figure["mean"] - 81.24, abs=1e-5) and fedtp["best_obtained"]
    best = frame[frame["best_published"]]["method"].tolist()
    assert best == ["FedPer-T", "FedTP", "FedTP", "FedTP"]  # FedTP loses one setting in its paper
    claims, curves, measured = (frames[f"{name}.csv"] for name in ("claims", "curves", "results"))
    assert len(claims) == 16 + 20 + 4 + 4  # what can be compared, obtained and printed
    assert set(claims["claim_verdict"]) == {"not yet", "fails", "one seed: undecided", "holds"}
    ours = claims["values"] == "obtained"
    assert (claims["p"].notna() == ours).all() and (claims["low"].isna() == ours).all()  # of one seed no interval
    assert curves["round"].tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 100]
    assert curves.shape[1] == 1 + 22  # what is missing or absent has no curve
    assert math.isnan(curves["Local-T / CIFAR-10 / Pathological / 100"].iloc[-1])  # diverged before
    own = measured[(measured["run"] == "fedtp-d50") & (measured["round"] == 100)]
    last = 100 * own["correct"].sum() / own["total"].sum()
    assert last == pytest.approx(curves["FedTP / CIFAR-10 / Dirichlet / 50"].iloc[-1], abs=1e-3)


def test_pages_of_the_demo(made):
    lines, (tex, page) = squeezed(made[0]["report.md"]), (made[0][f"report.{kind}"] for kind in ("tex", "html"))
    start = lines.index("| method | CIFAR-10 | | | |")
    assert lines[start + 2] == "| | *Pathological* | | *Dirichlet* | |"
    assert lines[start + 3] == "| | *clients = 50* | *clients = 100* | *clients = 50* | *clients = 100* |"
    kind = r"\| Local-T \| 8\d\.\d\d±0\.\d\d \(84\.55±0\.15\) \| diverged \(82\.21±0\.08\) .*"
    assert re.fullmatch(kind, lines[start + 4]) and "| — (77.57±0.52) |" in lines[start + 7]
    assert lines[start + 10] == "| pFedGP | (89.20±0.30\\*)† | (88.80±0.30\\*)† | (63.30±0.30\\*)† | (61.30±0.30\\*)† |"
    assert {
        *("- no run is planned: pFedGP", "- cells: 20 no verdict, 2 missing, 2 diverged, 4 absent"),
        "1. **Not yet**: FedTP beats every other method in every setting. (The paper's own table contradicts it.)",
        "2. **One seed: undecided**: Vanilla personalisation beats FedAvg.",
        *("- protocol: last\\_rounds", "- measured: last 20 rounds, every 5", "- n: 5", "- clients: 3"),
        "| | published | fails | 20 of 20 | FedTP against FedPer-T | CIFAR-10 · Pathological · clients = 100 "
        "| 88.39±0.14 | 89.01±0.12 | −0.62 | −0.98 to −0.26 | |",
        *("| fedtp-p50 |", "| pfedme-t-p50 |"),
    } <= set(lines)
    assert not any(line.startswith("| pfedme-t-p100") for line in lines)  # a run that has not been made
    assert any("data dddddddddddd, partition eeeeeeeeeeee, code c0de00c0de00, device cpu" in line for line in lines)
    assert r"method & \multicolumn{4}{c}{CIFAR-10} \\" in tex and r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in tex
    assert r"pFedGP & \published{89.20$\pm$0.30$^{*}$}$\dagger$" in tex and r"\textbf{90.31$\pm$0.26}}" in tex
    head, define, begin, top, *rows, bottom, end = made[0]["table.tex"].splitlines()
    assert head.startswith("% ") and define == r"\providecommand{\published}[1]{(#1)}"
    assert [begin, top, bottom, end] == [r"\begin{tabular}{lcccc}", r"\toprule", r"\bottomrule", r"\end{tabular}"]
    assert "\n".join(rows) in tex and len(rows) > 8
    # The HTML page loads nothing; namespaces of the drawing are names, not addresses that are loaded.
    assert not {"link", "img", "iframe"} & set(Document(page).tags)
    rest = re.sub(r'xmlns(:xlink)?="http://www\.w3\.org/\S+"', "", page)
    assert "http:" not in rest and "https:" not in rest and "url(" not in rest.replace("url(#", "")
    values = re.search(r'data-obtained="([\d.]+)" data-published="90.31" data-difference="(-?[\d.]+)"', page)
    assert float(values[1]) - 90.31 == pytest.approx(float(values[2]), abs=1e-3)
    markup = re.sub(r"<!--.*?-->|<script>.*?</script>", "", page, flags=re.DOTALL)
    ids = re.findall(r'\bid="([^"]+)"', markup)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:href="#|url\(#)([^")]+)', markup)) <= set(ids)


def test_the_same_inputs_give_the_same_bytes(tmp_path):
    resolved = rd.demo(tmp_path, profile="smoke")
    rd.report(resolved, tmp_path, tmp_path / "one")
    write_text(tmp_path / "table.json", resolved.model_dump_json())
    write_text(tmp_path / ".pfl/timings/fedtp-p50.json", '{"seconds": 12.34, "device": "cpu", "rounds": 2}')
    timing = '{"seconds": 7.66, "device": "NVIDIA H200", "rounds": 2, "peak_mb": 1234.6}'
    write_text(tmp_path / ".pfl/timings/fedtp-d50.json", timing)
    rd.report(read_resolved(tmp_path / "table.json"), tmp_path, tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    markdown, tex, page = ((tmp_path / f"one/report.{kind}").read_text() for kind in ("md", "tex", "html"))
    assert str(tmp_path) not in page
    # Durations stay out of it.
    title, _, *lines = (tmp_path / ".pfl/timings/demo/table2.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert title == "# Training time and memory of demo/table2" and rows[0] == [
        "run",
        "device",
        "seconds",
        "MiB at most",
    ]
    assert rows[2:4] == [["fedtp-d50", "NVIDIA H200", "7.7", "1,235"], ["fedtp-p50", "cpu", "12.3", ""]]
    assert rows[4:] == [["**all**", "", "20.0", ""]]
    # A trial says so first.
    assert markdown.splitlines()[2].startswith("> **SMOKE PROFILE: ") and "2. **No verdict**: Vanilla" in markdown
    assert tex.index("SMOKE PROFILE") < tex.index("begin{table}")


def test_tables_of_other_shapes(tmp_path):
    def rows(resolved, head):
        lines = squeezed(build(resolved, tmp_path)["report.md"])
        return lines[lines.index(head) + 2 :]

    plain = table([cell({"method": "A"}, ["a"]), cell({"method": "B"}, ["b"])], ["method"], [])
    assert rows(plain, "| method | accuracy (%) |")[:2] == ["| A | — |", "| B | — |"]
    write_metrics(tmp_path, "one", 90.0, 0.5)
    many = table([cell({"method": name}, [name]) for name in ("one", "D", "E", "F")], ["method"], [])
    found = rows(many, "| method | accuracy (%) |")
    assert found[0] == "| one | **90.00±0.50** |" and "—" not in found[1]
    assert "Without a number yet: 3 of 4 rows: D, E, F." in found
    write_metrics(tmp_path, "a", 90.0, 0.5)
    alone = table([cell({"clients": "50"}, ["a"])], [], ["clients"])
    assert rows(alone, "| clients = 50 |")[0] == "| **90.00±0.50** |"
    at = [("vit", "A", "x"), ("vit", "A", "y"), ("vit", "B", "x"), ("cnn", "A", "x")]
    cells = []
    for index, (backbone, method, setting) in enumerate(at):
        write_metrics(tmp_path, f"r{index}", 80.0 - index, 0.1)
        labels = {"backbone": backbone, "method": method, "setting": setting}
        cells.append(cell(labels, [f"r{index}"], (79.0, None) if backbone == "vit" else None))
    cells.append(cell({"backbone": "cnn", "method": "A", "setting": "y"}, [], (60.0, None)))
    lines = rows(table(cells, ["backbone", "method"], ["setting"]), "| backbone | method | x | y |")
    assert lines[:3] == [
        "| vit | A | **80.00±0.10** (**79.00**) | **79.00±0.10** (**79.00**) |",
        "| | B | 78.00±0.10 (**79.00**) | |",  # excluded from the grid: nothing is missing
        "| cnn | A | 77.00±0.10 | (60.00)† |",
    ]
    assert "- no run is planned: cnn · A · y" in lines
    # Seeds are averaged, and missing ones are not zero.
    for run, mean in {"a-0": 80.0, "a-1": 84.0, "a-2": 88.0, "b-0": 70.0}.items():
        write_metrics(tmp_path, run, mean, 1.5)
    runs = {"A": ["a-0", "a-1", "a-2"], "B": ["b-0"], "C": ["a-0", "a-2", "not-run"], "D": ["b-0", "not-run"]}
    resolved = table([cell({"method": method}, own) for method, own in runs.items()], ["method"], [])
    seeds = {"a-0": 0, "a-1": 1, "a-2": 2, "b-0": 0, "not-run": 3}
    resolved = rd.with_records(tmp_path, resolved, {run: rd.RECORD | {"seed": seed} for run, seed in seeds.items()})
    found = [(one.obtained.mean, one.obtained.std, one.n) for one in rd.results_of(resolved, tmp_path).cells]
    # ± is over seeds, of two or more; of one run that is all there is to be, its own.
    assert found == [(84.0, pytest.approx(math.sqrt(32 / 3)), 3), (70.0, 1.5, 1), (84.0, 4.0, 2), (70.0, None, 1)]
    text = build(resolved, tmp_path)
    assert "| C | **84.00±4.00** \\[2/3\\] |" in squeezed(text["report.md"])
    assert r"\textbf{84.00$\pm$4.00} {[}2/3{]}" in text["report.tex"] and "84.00" in Document(text["report.html"]).text
    # A misprint is shown and compared with nothing.
    wrong = Published(mean=None, std=None, quoted=False, note="the mean is 80.00", printed="99.00", misprint=True)
    cells = [cell({"m": "A"}, ["a"]).model_copy(update={"published": wrong}), cell({"m": "B"}, ["b-0"], (80.0, None))]
    resolved = table(cells, ["m"], [], claims=[claim({"m": ["A"]}, {"m": ["B"]})])
    results = rd.results_of(resolved, tmp_path)
    first, second = results.cells
    assert first.published is None and not first.best_published and second.best_published
    assert first.verdict == "misprint" and judge_claims(results)[0].published is None
    text = build(resolved, tmp_path)
    assert "(99.00§)" in text["report.md"] and "- A: the mean is 80.00" in text["report.md"]


def test_hostile_labels_stay_text(tmp_path):
    records = {"local": record("local"), "a": record("fedtp")}
    for run in records:
        write_rounds(tmp_path, run, [100, 120 if run == "a" else 110])
    rows = [("adaptation", 0, f"{HOSTILE}.{item}", epoch, 1.0) for item in ("correct", "total") for epoch in (0, 1)]
    write_analysis(tmp_path, "a", [*rows, ("mixing", 0, f"{HOSTILE}.{HOSTILE}", 0, 1.0)])
    cells = [
        cell({"method": HOSTILE, "set_up": HOSTILE}, ["a"], (80.0, 0.1)),
        cell({"method": "_hidden", "set_up": HOSTILE}, ["local"], (80.0, 0.1)),
        cell({"method": "C", "set_up": HOSTILE}, [], (80.0, 0.1), note=HOSTILE),
    ]
    words = {"title": HOSTILE, "caption": HOSTILE, "notes": [HOSTILE]}
    words["paper"] = dict.fromkeys(("name", "citation", "table"), HOSTILE)
    words["claims"] = [claim({"method": [HOSTILE]}, {"method": ["_hidden"]}, text=HOSTILE)]
    figures = ["resources", "gain", "adaptation", "mixing"]
    resolved = rd.with_records(tmp_path, table(cells, ["method"], ["set_up"], figures=figures, **words), records)
    text = build(resolved, tmp_path)
    markdown, document = text["report.md"], Document(text["report.html"])
    rows = [line for line in markdown.partition("## Claims")[0].splitlines() if line[:1] == "|" and "script" in line]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows if row.count("alert") < 3)  # nor opens a column
    claims = markdown.partition("## Claims")[2].partition("\n## ")[0]
    assert "<script" not in markdown
    assert all(re.search(r"(?<!\\)[$_`]", part) is None for part in (markdown.partition("## Claims")[0], claims))
    assert (document.tags.count("script"), document.tags.count("svg")) == (1, 3) and document.text.count(HOSTILE) >= 14
    assert escape_latex(HOSTILE) in text["report.tex"] and HOSTILE not in text["report.tex"]
    assert next(csv.DictReader(io.StringIO(text["table.csv"])))["method"] == HOSTILE
    assert f"_hidden / {HOSTILE}" in next(csv.reader(io.StringIO(text["curves.csv"])))
    for name in ("curves", "gain", "adaptation"):
        ET.fromstring(text[f"{name}.svg"])


def test_escapes_one_by_one():
    assert escape_markdown("a_b|c*d<e&f$g\\h\ni") == r"a\_b\|c\*d&lt;e&amp;f\$g\\h i"
    latex = {
        "a_b & 5% $x$ #1 {y}": r"a\_b \& 5\% \$x\$ \#1 \{y\}",
        "\\^~<|>": r"\textbackslash{}\textasciicircum{}\textasciitilde{}\textless{}\textbar{}\textgreater{}",
        "α ≥ Σ, 90±1, −2, λς": r"$\alpha$ $\geq$ $\Sigma$, 90$\pm$1, $-$2, $\lambda$$\varsigma$",
        "οϝΑ": r"\texttt{U+03BF}\texttt{U+03DD}\texttt{U+0391}",  # of which plain LaTeX has none
        "Müller, Łódź, Nguyễn 中\u200b": r"Müller, Łódź, Nguy\~{\^{e}}n \texttt{U+4E2D}\texttt{U+200B}",
        "90° ‖w‖² ½ L₂ 10⁻": r"90\textdegree{} $\|$w$\|$${}^{2}$ $\frac{1}{2}$ L${}_{2}$ 10${}^{-}$",
        "€√n x̂": r"\texteuro{}$\surd$n \^{x}",
        "Ħę": r"\texttt{U+0126}{\fontencoding{T1}\selectfont ę}",
    }
    assert {text: escape_latex(text) for text in latex} == latex
    assert chars_without_latex("".join(latex.values())) == ["Ħ", "Α", "ο", "ϝ", "\u200b", "中"]
    formulas = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "\t=1", " =1", "=", "-x"]
    plain = ["FedAvg", "-0.5", "+1", "-12", "a=b", "'quoted'", "x,y", "λ = 5"]
    frame = {"method": [*formulas, *plain], "=head": np.arange(16) - 8.123456789, "best": [True, None] * 8}
    rows = list(csv.reader(io.StringIO(csv_text(pd.DataFrame(frame)))))
    assert rows[0] == ["method", "'=head", "best"] and rows[1][1] == "-8.12346"  # a negative number is a number
    assert [row[0] for row in rows[1:]] == [*(f"'{text}" for text in formulas), *plain]
    rows = list(csv.reader(io.StringIO(csv_text(pd.DataFrame({"a": ["a\r\nb", "\r=1"]})))))
    assert rows == [["a"], ["a \nb"], ["' =1"]]  # no text begins a line


def test_facts_name_the_protocol_and_say_over_how_many_runs(tmp_path):
    rd.write_run(tmp_path, "a", 80.0, clients=12)
    last = "last 20 rounds, every 5"  # from 80 to 100, both ends; and nothing is measured on validation samples
    expected = {"last_rounds": ("5", last), "worst_tenth": ("2", None), "best_by_validation": (None, None)}
    for metric, (n, measured) in expected.items():
        results = rd.results_of(table([cell({"method": "A"}, ["a"])], ["method"], [], metric=metric), tmp_path)
        known = dict(facts(results))
        assert (known["protocol"], known.get("n"), known.get("measured")) == (metric, n, measured)
        assert (known["rounds"], known["clients"], known["seeds per cell"]) == ("100", "3", "1")
        assert PROTOCOLS[metric] in legend(results) and (results.cells[0].obtained is None) == (n is None)
    own = {f"{at}": rd.RECORD | {"seed": seed} for at, seed in enumerate((0, 0, 1, 1, 0, 1, 2))}
    cells = [cell({"m": "A"}, list("0123")), cell({"m": "B"}, list("456"))]
    known = dict(facts(rd.results_of(rd.with_records(tmp_path, table(cells, ["m"], []), own), tmp_path)))
    assert (known["seeds per cell"], known["runs per cell"]) == ("2, 3", "3, 4")


def test_metrics_are_a_file_per_row_and_an_entry_per_column(tmp_path):
    for run, mean in {"a": 81.23456, "b": 92.5, "c": 70.0}.items():
        write_metrics(tmp_path, run, mean)
    labels = [("Ours (β=1)/2", "x", "a"), ("Ours (β=1)/2", "y", "b"), ("Ours (β=1)\\2", "x", "c")]
    cells = [cell({"method": row, "set": one, "of": "1"}, [run]) for row, one, run in labels]
    cells.append(cell({"method": "Ours (β=1)\\2", "set": "y", "of": "1"}, ["unmade"]))
    write_text(tmp_path / "out/metrics/old.json", "{}")
    rd.report(table(cells, ["method"], ["set", "of"]), tmp_path, tmp_path / "out")
    metrics = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out/metrics").iterdir()}
    assert metrics == {
        f"Ours_(_1)_2_{short_hash(['Ours (β=1)/2'])}.json": {"x": {"1": 81.2346}, "y": {"1": 92.5}},
        f"Ours_(_1)_2_{short_hash([labels[2][0]])}.json": {"x": {"1": 70.0}},
    }


def test_damaged_measurements_and_reserved_names(tmp_path):
    write_text(tmp_path / "artifacts/runs/a/rounds.parquet", "{")
    with pytest.raises(UserError, match=r"rounds\.parquet: not a readable Parquet file"):
        rd.report(table([cell({"method": "A"}, ["a"])], ["method"], []), tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match=r"demo/table2: an axis cannot be named 'n'"):
        rd.report(table([cell({"n": "A"}, ["b"])], ["n"], []), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_that_are_not_held_equal(tmp_path):
    """What a table's runs differ in beside what its labels say is printed with it."""
    plain, clients = "{FedAvg: fedavg, FedPer: {name: fedper, layers: 1%s}, FedTP: fedtp}", "    clients: [5, 9]\n"
    shrunk = "{A: {name: fedavg, partition: {name: pathological, shrink: 0.5}}, P: {partition: pathological}}"
    override = "    - {when: {method: [FedAvg, FedPer], clients: %d}, set: {training: {rounds: %d}}}\n"
    overrides = f"    clients: [5, 9, 20]\n  overrides:\n{override % (9, 70)}{override % (20, 90)}"
    models = "{A: {method: fedavg}, B: {method: fedtp, backbone: convnet}, C: {method: fedtp, clients: 3}}"
    rounds = [("method", "70, 90", "1500 (FedTP)"), ("clients", "1500", "70 (9); 90 (20)")]
    for at, (labels, more, expected) in enumerate((
        (plain % "", clients, []),
        (plain % ", training: {lr: 0.05}", clients, [("method", "training.lr", "0.01", "0.05 (FedPer)")]),
        # Another component is its name; options of unlike entries are not compared.
        (plain % ", backbone: convnet", clients, [("method", "backbone", "vit", "convnet (FedPer)")]),
        # An option that came later is in no record at its default.
        (shrunk, clients, [("method", "partition.shrink", "0.5", "its default (P)")]),
        (plain % "", overrides, [(axis, "training.rounds", *values) for axis, *values in rounds]),
        (models, "    training.lr: [0.1, 0.2]\n", [("model", "clients", "20", "3 (C)")]),  # it is about its components
    )):  # fmt: skip
        rows, columns = ("model", "training.lr") if labels == models else ("method", "clients")
        axes = f"    {rows}: {labels}\n{more}"
        spec = f"grid:\n  base: {BASE}\n  axes:\n{axes}table: {{rows: [{rows}], columns: [{columns}]}}\n"
        made = resolved(tmp_path / str(at), spec)
        assert confounded_settings(made.table, {run.id: settings_of(run) for run in made.runs}) == expected
