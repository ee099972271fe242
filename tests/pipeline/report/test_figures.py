"""Figures of reports on hand-made artifacts: their numbers against plain computations, and every format."""

import itertools
import re

import numpy as np
import pytest
from matplotlib import colormaps
from support import figure_demo as fd
from support import report_demo as rd
from support.figure_demo import TOTAL, record, sections_of, write_rounds
from support.pages import Document
from support.project import make_project, spec
from support.report_demo import cell, table, write_metrics

from pipeline.report.figures._pictures import overlay

HEADING = {**fd.FIGURES, **rd.HEADINGS}


def drawn(root, lines, figure, facts=(), **changes):
    """The printed table of a figure, the columns of its CSV file, and its text; `lines` are method, setting, run,
    correct samples and what its record has more, `facts` those of its rounds."""
    runs = {}
    for (method, setting, run, correct, more), about in itertools.zip_longest(lines, facts, fillvalue={}):
        of = record(method.lower(), setting=setting, **more)
        runs.setdefault((method, setting), {})[run] = of
        write_rounds(root, run, correct, **about)
        if figure == "noise":
            fd.write_noise(root, of, [0.0, 12.5, 25.0] if setting == "noisy" else None)
    section = sections_of(fd.study(root, runs, figures=[figure], **changes), root)[figure]
    return section.table, {str(name): section.data[name].tolist() for name in section.data}, section.text


def test_every_format_has_every_figure_and_the_same_artifacts_give_the_same_bytes(tmp_path):
    resolved, pages = fd.demo(tmp_path), tmp_path / "report"
    rd.report(resolved, tmp_path, pages)
    again = sections_of(resolved, tmp_path)
    for name in ("curves", "gain", "boxes", "rollout"):
        assert again[name].picture.svg == (pages / f"figures/{name}.svg").read_text("utf-8")
    markdown, tex, page = ((pages / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "tex", "html"))
    document, order = Document(page), [markdown.index(f"\n## {title}\n") for title in HEADING.values()]
    assert order == sorted(order)
    assert all(rf"\section*{{{title}}}" in tex and title in document.text for title in HEADING.values())
    for name in HEADING.keys() - {"resources", "mixing", "ranks"}:  # two columns are no ranks
        assert re.search(rf"^!\[[^]]+\]\(figures/{name}\.svg\)$", markdown, re.MULTILINE)
        assert rf"\includegraphics{{figures/{name}.png}}" in tex
        assert (pages / f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
    with_data = {f"{name}.csv" for name in HEADING if name not in ("rollout", "ranks")}
    assert {path.name for path in (pages / "figures").glob("*.csv")} == {"curves.csv"} | with_data


def test_resources_are_those_of_fedperfix_table_2(tmp_path):
    # ViT-S with 1000 classes; of it FedPerfix keeps the head (385,000), and adapters (3,551,232) beside it.
    vit, head, adapters = 22_050_664, 385_000, 3_551_232
    kinds = {"FedAvg": (0, vit, 46), "FedPerfix": (head + adapters, vit - head, 53), "APFL": (vit, vit, 92)}
    facts = [
        {"parameters": vit, "stored": kept, "received": received, "macs": macs * 100_000, "server": received}
        | {"communicated_up": 4 * received, "communicated_down": 4 * received}
        for kept, received, macs in kinds.values()
    ]
    lines = [(method, "x", method, [1], {}) for method in kinds]
    printed, data, _ = drawn(tmp_path, lines, "resources", facts)
    fedavg, fedperfix, apfl = (dict(zip(printed.header, row, strict=True)) for row in printed.rows)
    assert (fedavg["kept"], fedavg["sent up"], fedavg["bytes down"]) == ("0", "22,050,664", "88,202,656")
    in_millions = [round(int(fedperfix[name].replace(",", "")) / 2**20, 2) for name in ("stored", "sent up")]
    assert (in_millions, fedperfix["relative"], apfl["relative"]) == ([24.42, 20.66], "1.15", "2.00")
    assert data["stored"] == [22050664, 25601896, 44101328] and data["relative"] == pytest.approx([1, 53 / 46, 2])
    # Without FedAvg they are relative to the cheapest, and columns that differ have lines. FedTP's Table IV has an axis
    # with the name of a cost.
    lines = [(method, setting, method + setting, [1], {}) for method in ("FedPer", "Ditto") for setting in "xy"]
    facts = [{"macs": macs} for macs in (500, 600, 1000, 1100)]
    printed, data, _ = drawn(tmp_path, lines, "resources", facts, column="model")
    assert printed.header[:3] == ("method", "model (axis)", "model") and data["model (axis)"] == list("xyxy")
    assert [(*row[:2], row[-3], row[-2]) for row in printed.rows] == [
        *(("FedPer", "x", "500", "1.00*"), ("FedPer", "y", "600", "1.00*")),
        *(("Ditto", "x", "1,000", "2.00*"), ("Ditto", "y", "1,100", "1.83*")),
    ]


def test_clients_beside_local_and_by_their_noise(tmp_path):
    counts = [("Local", 0, [100, 100, 100]), ("Local", 1, [50, 60, 70]), ("FedTP", 0, [110, 90, 120])]
    counts.append(("FedTP", 1, [60, 60, 60]))
    lines = [(method, "x", f"{method}-{seed}", own, {"seed": seed}) for method, seed, own in counts]
    # Of other Locals the one with the backbone's options is taken, and none with another backbone.
    lines.append(("Local", "x", "a-deeper", [1, 1, 1], {"depth": 9}))
    printed, data, _ = drawn(tmp_path, lines, "gain", decimals=3)
    gains = np.array([10, -10, 20, 10, 0, -10]) * 100 / TOTAL
    assert printed.rows == [("FedTP", f"+{gains.mean():.3f}", f"{100 * (gains > 0).mean():.1f}", "6")]
    assert data["gain"] == pytest.approx(gains.tolist()) and data["local"] == ["Local-0"] * 3 + ["Local-1"] * 3
    noisy = [("noisy", 0, [200, 100, 60]), ("noisy", 1, [180, 120, 20]), ("clean", 0, [10, 10, 10])]
    lines = [("FedAvg", at, f"{at}-{seed}", own, {"seed": seed, "clients": 3}) for at, seed, own in noisy]
    printed, data, _ = drawn(tmp_path, lines, "noise")
    accuracy = np.array([200, 100, 60, 180, 120, 20]) * 100 / TOTAL
    assert printed.rows == [("noisy", f"{accuracy.mean():.2f}", "95.00", "20.00", "6")]
    assert data["accuracy"] == accuracy.tolist() and data["noise"] == [0, 12.5, 25] * 2


def test_clients_are_compared_with_one_row_of_local_under_their_own_condition(tmp_path):
    """Run ids are such that their order, which says nothing, would choose others."""
    noise = {"condition": {"name": "label_noise"}}
    lines = [  # method, column, run, seed, and more of its record
        *(("Local", "x", "z", 0, {}), ("Local", "y", "a", 0, noise), ("A", "x", "1", 0, {}), ("A", "y", "2", 0, noise)),
        *(("Local", "p", "f", 1, {}), ("Local", "q", "e", 1, {}), ("A", "p", "3", 1, {}), ("A", "q", "4", 1, {})),
        *(("Local", "u", "m", 2, {}), ("Local, tuned", "u", "k", 2, {}), ("A", "u", "5", 2, {})),
        *(("Local", "u", "l", 3, {}), ("Local, tuned", "u", "n", 3, {}), ("A", "u", "6", 3, {})),
    ]
    runs = {}
    for method, column, run, seed, more in lines:
        of = record("local" if "Local" in method else "fedavg", seed=seed) | more
        runs.setdefault((method, column), {})[run] = of
        write_rounds(tmp_path, run, [100, 90])
    data = sections_of(fd.study(tmp_path, runs, figures=["gain"]), tmp_path)["gain"].data
    assert dict(zip(data["run"], data["local"], strict=True)) == {
        **{"1": "z", "2": "a", "3": "f", "4": "e", "5": "m", "6": "l"}
    }


def test_what_analyses_found(tmp_path):
    # Embeddings: two pairs that lie together and one client that lies with the wrong group.
    at = {3: (0.0, 0.0, 4), 1: (0.0, 1.0, 4), 7: (9.0, 9.0, 6), 5: (9.0, 8.0, 6), 8: (0.0, -2.0, 6)}
    rows = [("embeddings", client, item, 0, float(value)) for client, own in at.items()
            for item, value in zip(("x", "y", "group"), own, strict=True)]  # fmt: skip
    weights = {"conv2": [(0.2, 0.3, 0.5), (0.4, 0.3, 0.3)], "conv10": [(1.0, 0.0, 0.0)] * 2}
    rows += [("mixing", client, f"{position}.{kind}", 0, weight) for position, clients in weights.items()
             for client, own in enumerate(clients)
             for kind, weight in zip(("se", "eca", "ca"), own, strict=True)]  # fmt: skip
    # Adaptation: clients with 10 and 90 test samples; the second seed has one client and is averaged as a run.
    first = {8: [(1, 10), (5, 10), (10, 10)], 9: [(9, 90), (45, 90), (80, 90)]}
    for run, novel in {"a": first, "b": {9: [(20, 100), (40, 100), (60, 100)]}}.items():
        counts = [("adaptation", client, f"head.{item}", epoch, float(pair[item == "total"]))
                  for client, series in novel.items() for epoch, pair in enumerate(series)
                  for item in ("correct", "total")]  # fmt: skip
        fd.write_analysis(tmp_path, run, [*rows, *counts])
    lines = [("FedTP", "x", "a", [100], {}), ("FedTP", "x", "b", [100], {"seed": 1})]
    printed, data, _ = drawn(tmp_path, lines, "embeddings")
    assert printed.rows == [("FedTP", "5", "2", "80.0", f"{100 * (2 * 1 + 3 * 2) / (5 * 4):.1f}")]
    assert (data["client"], data["y"], data["group"]) == ([1, 3, 5, 7, 8], [1, 0, 8, 9, -2], [4, 4, 6, 6, 6])
    printed, data, _ = drawn(tmp_path, lines, "mixing")
    assert printed.header == ("method", "position", "se", "eca", "ca") and data["clients"] == [4] * 6
    assert printed.rows == [
        ("FedTP", "conv2", "0.300±0.100", "0.300±0.000", "0.400±0.100"),
        ("FedTP", "conv10", "1.000±0.000", "0.000±0.000", "0.000±0.000"),
    ]
    printed, data, _ = drawn(tmp_path, lines, "adaptation")
    assert printed.rows == [("FedTP", "head", "2", "15.00", "75.00")] and data["accuracy"] == [15, 45, 75]


def test_attention_over_an_image():
    heat = [np.array(colormaps["inferno"](x)[:3]) * 255 for x in (0.0, 0.25, 0.75, 1.0)]
    green = np.zeros((4, 4, 3), np.uint8) + np.array([0, 200, 0], np.uint8)
    np.testing.assert_allclose(overlay(green, np.zeros((1, 1)))[0, 0], (0.587 * 200 + heat[0]) / 2, atol=0.5)
    # Between the centres of two patches, at 1 and 3 of 4 pixels, the mask is interpolated; beyond them it is level.
    line = overlay(green * 0, np.array([[0.0, 1.0], [0.0, 1.0]]))[0]
    np.testing.assert_allclose(line, np.array(heat) / 2, atol=0.5)


def test_what_is_listed_is_shown_or_else_what_runs_found(tmp_path):
    runs = {("A", "x"): {"a0": record("fedtp"), "a1": record("fedtp", seed=1)}, ("B", "x"): {"b": record("fedper")}}
    for run, shift in {"a0": 0, "a1": 10}.items():
        write_rounds(tmp_path, run, [100, 120])
        rows = [("odd", client, "norm", 0, shift + value) for client, value in enumerate((1.0, 4.0))]
        fd.write_analysis(tmp_path, run, [*rows, ("odd", -1, "rank", 0, 2.5), ("odd", -1, "rank", 1, 0.5)])
    write_rounds(tmp_path, "b", [100])
    fd.write_analysis(tmp_path, "b", [("odd", 0, f"item {index}", 0, float(index)) for index in range(60)])
    known = {"odd": "Odd things", "rollout": "Attention rollout"}
    for figures, expected in ((["rollout", "noise"], ["rollout", "noise"]), (None, ["odd"]), ([], [])):
        found = sections_of(fd.study(tmp_path, runs, analyses=known, figures=figures), tmp_path)
        assert [*found] == ["curves", *expected]
        if figures:
            assert found["rollout"].text.startswith("No run of this table has made this analysis")
            assert found["noise"].text.startswith("No measured run of this table has clients with noise")
    # One without a drawing of its own is shown as its numbers.
    odd = sections_of(fd.study(tmp_path, runs, analyses=known), tmp_path)["odd"]
    assert odd.table.rows[0] == ("A", "norm", "4", "7.5", "5.22", "1", "14")
    assert odd.table.rows[1] == ("A", "rank", "4", "1.5", "1", "0.5", "2.5")
    assert len(odd.table.rows) == 40 and odd.text.endswith("The first 40 of 62 lines; the others are in odd.csv.")
    assert len(odd.data) == 68 and (odd.data["value"][5], odd.data["run"][5]) == (14, "a1")
    # Without a run every figure is a sentence.
    cells = [cell({"method": m, "set": s}, [f"{m}{s}"], (70.0, 0.5)) for m in "AB" for s in "xy"]
    figures = [*HEADING, "tuning"]
    sections = sections_of(table(cells, ["method"], ["set"], figures=figures), tmp_path)
    assert [*sections] == figures
    assert all(one.text and not one.picture and not one.table and one.data.empty for one in sections.values())


def test_a_report_depends_on_what_its_figures_read(tmp_path):
    more = "table: {rows: [method], columns: []}\nfigures: %s\n"
    asked = spec("[fedavg, local]").replace("curve_every: 1}", "curve_every: 1}\n    analyses: [mixing]")
    texts = {"a": spec("[fedavg, local]") + more % "[noise, resources]", "b": spec("[fedavg, local]"), "c": asked}
    project = make_project(tmp_path, {f"specs/{name}.yaml": text for name, text in texts.items()})
    project.compile()
    stages = project.stages()
    reads = {name: " ".join(stages[f"stages/dvc.yaml:evaluate-{name}"]["deps"]) for name in texts}
    data = {name: len(re.findall("artifacts/partitions/|/analysis.parquet", deps)) for name, deps in reads.items()}
    assert data == {"a": 1, "b": 0, "c": 2}


def test_mean_ranks_and_groups(tmp_path):
    for columns in (4, 6):  # three methods that all columns rank alike, and one that lacks a number in the last
        cells = []
        for method, base in {"Bad_$x$": 50.0, "Good": 70.0, "Fair": 60.0, "Rare": 99.0}.items():
            for column in range(columns):
                cells.append(cell({"method": method, "set": f"s{column}"}, [f"{base}-{columns}-{column}"]))
                if method != "Rare" or column < columns - 1:
                    write_metrics(tmp_path, f"{base}-{columns}-{column}", base + column)
        section = sections_of(table(cells, ["method"], ["set"], figures=["ranks"]), tmp_path)["ranks"]
        if columns == 4:
            assert section.text.endswith("here: 4 columns and 3 such rows.") and section.picture is None
    assert section.table.rows == [("Good", "1.00", "a"), ("Fair", "2.00", "ab"), ("Bad_$x$", "3.00", "b")]
    # q·√(k(k+1)/6N) for k = 3 and N = 6, with q = 2.3437; Friedman's χ² of 12 with two degrees of freedom is exp(-6).
    assert "more than 1.35 apart" in section.text and "p = 0.0025." in section.text
    assert "Left out, as they lack a number: Rare." in section.text
    assert section.data["mean_rank"].tolist() == [1, 2, 3]


def test_protocols_that_change_a_rank(tmp_path):
    """Of three seeds: Uneven is at 90 % on nine clients and at 10 % on one, Even is at 80 % on all. A seed adds half a
    percent to all but the worst. In the second column Even is at 5 % and ahead nowhere."""
    cells, records = [], {}
    chosen = {"mean": 60.0, "std": 0.0, "n": 1}
    others = dict.fromkeys(("validation", "clients.auc", "clients global"), chosen)  # none is a protocol of accuracy
    for setting, even in {"hard": 160, "easy": 10}.items():
        for method in ("Uneven", "Even"):
            runs = [f"{method}-{setting}-{seed}" for seed in range(3)]
            for seed, run in enumerate(runs):
                counts = [180 + seed] * 9 + [20] if method == "Uneven" else [even + seed] * 10
                fd.write_counts(tmp_path, run, counts, **others)
                records[run] = rd.RECORD | {"seed": seed}
            cells.append(cell({"method": method, "setting": setting}, runs))
    ahead = rd.claim({"method": ["Uneven"]}, {"method": ["Even"]}, text="Uneven is ahead.", where={"setting": ["hard"]})
    resolved = table(cells, ["method"], ["setting"], metric="clients", figures=["protocols"], claims=[ahead])
    section = sections_of(rd.with_records(tmp_path, resolved, records), tmp_path)["protocols"]
    assert section.table.header[2:] == ("mean of clients", "window", "last round", "worst tenth")
    # (9 · 90 + 10) / 10 = 82, 82.45 and 82.9; the deviation of three numbers that lie evenly is step · √(2/3)
    even_rows = ["82.45±0.37 (1)"] * 3
    assert section.table.rows == [
        ("hard", "Uneven", *even_rows, "10.00±0.00 (2↓)"),
        ("hard", "Even", *["80.50±0.41 (2)"] * 3, "80.50±0.41 (1↑)"),
        ("easy", "Uneven", *even_rows, "10.00±0.00 (1)"),
        ("easy", "Even", *["5.50±0.41 (2)"] * 4),
        ("mean rank", "Uneven", "1", "1", "1", "1.5↓"),
        ("mean rank", "Even", "2", "2", "2", "1.5↑"),
    ]
    sentence = "Claim “Uneven is ahead.”: holds under mean of clients, window, last round; fails under worst tenth."
    assert section.text.endswith(sentence)
    ranks = section.data.set_index(["method", "setting", "protocol"])["rank"]
    assert ranks["Even", "hard", "worst_tenth"] == 1 and ranks["Even", "hard", "clients"] == 2 and len(ranks) == 16


# The table as a figure: what lies where, what is left out, and what a box shows.

METHODS, DATASETS = ["FedAvg-T", "FedPer-T", "FedTP"], ["CIFAR-10", "CIFAR-100"]
RATES = ["0.05", "0.1", "0.15", "0.2", "0.25"]  # FedTP, figure 11


def pictured(root, rows, columns, means=None, seeds=1, figure="values"):
    """The figure of a table of all combinations of labels, whose cells have the runs a0, a1, …, b0, b1, …: as
    matplotlib has it, and its section."""
    axes, cells = {**rows, **columns}, []
    for index, labels in enumerate(itertools.product(*axes.values())):
        runs = [f"{chr(ord('a') + index)}{seed}" for seed in range(seeds)]
        cells.append(cell(dict(zip(axes, labels, strict=True)), runs))
    resolved = table(cells, list(rows), list(columns), figures=[figure])
    for run, mean in (means or {run: 60.0 + at for at, run in enumerate(resolved.runs)}).items():
        write_metrics(root, run, mean, 0.25)
    section = sections_of(resolved, root)[figure]
    return section.picture.figure, section


def legend(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def test_what_runs_to_the_right(tmp_path):
    # FedTP: figures 11 and 7. FedOFA: figure 3. Numbers go before names, of columns before those of rows; one number,
    # infinity or a repetition is no scale.
    for rows, columns, axis, series, panels in [
        ({"method": METHODS}, {"rate": RATES}, "rate", METHODS, [""]),
        ({"method": METHODS}, {"dataset": DATASETS, "part": ["P", "D"]}, "part", METHODS, DATASETS),
        ({"heads": ["1", "2"]}, {"dataset": DATASETS, "kind": ["A", "B"]}, "heads", ["A", "B"], DATASETS),
        ({"depth": ["1", "2"]}, {"dim": ["3", "4"], "part": ["P", "D"]}, "dim", ["depth = 1", "depth = 2"], ["P", "D"]),
        ({"method": METHODS}, {"mu": ["0", "inf"]}, "mu", METHODS, [""]),
    ]:
        figure, _ = pictured(tmp_path, rows, columns)
        ticks = [text.get_text().rpartition(" = ")[2] for text in figure.axes[0].get_xticklabels()]
        assert ticks == {**rows, **columns}[axis] and legend(figure) == series
        assert [axes.get_title() for axes in figure.axes] == panels
        marks = [len(container[0].get_xdata()) for axes in figure.axes for container in axes.containers]
        assert sum(marks) == np.prod([len(x) for x in {**rows, **columns}.values()])
    # Numbers have a true scale where it can be read, and their order, whatever that of the spec.
    unordered, decades = ["0", "20", "5"], ["1e-4", "1e-3", "1e-2"]
    for labels, at in ((RATES, [0.05, 0.1, 0.15, 0.2, 0.25]), (unordered, [0, 5, 20]), (decades, [0, 1, 2])):
        figure, section = pictured(tmp_path, {"method": METHODS}, {"x": labels})
        assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == sorted(labels, key=float)
        assert list(figure.axes[0].containers[0][0].get_xdata()) == at
        assert ("evenly spaced" in section.text) == (at != sorted(map(float, labels)))


def test_a_line_per_row_that_breaks_where_a_number_is_missing_and_boxes(tmp_path):
    means = {"a0": 50.0, "c0": 54.0, "d0": 60.0, "e0": 61.5, "f0": 62.0}
    figure, section = pictured(tmp_path, {"method": ["A", "B"]}, {"training.rate": ["1", "2", "3"]}, means)
    (axes,) = figure.axes
    (one, _, (bars,)), (other, *_) = axes.containers
    np.testing.assert_array_equal(one.get_xydata(), [[1, 50], [2, np.nan], [3, 54]])
    np.testing.assert_array_equal(other.get_xydata(), [[1, 60], [2, 61.5], [3, 62]])
    np.testing.assert_array_equal(bars.get_segments()[0], [[1, 49.75], [1, 50.25]])
    assert one.get_linestyle() != "None" and axes.get_xlabel() == "rate" and legend(figure) == ["A", "B"]
    assert section.picture.alt.endswith("over rate, 2 series in 1 panel: from 50.00 to 62.00.")
    assert section.data["obtained_mean"].tolist() == [*means.values()]
    # Boxes show the runs of each cell.
    spread = {"a": [91.0, 92.5, 90.0, 92.0, 94.5], "b": [80.0, 81.0], "c": [70.0, 70, 70, 70, 70]}
    means = {f"{name}{seed}": mean for name, own in spread.items() for seed, mean in enumerate(own)}
    figure, section = pictured(tmp_path / "boxes", {"mix": ["0.0", "0.5", "1.0"]}, {}, means, 5, "boxes")
    assert section.table.rows[:2] == [
        ("0.0", "5", "92.00", "90.00", "91.00", "92.00", "92.50", "94.50"),
        ("0.5", "2", "80.50", "80.00", "—", "—", "—", "81.00"),  # of fewer than five runs, dots show them
    ]
    shown = [list(map(float, line.get_ydata())) for line in figure.axes[0].lines]
    assert {*next(line for line in shown if len(line) == 5)} == {91.0, 92.5}
    assert all(line in shown for line in ([92.0, 92.0], [80.0, 81.0], [92.0, 80.5, 70.0]))  # the last joins the means
    assert section.data["accuracy"].tolist() == [*means.values()]
