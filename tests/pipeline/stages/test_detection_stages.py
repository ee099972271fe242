"""Detection from a spec to its report: precision in the artifacts, mAP in the words, boxes in a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.project import make_project

from pflcore.artifacts import read_table
from pflcore.errors import UserError
from pipeline.report.figures._pictures import pixels
from pipeline.report.frame import read_frame
from pipeline.workspace import frame_path

SPEC = """\
title: Shapes
grid:
  base:
    dataset: {name: detection_folder, size: 32, class_list: [box, disc], stand_in: 24}
    partition: iid
    clients: 2
    backbone: {name: mobilenetv2_ssd, width: 35}
    training: {rounds: 2, sample_rate: 1.0, local_epochs: 1, batch_size: 6, lr: 0.01}
    evaluation: {window: 0, curve_every: 1}
    analyses: [{name: detections, images: 1, least: 0.0}]
  axes: {method: {FedPer: {name: fedper, also_personal: [local_attention]}}}
  overrides:
    - {when: {method: FedPer}, set: {backbone: {attention: se}}}
table: {rows: [method], columns: [], metric: clients}
"""


def test_detection(tmp_path: Path) -> None:
    project = make_project(tmp_path / "shapes", {"specs/shapes.yaml": SPEC})
    project.compile()
    project.execute(project.compiled())
    frame = read_frame(project.root / frame_path("shapes"))
    (folder,) = (project.root / "artifacts/runs").iterdir()
    rounds, meta = read_table(folder / "rounds.parquet", "rounds/2")
    precision = rounds["precision"].to_numpy()
    last = precision[rounds["round"].to_numpy() == 2]
    assert len(precision) == 4 and ((precision >= 0) & (precision <= 1)).all() and meta["figure"] == "mAP"
    assert (frame.clients["accuracy"] / 100).to_list() == pytest.approx(last.tolist())
    assert frame.values.set_index("metric")["mean"]["clients"] == pytest.approx(100 * last.mean())
    text = (project.root / "reports/shapes/report.md").read_text(encoding="utf-8")
    assert "mAP (%)" in text and "average precision at an overlap of one half" in text and "accuracy (%)" not in text
    assert "## Detections" in text and (project.root / "reports/shapes/figures/detections.svg").is_file()
    rows = read_table(folder / "analysis.parquet", "analysis/1")[0].to_pandas()
    for client in (0, 1):
        own = rows[rows["client"] == client].groupby("item", sort=False)["value"].apply(np.array)
        kinds = {item.partition(".")[0]: values for item, values in own.items()}
        assert len(kinds["image"]) == 3 * 32 * 32 and pixels(kinds["image"]).shape == (32, 32, 3)
        objects, found = (kinds[kind].reshape(-1, 6) for kind in ("there", "found"))
        assert 1 <= len(objects) <= 3 and set(objects[:, 0]) <= {0, 1} and (np.diff(found[:, 5]) <= 0).all()
        assert (objects[:, 1:5] >= 0).all() and (objects[:, 3:5] > objects[:, 1:3]).all()
    plain = make_project(
        tmp_path / "plain", {"specs/shapes.yaml": SPEC.replace("mobilenetv2_ssd, width: 35", "lenet_bn")}
    )
    plain.compile()
    with pytest.raises(UserError, match="'detections' needs a detector"):
        plain.execute(plain.compiled())
