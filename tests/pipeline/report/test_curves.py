"""Curves of convergence: what they show, the names of their lines, and that the page can read their values."""

import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from support import report_demo as rd
from support.figure_demo import sections_of
from support.report_demo import cell, table

from pipeline.report.drawing.panels import spread_out


def test_curves_show_what_differs_and_the_page_can_read_their_values(tmp_path):
    for runs, scales in (
        ({"a": (99.2, 1000), "b": (98.0, 100)}, ("log", "function")),
        ({"c": (60.0, 1000), "d": (98.0, 900), "e": (70.0, 900)}, ("linear", "linear")),
    ):
        for run, (target, rounds) in runs.items():
            rd.write_run(tmp_path, run, target, rounds=rounds)
        resolved = table([cell({"method": run}, [run]) for run in runs], ["method"], [], figures=[])
        section = sections_of(resolved, tmp_path)["curves"]
        (axes,) = section.picture.figure.axes
        assert (axes.get_xscale(), axes.get_yscale()) == scales
        assert [len(line.get_xdata()) for line in axes.lines] == [section.data[run].notna().sum() for run in runs]
    curves, svg = sections_of(rd.demo(tmp_path), tmp_path)["curves"], "{http://www.w3.org/2000/svg}"

    def points(group):
        return np.array(re.findall(r"[\d.]+", next(group.iter(f"{svg}path")).attrib["d"]), float).reshape(-1, 2)

    groups = ET.fromstring(curves.picture.svg).iter(f"{svg}g")
    panels = [group for group in groups if group.get("id", "").startswith("panel,")]
    _, _, *scales, label = panels[2].get("id").split(",")
    assert (len(panels), *scales[:2], label) == (4, "linear", "linear", "round")
    x0, x1, y0, y1 = map(float, scales[2:])
    frame = points(panels[2])
    (line,) = [group for group in panels[2] if re.fullmatch("line,.*,FedTP", group.get("id", ""))]
    share, depth = (points(line)[-1] - frame.min(0)) / np.ptp(frame, axis=0)
    last = curves.data[["round", "FedTP / CIFAR-10 / Dirichlet / 50"]].iloc[-1]
    assert (x0 + share * (x1 - x0), y1 - depth * (y1 - y0)) == pytest.approx(tuple(last), abs=1e-3)


def test_both_losses_are_means_over_the_runs_of_a_cell(tmp_path):
    rd.write_run(tmp_path, "a", 60.0, train_loss=lambda round_: 2.0 / round_)
    rd.write_run(tmp_path, "b", 60.0, train_loss=lambda round_: 0.5 / round_)
    rd.write_run(tmp_path, "old", 70.0)
    resolved = table(
        [cell({"method": "M"}, ["a", "b"]), cell({"method": "O"}, ["old"])], ["method"], [], figures=["loss"]
    )
    section = sections_of(resolved, tmp_path)["loss"]
    (axes,) = section.picture.figure.axes
    drawn = [line.get_ydata().tolist() for line in axes.lines]
    assert drawn[1] == pytest.approx(1.25 / axes.lines[1].get_xdata()) and np.isnan(drawn[3]).all()
    data = section.data.groupby("method", observed=True)
    assert data["train_loss"].last().dropna().to_dict() == {"M": 0.0125}
    assert data["test_loss"].last()["M"] == pytest.approx(drawn[0][-1]) and drawn[0] != drawn[2]
    assert "kept before it was measured" in section.text


def test_many_lines_have_their_names_at_their_ends_from_the_highest_down(tmp_path):
    names = [f"M{at}" for at in range(9)]
    for at, run in enumerate(names):
        rd.write_run(tmp_path, run, 50.0 + 4 * at)
    for some, entries in ((names[:8], names[:8]), (names, [])):  # eight have a legend
        cells = [cell({"method": run}, [run]) for run in some]
        figure = sections_of(table(cells, ["method"], [], figures=[]), tmp_path)["curves"].picture.figure
        assert [text.get_text() for one in figure.legends for text in one.get_texts()] == entries
    texts = sorted(figure.axes[0].texts, key=lambda text: text.get_position()[1])
    assert [text.get_text() for text in texts] == names
    assert spread_out([0.1, 0.5, 0.5, 0.99], 0.25) == pytest.approx([0.1, 0.5, 0.75, 1.0])
    assert spread_out([0.9, 0.95], 0.2) == pytest.approx([0.8, 1.0])


def test_curves_over_visits_of_samples(tmp_path):
    records = {}
    for run, epochs in {"Once": 1, "More": 3}.items():
        rd.write_run(tmp_path, run, 70.0)
        training = {"rounds": 100, "sample_rate": 0.5, "local_epochs": epochs}
        records[run] = rd.RECORD | {"training": training, "clients": 10}
    one, both = ([cell({"method": run}, [run]) for run in runs] for runs in (["Once"], records))
    found = [rd.with_records(tmp_path, table(cells, ["method"], [], figures=[]), records) for cells in (one, both)]
    alone, together = (sections_of(resolved, tmp_path).get("curves_by_work") for resolved in found)
    # Half of the clients in each of a hundred rounds: fifty visits by one epoch, and three times as many by three.
    mixed = rd.with_records(tmp_path, table([cell({"method": "all"}, [*records])], ["method"], [], figures=[]), records)
    absent = records | {"Once": records["Once"] | {"condition": {"name": "availability", "away": 0.5}}}
    absent = rd.with_records(tmp_path / "absent", found[1], absent)
    shutil.copytree(tmp_path / "artifacts", tmp_path / "absent/artifacts")
    assert not any("curves_by_work" in sections_of(*own) for own in ((mixed, tmp_path), (absent, tmp_path / "absent")))
    data = together.data
    assert not alone and [data["visits"][data[run].last_valid_index()] for run in records] == [50, 150]
