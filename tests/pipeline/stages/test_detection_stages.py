"""Detection from a spec to its report: precision in the artifacts, mAP in the words, boxes in a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.pages import squeezed
from support.project import Project, make_project

from pflcore.artifacts import read_meta, read_table
from pflcore.errors import UserError
from pipeline.report.drawing.images import pixels
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
  axes:
    method:
      FedAvg: fedavg
      FedPer: {name: fedper, also_personal: [local_attention]}
  overrides:
    - {when: {method: FedPer}, set: {backbone: {attention: se}}}
table: {rows: [method], columns: [], metric: clients}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("shapes"), {"specs/shapes.yaml": SPEC})
    made.compile()
    made.execute(made.compiled())
    return made


def folders(project: Project) -> list[Path]:
    return sorted((project.root / "artifacts/runs").iterdir())


def test_precision_is_a_column_of_every_round_and_the_figure_of_a_client(project: Project) -> None:
    assert len(folders(project)) == 2
    frame = read_frame(project.root / frame_path("shapes"))
    for folder in folders(project):
        rounds, _ = read_table(folder / "rounds.parquet", "rounds/2")
        precision = rounds["precision"].to_numpy()
        assert len(precision) == 4 and ((precision >= 0) & (precision <= 1)).all()
        clients, values = (one[one["run"] == folder.name] for one in (frame.clients, frame.values))
        last = precision[rounds["round"].to_numpy() == 2]
        assert (clients["accuracy"] / 100).to_list() == pytest.approx(last.tolist())
        assert values.set_index("metric")["mean"]["clients"] == pytest.approx(100 * last.mean())
        assert read_meta(folder / "rounds.parquet", "rounds/2")["figure"] == "mAP"


def test_the_report_speaks_of_precision_and_shows_boxes(project: Project) -> None:
    text = (project.root / "reports/shapes/report.md").read_text(encoding="utf-8")
    lines = squeezed(text)
    assert any("mAP (%)" in line for line in lines) and "average precision at an overlap of one half" in text
    assert "Mean average precision, the mean over clients, over communication rounds." in text
    assert "accuracy (%)" not in text
    assert "## Detections" in lines and (project.root / "reports/shapes/figures/detections.svg").is_file()


def test_what_is_found_lies_beside_what_is_there(project: Project) -> None:
    table, _ = read_table(folders(project)[0] / "analysis.parquet", "analysis/1")
    rows = table.to_pandas()
    for client in (0, 1):
        own = rows[rows["client"] == client].groupby("item", sort=False)["value"].apply(np.array)
        kinds = {item.partition(".")[0]: values for item, values in own.items()}
        assert len(kinds["image"]) == 3 * 32 * 32 and pixels(kinds["image"]).shape == (32, 32, 3)
        objects, found = (kinds[kind].reshape(-1, 6) for kind in ("there", "found"))
        assert 1 <= len(objects) <= 3 and set(objects[:, 0]) <= {0, 1} and (np.diff(found[:, 5]) <= 0).all()
        assert (objects[:, 1:5] >= 0).all() and (objects[:, 3:5] > objects[:, 1:3]).all()


def test_an_analysis_of_boxes_needs_a_detector(project: Project, tmp_path: Path) -> None:
    plain = make_project(tmp_path, {"specs/shapes.yaml": SPEC.replace("mobilenetv2_ssd, width: 35", "lenet_bn")})
    plain.compile()
    with pytest.raises(UserError, match="'detections' needs a detector"):
        plain.execute(plain.compiled())
