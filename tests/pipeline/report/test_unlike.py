"""What a table's runs differ in beside what its labels say is printed with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.fake_catalog import BASE, resolved
from support.pages import squeezed
from support.report_demo import RECORD, demo, report, with_records

from pipeline.report.pages.unlike import unlike_settings
from pipeline.spec.records import read_run
from pipeline.workspace import record_path

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
    return unlike_settings(result.table, {run.id: run for run in result.runs}).rows


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (METHODS % "", []),
        (
            METHODS % ", training: {lr: 0.05}",
            [("method", "training.lr", "0.01", "0.05 (FedPer)")],
        ),
        (
            METHODS % ", training: {lr: 0.05, momentum: 0.9}, evaluation: {window: 5}",
            [
                ("method", "evaluation.window", "200", "5 (FedPer)"),
                ("method", "training.lr", "0.01", "0.05 (FedPer)"),
                ("method", "training.momentum", "0", "0.9 (FedPer)"),
            ],
        ),
        # Another component is its name; options of unlike entries are not compared, those of like ones are.
        (
            METHODS % ", backbone: convnet",
            [("method", "backbone", "vit", "convnet (FedPer)")],
        ),
        (
            METHODS % ", backbone: {dropout: 0.1}",
            [("method", "backbone.dropout", "none", "0.1 (FedPer)")],
        ),
        # An option that came later is in no record at its default.
        (
            METHODS.replace("FedAvg: fedavg", "FedAvg: {name: fedavg, partition: {name: pathological, shrink: 0.5}}")
            % ", partition: pathological",
            [("method", "partition", "pathological", "dirichlet (FedTP)")],
        ),
        (
            "    method: {FedAvg: {name: fedavg, partition: {name: pathological, shrink: 0.5}},\n"
            "      FedTP: {name: fedtp, partition: pathological}}\n",
            [("method", "partition.shrink", "0.5", "its default (FedTP)")],
        ),
        # What changes no number.
        (METHODS % ", training: {save_weights: true}, evaluation: {curve_every: 7}, analyses: [weights], seed: 1", []),
    ],
)
def test_settings_of_a_row(tmp_path: Path, axes: str, expected: Rows) -> None:
    assert told(tmp_path, axes + "    clients: [5, 9]\n") == expected


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


def test_records_as_stages_read_them_say_the_same(tmp_path: Path) -> None:
    """Their keys are in another order."""
    axes = METHODS % ", backbone: convnet"
    result = resolved(tmp_path, SPEC.format(base=BASE, axes=axes.rstrip(), rows="method", columns=""))
    assert result.table is not None
    read = {}
    for run in result.runs:
        path = tmp_path / record_path(run.federation_id, run.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(run.record, sort_keys=True), encoding="utf-8")
        read[run.id] = read_run(path)
    assert unlike_settings(result.table, read).rows == [("method", "backbone", "vit", "convnet (FedPer)")]


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
