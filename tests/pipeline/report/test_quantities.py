"""Tables of numbers that are no accuracies: counted by hand here, and by the report from runs and their plans."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
import yaml
from support.fake_catalog import write_specs
from support.figure_demo import write_analysis
from support.report_demo import RECORD, cell, report, results_of, table, with_records, write_run

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.report.frame import ALL as ALL_CLIENTS
from pipeline.report.frame import Frame
from pipeline.report.table.cells import Value, collect_cells
from pipeline.report.table.printed import format_value, signed
from pipeline.running.options import Request, RunOptions
from pipeline.spec.metrics import QUANTITIES, Metric, Protocol, Quantity, read_printed
from pipeline.spec.table import Published
from pipeline.workspace import Workspace

# A convolution has a weight per filter, channel and place of its kernel and a bias per filter; of the 8 x 8 pixels of
# digits two poolings leave 2 x 2.
CONV1, CONV2 = 4 * 1 * 9 + 4, 6 * 4 * 9 + 6
HIDDEN, HEAD = 6 * 2 * 2 * 12 + 12, 12 * 10 + 10
ALL = CONV1 + CONV2 + HIDDEN + HEAD
BATCH = 5
# Multiply-adds of a sample; the first layer needs no gradient of its input.
FORWARD = 8 * 8 * 4 * 9 + 4 * 4 * 6 * 4 * 9 + 24 * 12 + 12 * 10
STEP = 3 * FORWARD - 8 * 8 * 4 * 9
BY_HAND = {
    #          parameters shared  personal  stored  sent
    "FedAvg": (ALL, ALL, 0, ALL, ALL),
    "Local": (ALL, 0, ALL, ALL, 0),
    "FedPer": (ALL, ALL - HEAD, HEAD, ALL, ALL - HEAD),
    "Ditto": (ALL, ALL, 0, 2 * ALL, ALL),
}
SPEC = f"""\
title: Costs
grid:
  base:
    dataset: digits
    partition: iid
    clients: 8
    backbone: {{name: convnet, channels: [4, 6], hidden: [12], kernel: 3, padding: 1}}
    training: {{rounds: 4, batch_size: {BATCH}}}
  axes:
    method: {{FedAvg: fedavg, Local: local, FedPer: fedper, Ditto: ditto}}
    quantity:
      {{parameters: {{}}, shared: {{}}, personal: {{}}, stored: {{}}, sent: {{}}, step: {{}}, forward: {{}},
       more: {{}}, share: {{}}}}
table:
  rows: [method]
  columns: [quantity]
  metric: parameters
  quantities:
    quantity:
      shared: {{metric: shared}}
      personal: {{metric: personal}}
      stored: {{metric: stored}}
      sent: {{metric: sent}}
      step: {{metric: step_flops}}
      forward: {{metric: forward_flops}}
      more: {{metric: stored, added_to: {{method: FedAvg}}}}
      share: {{metric: sent, percent_of: {{method: FedAvg}}}}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    write_specs(tmp_path, {"specs/costs.yaml": SPEC})
    return Workspace(tmp_path, tmp_path)


def test_counts_are_those_by_hand(workspace: Workspace) -> None:
    compilation = compile_workspace(workspace)
    for name, text in compilation.files.items():
        path = workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    results = results_of(compilation.tables["costs"], workspace.root)
    found = {tuple(one.labels.values()): one.obtained.mean for one in results.cells if one.obtained}
    assert len(found) == len(results.cells)
    for method, numbers in BY_HAND.items():
        for quantity, number in zip(("parameters", "shared", "personal", "stored", "sent"), numbers, strict=True):
            assert found[method, quantity] == number, (method, quantity)
    assert found["FedAvg", "forward"] == 2 * FORWARD
    assert found["FedAvg", "step"] == 2 * STEP * BATCH
    assert found["Ditto", "step"] == 2 * found["FedAvg", "step"]
    assert found["Ditto", "more"] == 100
    assert found["FedPer", "share"] == pytest.approx(100 * (ALL - HEAD) / ALL)
    assert not any(one.best_obtained or one.tied for one in results.cells)


def test_nothing_is_trained_for_what_is_counted(workspace: Workspace) -> None:
    compilation = compile_workspace(workspace)
    assert {stage.kind for stage in compilation.stages} == {"guard", "evaluate", "report", "index"}
    assert (compilation.runs, compilation.slots, len(compilation.counted)) == ({}, 0, 4)
    file = yaml.safe_load(compilation.files["stages/dvc.yaml"])
    made = next(one["cmd"] for name, one in file["stages"].items() if name.startswith("evaluate-"))
    # An edit of a method or of what counts makes its numbers stale.
    assert {"${method.ditto}", "${stage.counting}", "${engine}"} <= set(made.split()[-1].split("-"))
    base = SPEC.partition("  axes:")[0]
    write_specs(workspace.root, {"specs/more.yaml": f"{base}  axes: {{method: [fedavg]}}\n"})
    trained = {stage.subject for stage in compile_workspace(workspace).stages if stage.kind == "train"}
    assert len(trained) == 1  # of the same runs, as another table shows accuracies


def test_there_is_no_run_to_choose_of_what_is_counted(workspace: Workspace) -> None:
    with pytest.raises(UserError, match=r"^costs: what it shows is counted, .*; type `pfl run costs`, without"):
        Request.compiled(workspace, RunOptions(("costs",), seeds=(0,)))


def test_the_added_parameters_of_a_method_are_told_from_the_backbone(tmp_path: Path) -> None:
    vit = {"name": "tiny_vit", "depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4}
    record = {**RECORD, "backbone": vit, "method": {"name": "prompts", "count": 3}, "training": {"rounds": 1}}
    quantity = Quantity(metric="parameters", added_to="backbone")
    plain = Quantity(metric="parameters")
    cells = [
        cell({"quantity": name}, ["a"]).model_copy(update={"quantity": one})
        for name, one in {"added": quantity, "all": plain}.items()
    ]
    made = with_records(tmp_path, table(cells, [], ["quantity"], quantities=["quantity"]), {"a": record})
    added, every = (one.obtained for one in results_of(made, tmp_path).cells)
    assert added and every
    prompts = 2 * 3 * 8  # in each of two blocks three of eight numbers
    assert added.mean == pytest.approx(100 * prompts / (every.mean - prompts))


def shown(root: Path, quantity: Quantity, **more: Any) -> Value | None:
    """The obtained value of a cell of one trained run."""
    made = table([cell({"m": "A"}, ["run"], **more).model_copy(update={"quantity": quantity})], ["m"], [])
    write_run(root, "run", 80.0)
    return (
        results_of(with_records(root, made, {"run": {**RECORD, "training": {"rounds": 100}}}), root).cells[0].obtained
    )


def test_what_runs_tell_and_find(tmp_path: Path) -> None:
    assert shown(tmp_path, Quantity(metric="bytes_up")) == Value(1e9)
    assert shown(tmp_path, Quantity(metric="bytes_down")) == Value(2e9)
    assert shown(tmp_path, Quantity(metric="rounds_to", accuracy=100.0)) is None
    early = shown(tmp_path, Quantity(metric="rounds_to", accuracy=20.0))
    late = shown(tmp_path, Quantity(metric="rounds_to", accuracy=75.0))
    # It rises as 80 (1 - 0.8 exp(-r / 20)), give or take a point.
    assert early and late and early.mean == 10 and 40 <= late.mean <= 60


def test_learned_weights_by_client_kind_and_position(tmp_path: Path) -> None:
    weights = {0: {"one.se": 0.2, "one.eca": 0.8, "two.se": 0.4, "two.eca": 0.6}, 1: {"one.se": 0.6, "two.se": 1.0}}
    rows = [("mixing", client, item, 0, value) for client, own in weights.items() for item, value in own.items()]
    write_run(tmp_path, "run", 80.0, clients=2)
    write_analysis(tmp_path, "run", rows)
    asked = {
        "first": Quantity(metric="attention_weight", kind="se", position=1),
        "second": Quantity(metric="attention_weight", kind="se", position=2),
        "mean": Quantity(metric="attention_weight", kind="se"),
    }
    cells = [
        cell({"client": name, "at": at}, ["run"], client=client).model_copy(update={"quantity": quantity})
        for name, client in {"A": 0, "B": 1, "all": None}.items()
        for at, quantity in asked.items()
    ]
    made = table(cells, ["client"], ["at"], clients={"client": {"A": 0, "B": 1}}, quantities=["at"])
    made = with_records(tmp_path, made, {"run": {**RECORD, "clients": 2, "training": {"rounds": 100}}})
    found = [one.obtained.mean for one in results_of(made, tmp_path).cells if one.obtained]
    assert found == pytest.approx([0.2, 0.4, 0.3, 0.6, 1.0, 0.8, 0.4, 0.7, 0.55])


def published(text: str, mean: float) -> str:
    """The verdict on a count beside what a paper prints."""
    number, step = read_printed(text)
    printed = Published(mean=number, std=None, quoted=False, note="", printed=text, step=step)
    planned = cell({"m": "A"}, ["run"]).model_copy(
        update={"quantity": Quantity(metric="parameters"), "published": printed}
    )
    made = table([planned], ["m"], [])
    about = {"run": "run", "seed": 0, "state": "missing", "figure": None}
    value = {"run": "run", "client": ALL_CLIENTS, "metric": "parameters", "mean": mean, "std": math.nan, "n": 1}
    nothing = pd.DataFrame()
    frame = Frame(pd.DataFrame([about]), pd.DataFrame([value]), nothing, nothing, nothing, nothing)
    (one,) = collect_cells(made, frame)
    return one.verdict


def test_verdicts_go_by_the_printed_digits() -> None:
    assert published("45.17 K", 45_178) == "match"  # cut off
    assert published("45.18 K", 45_178) == "match"
    assert published("45.17 K", 45_180) == "differs"
    assert published("21.03M", 21_704_164) == "differs"
    assert published("0", 0) == "match"


def test_numbers_as_papers_print_them() -> None:
    assert read_printed("45.17 K") == (45_170.0, pytest.approx(10.0))
    assert read_printed("21.03M") == (21_030_000.0, pytest.approx(10_000.0))
    assert read_printed("45.6 MB") == (45_600_000.0, pytest.approx(100_000.0))
    assert read_printed("< 0.01") == (0.01, pytest.approx(0.01))
    assert read_printed("116%") == (116.0, 1.0)
    for wrong in ("", "many", "1,000", "1.5 P", "1e3"):
        with pytest.raises(UserError):
            read_printed(wrong)


def test_printing_in_units(tmp_path: Path) -> None:
    def text(number: float, unit: str) -> str:
        return format_value(Value(number, unit=unit), 2)

    assert [text(number, "n") for number in (0, 692, 45_178, 999_999, 1_234_567, 1.2e10, 1.76e12)] == [
        "0", "692", "45.18 K", "1.00 M", "1.23 M", "12.00 G", "1.76 T",
    ]  # fmt: skip
    assert [text(number, "B") for number in (12, 45_600, 45_600_000)] == ["12 B", "45.60 kB", "45.60 MB"]
    assert signed(-670_000, 2, "n") == "−670.00 K" and signed(-0.5, 2) == "−0.50"
    made = table([cell({"m": "A"}, ["run"]).model_copy(update={"quantity": Quantity(metric="bytes_up")})], ["m"], [])
    write_run(tmp_path, "run", 80.0)
    report(made, tmp_path, tmp_path / "out")
    page = (tmp_path / "out/report.md").read_text()
    assert "| bytes up |" in page and " 1.00 GB |" in page
    assert "- each number: bytes that a client sends in a round" in page
    assert "1.00 GB" in (tmp_path / "out/report.tex").read_text()


def test_every_metric_is_a_protocol_or_has_an_entry() -> None:
    assert set(get_args(Metric)) == {*get_args(Protocol), *QUANTITIES}
