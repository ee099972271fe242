"""Tables of numbers that are no accuracies: counted by hand here, and by the report from runs and their plans."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import yaml
from support.fake_catalog import write_specs
from support.figure_demo import write_analysis
from support.report_demo import RECORD, cell, report, results_of, table, with_records, write_evaluation, write_run

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.report.frame import Value
from pipeline.report.printed import format_value, signed
from pipeline.running.options import Request, RunOptions
from pipeline.spec.metrics import QUANTITIES, Metric, Protocol, Quantity, read_printed
from pipeline.spec.table import Published, TableCell
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
      {{shared: {{metric: shared}}, personal: {{metric: personal}}, stored: {{metric: stored}}, sent: {{metric: sent}},
       step: {{metric: step_flops}}, forward: {{metric: forward_flops}},
       more: {{metric: stored, added_to: {{method: FedAvg}}}}, share: {{metric: sent, percent_of: {{method: FedAvg}}}}}}
"""


def test_counts_are_those_by_hand_and_nothing_is_trained(tmp_path: Path) -> None:
    write_specs(tmp_path, {"specs/costs.yaml": SPEC})
    workspace = Workspace(tmp_path, tmp_path)
    compilation = compile_workspace(workspace)
    assert {stage.kind for stage in compilation.stages} == {"guard", "evaluate", "report", "index"}
    file = yaml.safe_load(compilation.files["stages/dvc.yaml"])
    made = next(one["cmd"] for name, one in file["stages"].items() if name.startswith("evaluate-"))
    # An edit of a method or of what counts makes its numbers stale.
    assert {"${method.ditto}", "${stage.counting}", "${engine}"} <= set(made.split()[-1].split("-"))
    with pytest.raises(UserError, match=r"^costs: what it shows is counted, .*; type `pfl run costs`, without"):
        Request.compiled(workspace, RunOptions(("costs",), seeds=(0,)))
    for name, text in compilation.files.items():
        path = workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    results = results_of(compilation.tables["costs"], workspace.root)
    found = {tuple(one.labels.values()): one.obtained.mean for one in results.cells if one.obtained}
    assert len(found) == len(results.cells)
    for method, numbers in BY_HAND.items():
        assert tuple(found[method, name] for name in ("parameters", "shared", "personal", "stored", "sent")) == numbers
    assert (found["FedAvg", "forward"], found["FedAvg", "step"]) == (2 * FORWARD, 2 * STEP * BATCH)
    assert found["Ditto", "step"] == 2 * found["FedAvg", "step"] and found["Ditto", "more"] == 100
    assert found["FedPer", "share"] == pytest.approx(100 * (ALL - HEAD) / ALL)
    assert not any(one.best_obtained or one.tied for one in results.cells)


def shows(quantity: Quantity, label: str = "A", **more: object) -> TableCell:
    return cell({"m": label}, ["run"]).model_copy(update={"quantity": quantity, **more})


def test_the_added_parameters_of_a_method(tmp_path: Path) -> None:
    vit = {"name": "tiny_vit", "depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4}
    record = {**RECORD, "backbone": vit, "method": {"name": "prompts", "count": 3}, "training": {"rounds": 1}}
    cells = [shows(Quantity(metric="parameters", added_to="backbone")), shows(Quantity(metric="parameters"), "B")]
    made = with_records(tmp_path, table(cells, [], ["m"], quantities=["m"]), {"run": record})
    added, every = (one.obtained for one in results_of(made, tmp_path).cells)
    prompts = 2 * 3 * 8  # in each of two blocks three of eight numbers
    assert added and every and added.mean == pytest.approx(100 * prompts / (every.mean - prompts))


def test_what_runs_say_and_find(tmp_path: Path) -> None:
    asked = [Quantity(metric="bytes_up"), *(Quantity(metric="rounds_to", accuracy=at) for at in (100.0, 20.0, 75.0))]
    cells = [shows(one, str(at)) for at, one in enumerate(asked)]
    write_run(tmp_path, "run", 80.0)
    up, never, early, late = (one.obtained for one in results_of(table(cells, ["m"], []), tmp_path).cells)
    # It rises as 80 (1 - 0.8 exp(-r / 20)), give or take a point.
    assert up == Value(1e9) and never is None and early and late and early.mean == 10 and 40 <= late.mean <= 60


def test_learned_weights_by_client_kind_and_position(tmp_path: Path) -> None:
    weights = {0: {"one.se": 0.2, "one.eca": 0.8, "two.se": 0.4, "two.eca": 0.6}, 1: {"one.se": 0.6, "two.se": 1.0}}
    write_run(tmp_path, "run", 80.0, clients=2)
    rows = [("mixing", client, item, 0, value) for client, own in weights.items() for item, value in own.items()]
    write_analysis(tmp_path, "run", rows)
    cells = [
        cell({"client": name, "at": str(at)}, ["run"], client=client).model_copy(
            update={"quantity": Quantity(metric="attention_weight", kind="se", position=at)}
        )
        for name, client in {"A": 0, "B": 1, "all": None}.items()
        for at in (1, 2, None)
    ]
    made = table(cells, ["client"], ["at"], clients={"client": {"A": 0, "B": 1}}, quantities=["at"])
    made = with_records(tmp_path, made, {"run": {**RECORD, "clients": 2}})
    found = [one.obtained.mean for one in results_of(made, tmp_path).cells if one.obtained]
    assert found == pytest.approx([0.2, 0.4, 0.3, 0.6, 1.0, 0.8, 0.4, 0.7, 0.55])


def test_verdicts_go_by_the_printed_digits(tmp_path: Path) -> None:
    backbone = {"name": "convnet", "channels": [1, 1], "kernel": 3, "padding": 1}
    for counted, verdict in ((45_178, "match"), (45_180, "differs")):  # it may be cut off
        number, step = read_printed("45.17 K")
        printed = Published(mean=number, std=None, quoted=False, note="", printed="45.17 K", step=step)
        made = table([shows(Quantity(metric="parameters"), published=printed)], ["m"], [])
        made = with_records(tmp_path, made, {"run": {**RECORD, "backbone": backbone}})
        write_evaluation(tmp_path, "run", {"parameters": {"mean": counted, "std": 0.0, "n": 1}})
        assert [one.verdict for one in results_of(made, tmp_path).cells] == [verdict]


def test_numbers_in_print() -> None:
    texts = {"45.17 K": (45_170, 10), "21.03M": (21_030_000, 1e4), "45.6 MB": (45_600_000, 1e5), "< 0.01": (0.01, 0.01)}
    assert all(read_printed(text) == pytest.approx(number) for text, number in texts.items())
    for wrong in ("", "many", "1,000", "1.5 P", "1e3"):
        with pytest.raises(UserError):
            read_printed(wrong)


def test_printing_in_units(tmp_path: Path) -> None:
    numbers = {"n": (0, 692, 45_178, 999_999, 1.2e10, 1.76e12), "B": (12, 45_600, 45_600_000)}
    texts = [format_value(Value(number, unit=unit), 2) for unit, own in numbers.items() for number in own]
    assert texts == ["0", "692", "45.18 K", "1.00 M", "12.00 G", "1.76 T", "12 B", "45.60 kB", "45.60 MB"]
    assert signed(-670_000, 2, "n") == "−670.00 K" and signed(-0.5, 2) == "−0.50"
    write_run(tmp_path, "run", 80.0)
    report(table([shows(Quantity(metric="bytes_up"))], ["m"], []), tmp_path, tmp_path / "out")
    page = (tmp_path / "out/report.md").read_text()
    assert "| bytes up |" in page and " 1.00 GB |" in page
    assert "- each number: bytes that a client sends in a round" in page
    assert set(get_args(Metric)) == {*get_args(Protocol), *QUANTITIES}
