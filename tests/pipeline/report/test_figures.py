"""Figures of reports on hand-made artifacts: their numbers against plain computations, and every format."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib import colormaps
from support.figure_demo import (
    FIGURES,
    TOTAL,
    demo,
    record,
    study,
    write_analysis,
    write_counts,
    write_noise,
    write_rounds,
)
from support.pages import HOSTILE, Document, squeezed
from support.project import CONVNET, make_project, spec, tree
from support.report_demo import HEADINGS, RECORD, cell, claim, results_of, table, with_records, write_metrics, write_run
from support.report_demo import report as write_report

from pipeline.report.figures import build_sections
from pipeline.report.figures.gain import density
from pipeline.report.figures.rollout import overlaid
from pipeline.report.render import escape_latex
from pipeline.spec.table import ResolvedTable

HEADING = {**FIGURES, **HEADINGS}
DRAWN = [name for name in HEADING if name not in ("resources", "mixing", "ranks")]  # two columns are no ranks
Runs = dict[tuple[str, str], dict[str, dict[str, Any]]]


def report(root: Path, runs: Runs, *figures: str, **changes: Any) -> tuple[list[str], Path]:
    """The lines of a report in Markdown with the figures, blanks squeezed, and the folder of the report."""
    out = root / "out"
    write_report(study(root, runs, figures=list(figures) or None, **changes), root, out)
    return squeezed((out / "report.md").read_text(encoding="utf-8")), out


def rows_after(lines: list[str], start: str) -> list[list[str]]:
    """The cells of the Markdown table whose header begins with `start`, the header included."""
    first = next(i for i, line in enumerate(lines) if line.startswith(start))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return [table[0], *table[2:]]


def columns(out: Path, name: str) -> dict[str, list[str]]:
    """A CSV file of a report by column."""
    rows = list(csv.DictReader(io.StringIO((out / "figures" / name).read_text(encoding="utf-8"))))
    return {key: [row[key] for row in rows] for key in rows[0]}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the demonstration."""
    root = tmp_path_factory.mktemp("demo")
    write_report(demo(root), root, root / "report")
    return root / "report"


def test_every_format_has_every_figure(pages: Path) -> None:
    markdown, tex, page = ((pages / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "tex", "html"))
    document = Document(page)
    for title in HEADING.values():
        assert f"\n## {title}\n" in markdown
        assert rf"\section*{{{title}}}" in tex
        assert title in document.text
    for name in DRAWN:
        assert re.search(rf"^!\[[^]]+\]\(figures/{name}\.svg\)$", markdown, re.MULTILINE)
        assert rf"\includegraphics{{figures/{name}.png}}" in tex
        ET.fromstring((pages / f"figures/{name}.svg").read_text(encoding="utf-8"))
        assert (pages / f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
    order = [markdown.index(f"## {title}") for title in HEADING.values()]
    assert order == sorted(order)
    for words in ("multiply-adds", "mean gain", "least noise", "by chance", "position", "tuned"):
        assert words in markdown and words in tex and words in document.text
    assert {path.name for path in pages.rglob("*.csv")} == {
        "table.csv", "curves.csv", *(f"{name}.csv" for name in HEADING if name not in ("rollout", "ranks")),
    }  # fmt: skip


def test_the_same_artifacts_give_the_same_bytes(pages: Path, tmp_path: Path) -> None:
    write_report(demo(tmp_path), tmp_path, tmp_path / "again")
    assert tree(pages) == tree(tmp_path / "again")


def test_resources_are_those_of_fedperfix_table_2(tmp_path: Path) -> None:
    # ViT-S with 1000 classes; of it FedPerfix keeps the head (385,000), and adapters (3,551,232) beside it.
    vit, head, adapters = 22_050_664, 385_000, 3_551_232
    kept = {"fedavg": 0, "fedperfix": head + adapters, "apfl": vit}
    received = {"fedavg": vit, "fedperfix": vit - head, "apfl": vit}
    runs: Runs = {}
    for method in kept:
        runs[method, "x"] = {method: record(method)}
        sent = {"communicated_up": 4 * received[method], "communicated_down": 4 * received[method]}
        macs = {"fedavg": 4_600_000, "fedperfix": 5_300_000, "apfl": 9_200_000}[method]
        facts = {"parameters": vit, "stored": kept[method], "received": received[method], "macs": macs}
        write_rounds(tmp_path, method, [1], **sent, **facts, server=received[method])
    lines, out = report(tmp_path, runs, "resources")
    header, fedavg, fedperfix, apfl = rows_after(lines, "| method | model")
    assert header == [
        *("method", "model", "stored", "kept", "sent up", "sent down", "bytes up", "bytes down"),
        *("multiply-adds", "relative", "server"),
    ]
    assert fedavg[1:] == [
        *("22,050,664", "22,050,664", "0", "22,050,664", "22,050,664", "88,202,656", "88,202,656"),
        *("4,600,000", "1.00", "22,050,664"),
    ]
    mega = 2**20
    stored, sent_up = (int(fedperfix[i].replace(",", "")) / mega for i in (2, 4))
    assert (round(stored, 2), round(sent_up, 2), fedperfix[9]) == (24.42, 20.66, "1.15")
    assert round(int(apfl[2].replace(",", "")) / mega, 2) == 42.06 and apfl[9] == "2.00"
    data = columns(out, "resources.csv")
    assert data["stored"] == ["22050664", "25601896", "44101328"]  # exact, not in scientific notation
    assert data["relative"] == ["1", "1.15217", "2"]


def test_gain_over_local_pools_the_clients_of_all_seeds(tmp_path: Path) -> None:
    counts = {("local", 0): [100, 100, 100], ("local", 1): [50, 60, 70]}
    counts |= {("fedtp", 0): [110, 90, 120], ("fedtp", 1): [60, 60, 60]}
    runs: Runs = {("Local", "x"): {}, ("FedTP", "x"): {}}
    for (method, seed), correct in counts.items():
        run = f"{method}-{seed}"
        runs["Local" if method == "local" else "FedTP", "x"][run] = record(method, seed=seed)
        write_rounds(tmp_path, run, correct)
    lines, out = report(tmp_path, runs, "gain", decimals=3)
    gains = np.array([10, -10, 20, 10, 0, -10]) * 100 / TOTAL
    assert rows_after(lines, "| method | mean gain")[1:] == [
        ["FedTP", f"+{gains.mean():.3f}", f"{100 * (gains > 0).mean():.1f}", "6"]
    ]
    data = columns(out, "gain.csv")
    assert [float(x) for x in data["gain"]] == gains.tolist()
    assert data["local"] == ["local-0"] * 3 + ["local-1"] * 3  # each with Local of its own seed
    assert data["client"] == ["0", "1", "2"] * 2


def test_a_density_is_a_sum_of_normal_ones() -> None:
    values = np.array([-3.0, 1.0, 2.0, 6.5])
    found = density(values)
    assert found is not None
    at, height = found
    width = values.std(ddof=1) * len(values) ** -0.2
    plain = np.exp(-(((at[:, None] - values) / width) ** 2) / 2).sum(1) / (len(values) * width * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(height, plain, rtol=1e-9)
    np.testing.assert_allclose([at[0], at[-1]], [-3 - 3 * width, 6.5 + 3 * width])
    assert np.trapezoid(height, at) == pytest.approx(1, abs=5e-3)
    assert density(np.full(5, 2.5)) is None and density(np.array([7.0])) is None


def test_accuracy_against_noise(tmp_path: Path) -> None:
    counts = {("A", "noisy", 0): [200, 100, 60], ("A", "noisy", 1): [180, 120, 20], ("A", "clean", 0): [10, 10, 10]}
    runs: Runs = {}
    for (method, setting, seed), correct in counts.items():
        run, of = f"{method}-{setting}-{seed}".lower(), record("fedavg", clients=3, setting=setting, seed=seed)
        runs.setdefault((method, setting), {})[run] = of
        write_rounds(tmp_path, run, correct)
        write_noise(tmp_path, of, [0.0, 12.5, 25.0] if setting == "noisy" else None)
    lines, out = report(tmp_path, runs, "noise")
    accuracy = np.array([200, 100, 60, 180, 120, 20]) * 100 / TOTAL
    assert rows_after(lines, "| setting | mean")[1:] == [["noisy", f"{accuracy.mean():.2f}", "95.00", "20.00", "6"]]
    data = columns(out, "noise.csv")
    assert [float(x) for x in data["accuracy"]] == accuracy.tolist()
    assert data["noise"] == ["0", "12.5", "25"] * 2
    assert any("noise from 0 to 25, mean accuracies from 56.67 to 56.67 percent" in line for line in lines)


def test_noise_that_nobody_has(tmp_path: Path) -> None:
    of = record("fedavg", clients=1)
    write_rounds(tmp_path, "a", [100])
    runs = {("A", "x"): {"a": of}}
    lines, _ = report(tmp_path, runs, "noise")  # the partition has not been made
    assert "No measured run of this table has clients with noise on their images." in lines
    write_noise(tmp_path, of, None)
    assert report(tmp_path, runs, "noise")[0] == lines


def test_embeddings_and_their_neighbours(tmp_path: Path) -> None:
    # Two pairs that lie together and one client that lies with the wrong group.
    at = {3: (0.0, 0.0, 4), 1: (0.0, 1.0, 4), 7: (9.0, 9.0, 6), 5: (9.0, 8.0, 6), 8: (0.0, -2.0, 6)}
    rows = [
        ("embeddings", client, item, 0, float(value))
        for client, values in at.items()
        for item, value in zip(("x", "y", "group"), values, strict=True)
    ]
    write_rounds(tmp_path, "a", [100])
    write_analysis(tmp_path, "a", rows)
    runs = {("A", "x"): {"a": record("fedtp")}}
    lines, out = report(tmp_path, runs)
    chance = 100 * (2 * 1 + 3 * 2) / (5 * 4)
    assert rows_after(lines, "| method | clients | groups")[1:] == [["A", "5", "2", "80.0", f"{chance:.1f}"]]
    assert columns(out, "embeddings.csv") == {
        "method": ["A"] * 5, "setting": ["x"] * 5, "client": ["1", "3", "5", "7", "8"],
        "x": ["0", "0", "9", "9", "0"], "y": ["1", "0", "8", "9", "-2"], "group": ["4", "4", "6", "6", "6"],
    }  # fmt: skip


def test_weights_of_mixed_attention(tmp_path: Path) -> None:
    weights = {"conv2_attention": [(0.2, 0.3, 0.5), (0.4, 0.3, 0.3)], "conv10_attention": [(1.0, 0.0, 0.0)] * 2}
    for run in ("a", "b"):  # two seeds with the same numbers
        write_rounds(tmp_path, run, [100])
        write_analysis(
            tmp_path,
            run,
            [
                ("mixing", client, f"{position}.{kind}", 0, weight)
                for position, clients in weights.items()
                for client, own in enumerate(clients)
                for kind, weight in zip(("se", "eca", "ca"), own, strict=True)
            ],
        )
    lines, out = report(tmp_path, {("A", "x"): {"a": record("fedavg"), "b": record("fedavg", seed=1)}})
    assert rows_after(lines, "| method | position") == [
        ["method", "position", "se", "eca", "ca"],
        ["A", "conv2\\_attention", "0.300±0.100", "0.300±0.000", "0.400±0.100"],
        ["", "conv10\\_attention", "1.000±0.000", "0.000±0.000", "0.000±0.000"],
    ]
    assert columns(out, "mixing.csv")["clients"] == ["4"] * 6
    assert not (out / "mixing.svg").exists()


def test_weights_of_mixed_attention_by_client(tmp_path: Path) -> None:
    cells = []
    for label, client in {"all": None, "Clinic": 2, "Lab": 0}.items():
        cells.append(cell({"method": "A", "who": label}, ["a", "b"], client=client))
    for seed, run in enumerate(("a", "b")):
        write_rounds(tmp_path, run, [100, 100, 100])
        weights = [(client, at, 0.2 * client + 0.1 * at + 0.04 * seed) for client in (2, 0, 1) for at in (1, 3)]
        write_analysis(tmp_path, run, [("mixing", client, f"p{at}.se", 0, weight) for client, at, weight in weights])
    clients = {"who": {"Clinic": 2, "Lab": 0}}
    resolved = table(cells, ["method"], ["who"], clients=clients, figures=["mixing"])
    resolved = with_records(tmp_path, resolved, {run: record("fedtp", seed=seed) for seed, run in enumerate("ab")})
    *_, section = build_sections(results_of(resolved, tmp_path))
    assert section.table and section.table.header == ("method", "client", "kind", "p1", "p3", "average")
    assert section.table.rows == [
        ("A", "Lab", "se", "0.120±0.020", "0.320±0.020", "0.220±0.020"),
        ("A", "client 1", "se", "0.320±0.020", "0.520±0.020", "0.420±0.020"),
        ("A", "Clinic", "se", "0.520±0.020", "0.720±0.020", "0.620±0.020"),
    ]
    assert list(section.data["runs"]) == [2] * 9


@pytest.mark.parametrize(
    ("runs", "scales"),
    [
        ({"a": (99.2, 1000), "b": (98.0, 100)}, ("log", "function")),
        ({"a": (99.2, 100), "b": (98.0, 100)}, ("linear", "function")),
        ({"a": (60.0, 1000), "b": (98.0, 100), "c": (70.0, 100)}, ("log", "linear")),
    ],
)
def test_axes_of_curves_show_what_differs(
    tmp_path: Path, runs: dict[str, tuple[float, int]], scales: tuple[str, str]
) -> None:
    for run, (target, rounds) in runs.items():
        write_run(tmp_path, run, target, rounds=rounds)
    resolved = table([cell({"method": run.upper()}, [run]) for run in runs], ["method"], [], figures=[])
    (section,) = build_sections(results_of(resolved, tmp_path))
    assert section.picture and section.name == "curves"
    (axes,) = section.picture.figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == scales
    assert [len(line.get_xdata()) for line in axes.lines] == [section.data[run.upper()].notna().sum() for run in runs]
    assert (axes.get_ylim()[1] <= 100) == (scales[1] == "function")


def test_adaptation_pools_novel_clients(tmp_path: Path) -> None:
    # Of clients with 10 and 90 test samples; the second seed has one client and is averaged as a run.
    first = {8: [(1, 10), (5, 10), (10, 10)], 9: [(9, 90), (45, 90), (80, 90)]}
    second = {9: [(20, 100), (40, 100), (60, 100)]}
    for run, clients in {"a": first, "b": second}.items():
        write_rounds(tmp_path, run, [100])
        rows = [
            ("adaptation", client, f"head.{item}", epoch, float(counts[at]))
            for client, series in clients.items()
            for epoch, counts in enumerate(series)
            for at, item in enumerate(("correct", "total"))
        ]
        write_analysis(tmp_path, run, rows)
    lines, out = report(tmp_path, {("A", "x"): {"a": record("fedtp"), "b": record("fedtp", seed=1)}})
    assert rows_after(lines, "| method | tuned")[1:] == [["A", "head", "2", "15.00", "75.00"]]
    assert columns(out, "adaptation.csv")["accuracy"] == ["15", "45", "75"]


def test_attention_over_an_image() -> None:
    low, high = (np.array(colormaps["inferno"](x)[:3]) * 255 for x in (0.0, 1.0))
    white, black = np.full((4, 4, 3), 255, np.uint8), np.zeros((4, 4, 3), np.uint8)
    np.testing.assert_allclose(overlaid(black, np.ones((2, 2)))[1, 2], high / 2, atol=0.5)
    np.testing.assert_allclose(overlaid(white, np.zeros((1, 1)))[3, 0], (255 + low) / 2, atol=0.5)
    green = np.zeros((4, 4, 3), np.uint8)
    green[..., 1] = 200
    np.testing.assert_allclose(overlaid(green, np.zeros((1, 1)))[0, 0], (0.587 * 200 + low) / 2, atol=0.5)
    # Between the centres of two patches, at 1 and 3 of 4 pixels, the mask is interpolated; beyond them it is level.
    line = overlaid(black, np.array([[0.0, 1.0], [0.0, 1.0]]))[0]
    expected = [np.array(colormaps["inferno"](x)[:3]) * 255 / 2 for x in (0.0, 0.25, 0.75, 1.0)]
    np.testing.assert_allclose(line, expected, atol=0.5)


def test_listed_figures_only_and_in_their_order(tmp_path: Path) -> None:
    write_rounds(tmp_path, "a", [100])
    write_analysis(tmp_path, "a", [("mixing", 0, "conv1_attention.se", 0, 1.0)])
    runs = {("A", "x"): {"a": record("fedtp")}}
    lines, _ = report(tmp_path, runs, "rollout", "resources")
    titles = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert [title for title in titles if title in HEADING.values()] == ["Attention rollout", "Resources"]
    assert "No run of this table has made this analysis; runs with analyses: \\[rollout\\] make it." in lines
    write_report(study(tmp_path, runs, figures=[]), tmp_path, tmp_path / "none")
    assert "local attention" not in (tmp_path / "none/report.md").read_text(encoding="utf-8")
    assert "How local attention is mixed" in "\n".join(report(tmp_path, runs)[0])  # nothing said: what is there


def test_an_analysis_without_a_drawing_shows_its_numbers(tmp_path: Path) -> None:
    runs: Runs = {
        ("A", "x"): {"a0": record("fedtp"), "a1": record("fedtp", seed=1)},
        ("B", "x"): {"b": record("fedper")},
    }
    for run, shift in {"a0": 0, "a1": 10}.items():
        write_rounds(tmp_path, run, [100, 120])
        rows = [("odd", client, "norm", 0, shift + value) for client, value in enumerate((1.0, 4.0))]
        write_analysis(tmp_path, run, [*rows, ("odd", -1, "rank", 0, 2.5), ("odd", -1, "rank", 1, 0.5)])
    write_rounds(tmp_path, "b", [100])
    write_analysis(tmp_path, "b", [("odd", 0, f"item {index}", 0, float(index)) for index in range(60)])
    lines, out = report(tmp_path, runs, analyses={"odd": "Odd things"})
    assert "## Odd things" in lines
    table = rows_after(lines, "| method | item |")
    assert table[:3] == [
        ["method", "item", "numbers", "mean", "std", "least", "greatest"],
        ["A", "norm", "4", "7.5", "5.22", "1", "14"],
        ["", "rank", "4", "1.5", "1", "0.5", "2.5"],
    ]
    assert len(table) == 41 and table[-1][1:4] == ["item 37", "1", "37"]
    assert any(line.endswith("The first 40 of 62 lines; the others are in odd.csv.") for line in lines)
    data = columns(out, "odd.csv")
    assert list(data) == ["method", "setting", "run", "client", "item", "index", "value"]
    assert len(data["value"]) == 68 and data["value"][5] == "14" and data["run"][5] == "a1"


def test_hostile_labels_stay_text_in_figures(tmp_path: Path) -> None:
    for run, correct in {"local": [100, 110], "a": [120, 110]}.items():
        write_rounds(tmp_path, run, correct)
    rows = [("adaptation", 0, f"{HOSTILE}.{item}", epoch, 1.0) for item in ("correct", "total") for epoch in (0, 1)]
    write_analysis(tmp_path, "a", [*rows, ("mixing", 0, f"{HOSTILE}.{HOSTILE}", 0, 1.0)])
    runs = {("Local", HOSTILE): {"local": record("local")}, (HOSTILE, HOSTILE): {"a": record("fedtp")}}
    figures = ("resources", "gain", "adaptation", "mixing")
    _, out = report(tmp_path, runs, *figures)
    text = {kind: (out / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "tex", "html")}
    assert "<script" not in text["md"]
    document = Document(text["html"])
    assert document.tags.count("script") == 1 and document.text.count(HOSTILE) >= 6
    assert escape_latex(HOSTILE) in text["tex"] and HOSTILE not in text["tex"]
    for name in ("gain", "adaptation"):
        ET.fromstring((out / f"figures/{name}.svg").read_text(encoding="utf-8"))


def test_a_spec_says_which_figures_and_the_report_depends_on_what_they_read(tmp_path: Path) -> None:
    more = "table: {rows: [method], columns: []}\nfigures: %s\n"
    base = spec("[fedavg, local]", backbone=CONVNET)
    asked = base.replace("curve_every: 1}", "curve_every: 1}\n    analyses: [mixing]")
    texts = {"a": base + more % "[noise, resources]", "b": base, "c": asked, "d": asked + more % "[gain, mixing]"}
    project = make_project(tmp_path, {f"specs/{name}.yaml": text for name, text in texts.items()})
    project.compile()
    tables = {name: json.loads((tmp_path / f"stages/tables/{name}.json").read_text("utf-8")) for name in texts}
    assert [one["figures"] for one in tables.values()] == [["noise", "resources"], None, None, ["gain", "mixing"]]
    stages = project.stages()
    reads = {name: stages[f"stages/dvc.yaml:evaluate-{name}"]["deps"] for name in texts}
    data = {name: [dep for dep in deps if re.search("^artifacts/partitions/|/analysis.parquet$", dep)] for name, deps in
            reads.items()}  # fmt: skip
    assert {name: len(deps) for name, deps in data.items()} == {"a": 1, "b": 0, "c": 2, "d": 2}
    shown = yaml.safe_load((tmp_path / "stages/dvc.yaml").read_text("utf-8"))["stages"]
    code = {name: re.findall(r"\$\{figure\.(\w+)\}", shown[name]["cmd"]) for name in texts}
    assert code == {"a": ["noise", "resources"], "b": [], "c": ["mixing"], "d": ["gain", "mixing"]}
    outs = {out for stage in stages.values() for out in stage["outs"]}
    assert {dep for deps in data.values() for dep in deps} <= outs


def test_specs_and_the_compiler_do_not_wait_for_drawings() -> None:
    code = "import sys, pipeline.compile.compiler, pipeline.spec.figures; pipeline.spec.figures.figure_names()"
    done = subprocess.run([sys.executable, "-c", f"{code}; print('matplotlib' in sys.modules)"], capture_output=True)
    assert done.stdout == b"False\n"


# The critical-difference picture of hand-made tables.


def six(root: Path, columns: int = 6, **changes: Any) -> ResolvedTable:
    """Three methods that all columns rank alike, and one that lacks a number in the last."""
    cells = []
    for method, base in {"Bad_$x$": 50.0, "Good": 70.0, "Fair": 60.0, "Rare": 99.0}.items():
        for column in range(columns):
            run = f"{base}-{column}"
            cells.append(cell({"method": method, "set": f"s{column}"}, [run]))
            if method != "Rare" or column < columns - 1:
                write_metrics(root, run, base + column)
    return table(cells, ["method"], ["set"], **{"figures": ["ranks"], **changes})


def test_mean_ranks_and_groups_in_every_format(tmp_path: Path) -> None:
    write_report(six(tmp_path), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    start = lines.index("| method | mean rank | group |")
    assert lines[start + 2 : start + 5] == ["| Good | 1.00 | a |", "| Fair | 2.00 | ab |", r"| Bad\_\$x\$ | 3.00 | b |"]
    words = "more than 1.35 apart (critical difference)"
    assert any(words in line and "Friedman's test that all are alike: p = 0.0025." in line for line in lines)
    assert any("Left out, as they lack a number: Rare." in line for line in lines)
    assert words in Document((tmp_path / "out/report.html").read_text("utf-8")).text
    assert r"\includegraphics{figures/ranks.png}" in (tmp_path / "out/report.tex").read_text("utf-8")
    with (tmp_path / "out/figures/ranks.csv").open() as file:
        assert {line["method"]: line["mean_rank"] for line in csv.DictReader(file)} == {
            "Good": "1", "Fair": "2", "Bad_$x$": "3",
        }  # fmt: skip


@pytest.mark.parametrize("columns", [4, 1])
def test_too_few_columns_are_one_line(tmp_path: Path, columns: int) -> None:
    (section,) = build_sections(results_of(six(tmp_path, columns), tmp_path))
    words = {4: "there are 4 columns here", 1: "there is 1 column here"}[columns]
    assert words in section.text and section.picture is None and section.table is None


# The same runs under every protocol, on hand-made counts in which the order turns over.

CLIENTS = 10


def uneven(root: Path, **changes: Any) -> ResolvedTable:
    """Of three seeds: Uneven is at 90 % on nine clients and at 10 % on one, Even is at 80 % on all. A seed adds half a
    percent to all but the worst. In the second column Even is at 5 % and ahead nowhere."""
    cells, records = [], {}
    for setting, even in {"hard": 160, "easy": 10}.items():
        for method in ("Uneven", "Even"):
            runs = [f"{method}-{setting}-{seed}" for seed in range(3)]
            for seed, run in enumerate(runs):
                correct = [180 + seed] * 9 + [20] if method == "Uneven" else [even + seed] * CLIENTS
                write_counts(root, run, correct)
                records[run] = RECORD | {"seed": seed}
            cells.append(cell({"method": method, "setting": setting}, runs))
    resolved = table(cells, ["method"], ["setting"], **{"metric": "clients", "figures": ["protocols"], **changes})
    return with_records(root, resolved, records)


AHEAD = claim({"method": ["Uneven"]}, {"method": ["Even"]}, text="Uneven is ahead.")


def test_a_rank_that_turns_over_is_marked_in_every_format(tmp_path: Path) -> None:
    write_report(uneven(tmp_path), tmp_path, tmp_path / "out")
    lines = squeezed((tmp_path / "out/report.md").read_text("utf-8"))
    start = lines.index("| setting | method | mean of clients | window | last round | worst tenth |")
    assert lines[start + 2 : start + 8] == [
        # (9 · 90 + 10) / 10 = 82, 82.45 and 82.9; the deviation of three numbers that lie evenly is step · √(2/3)
        "| hard | Uneven | 82.45±0.37 (1) | 82.45±0.37 (1) | 82.45±0.37 (1) | 10.00±0.00 (2↓) |",
        "| | Even | 80.50±0.41 (2) | 80.50±0.41 (2) | 80.50±0.41 (2) | 80.50±0.41 (1↑) |",
        "| easy | Uneven | 82.45±0.37 (1) | 82.45±0.37 (1) | 82.45±0.37 (1) | 10.00±0.00 (1) |",
        "| | Even | 5.50±0.41 (2) | 5.50±0.41 (2) | 5.50±0.41 (2) | 5.50±0.41 (2) |",
        "| mean rank | Uneven | 1 | 1 | 1 | 1.5↓ |",
        "| | Even | 2 | 2 | 2 | 1.5↑ |",
    ]
    words = "Two rows change places in 1 of 2 columns; no row stays the best one in 1: hard."
    assert any(words in line for line in lines)
    assert r"10.00$\pm$0.00 (2$\downarrow$)" in (tmp_path / "out/report.tex").read_text("utf-8")
    document = Document((tmp_path / "out/report.html").read_text("utf-8"))
    assert "80.50±0.41 (1↑)" in document.text and words in document.text
    assert (tmp_path / "out/figures/protocols.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out/figures/protocols.csv").open() as file:
        ranks = {(line["method"], line["setting"], line["protocol"]): line["rank"] for line in csv.DictReader(file)}
    assert ranks["Even", "hard", "worst_tenth"] == "1" and ranks["Even", "hard", "clients"] == "2"
    assert len(ranks) == 2 * 2 * 4


def test_claims_that_are_decided_otherwise_are_named(tmp_path: Path) -> None:
    resolved = uneven(tmp_path, claims=[AHEAD.model_copy(update={"where": {"setting": ["hard"]}})])
    *_, section = build_sections(results_of(resolved, tmp_path))
    sentence = "Claim “Uneven is ahead.”: holds under mean of clients, window, last round; fails under worst tenth."
    assert section.text.endswith(sentence)


def test_accuracy_on_validation_samples_is_no_protocol(tmp_path: Path) -> None:
    chosen = {"mean": 60.0, "std": 0.0, "n": 1}
    write_counts(tmp_path, "a", [100] * CLIENTS, validation=chosen, best_by_validation=chosen)
    resolved = table([cell({"method": "A"}, ["a"])], ["method"], [], figures=["protocols"], metric="best_by_validation")
    *_, section = build_sections(results_of(resolved, tmp_path))
    assert section.table and section.table.header[1:] == (
        *("best by validation", "window", "last round", "mean of clients", "worst tenth"),
    )
    assert "by seeds. Best by validation: pooled, after the measured round that is best" in section.text
    assert "last position" not in section.text
