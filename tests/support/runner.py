"""The stages of a project with a single run, called one by one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.report.frame import Frame, read_frame
from pipeline.spec.run import Run
from pipeline.stages import data, evaluate, partition, train
from pipeline.workspace import frame_path
from support.project import CONVNET, Project, make_project, spec

ROUNDS = 4


@dataclass
class Runner:
    """The stages of a project with a single run, one by one."""

    project: Project

    def __post_init__(self) -> None:
        (self.run,) = self.project.compiled().runs.values()
        self.project.compile()
        self.dataset = self.project.root / "artifacts/dataset.parquet"
        self.partition = self.project.root / "artifacts/partition.parquet"
        self.out = self.project.root / "artifacts/runs" / self.run.id
        self.said: list[str] = []

    def prepare(self) -> Runner:
        data.run(self.run.record["dataset"], self.dataset, self.project.root / "data")
        partition.run(self.run, self.dataset, self.partition)
        return self

    def change(self, **parts: dict[str, Any]) -> None:
        """Change settings of parts of the run, under its id."""
        id_ = self.run.id
        self.run = Run(self.run.record | {part: self.run.record[part] | settings for part, settings in parts.items()})
        self.run.__dict__["id"] = id_

    def train(self, **changes: Any) -> None:
        arguments: dict[str, Any] = {
            "dataset": self.dataset,
            "partition": self.partition,
            "code": "one",
            "out": self.out,
            "private": self.project.root / ".pfl",
            "device": "cpu",
            "say": self.said.append,
        }
        train.run(self.run, **{**arguments, **changes})

    def evaluate(self) -> Frame:
        (table,) = self.project.compiled().tables.values()
        evaluate.run(table, self.project.root, self.project.root / frame_path("a"))
        return read_frame(self.project.root / frame_path("a"))

    def checkpoints(self) -> list[Path]:
        return sorted(self.project.root.glob(".pfl/checkpoints/*/round-*"))


def runner(
    folder: Path, method: str = "fedper", backbone: str = CONVNET, training: str = ", save_weights: true"
) -> Runner:
    text = spec(f"[{method}]", backbone=backbone, rounds=ROUNDS, training=training)
    return Runner(make_project(folder, {"specs/a.yaml": text})).prepare()
