"""Costs that are counted before training, against counts by hand."""

import pytest
import yaml
from support.fake_catalog import write_specs
from support.report_demo import results_of

from pflcore.errors import UserError
from pipeline.compile.compiler import compile_workspace
from pipeline.library.study import NotUpToDate, Study
from pipeline.running.options import Request, RunOptions
from pipeline.workspace import Workspace

# Numbers that are no accuracies. A convolution has a weight per filter, channel and place of its kernel and a bias per
# filter; of the 8 x 8 pixels of digits two poolings leave 2 x 2. The first layer needs no gradient of its input.
CONV1, CONV2, HIDDEN, HEAD = 4 * 1 * 9 + 4, 6 * 4 * 9 + 6, 6 * 2 * 2 * 12 + 12, 12 * 10 + 10
ALL, BATCH = CONV1 + CONV2 + HIDDEN + HEAD, 5
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


def test_counts_are_those_by_hand_and_nothing_is_trained(tmp_path):
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
    write_specs(tmp_path, compilation.files)
    results = results_of(compilation.tables["costs"], tmp_path)
    found = {tuple(one.labels.values()): one.obtained.mean for one in results.cells}
    for method, numbers in BY_HAND.items():
        assert tuple(found[method, name] for name in ("parameters", "shared", "personal", "stored", "sent")) == numbers
    assert (found["FedAvg", "forward"], found["FedAvg", "step"]) == (2 * FORWARD, 2 * STEP * BATCH)
    assert found["Ditto", "step"] == 2 * found["FedAvg", "step"] and found["Ditto", "more"] == 100
    assert found["FedPer", "share"] == pytest.approx(100 * (ALL - HEAD) / ALL)
    assert not any(one.best_obtained or one.tied for one in results.cells)


def test_counts_are_shown_beside_published_ones_before_a_report_is_made(tmp_path):
    printed = f"method,quantity,mean,std,quoted\nFedPer,personal,{HEAD},,\n"
    write_specs(tmp_path, {"specs/costs.yaml": f"{SPEC}  published: costs.csv\n", "specs/costs.csv": printed})
    with pytest.warns(NotUpToDate, match="^costs: no report has been made"):
        table = Study(Workspace(tmp_path, tmp_path)).table("costs")
    (row,) = table[table["published_mean"].notna()].to_dict("records")
    assert (row["method"], row["obtained_mean"], row["verdict"]) == ("FedPer", HEAD, "match")
