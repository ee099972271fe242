"""The stages of a project with a single run, called one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.stages import data, evaluate, partition, train
from support.project import CONVNET, Project, make_project, spec

ROUNDS = 4


@dataclass
class Runner:
    """The stages of a project with a single run, one by one."""

    project: Project

    def __post_init__(self) -> None:
        (self.run,) = self.project.compiled().runs.values()
        self.project.compile()
        self.federation = self.project.root / "stages/federations" / self.run.federation_id
        self.record = self.federation / f"{self.run.id}.yaml"
        self.data_record = self.project.root / f"stages/data/{self.run.data_id}.yaml"
        self.dataset = self.project.root / "artifacts/dataset.parquet"
        self.partition = self.project.root / "artifacts/partition.parquet"
        self.out = self.project.root / "artifacts/runs" / self.run.id
        self.said: list[str] = []

    def prepare(self) -> Runner:
        data.run(self.data_record, self.dataset, self.project.root / "data")
        partition.run(self.federation / "federation.yaml", self.dataset, self.partition)
        return self

    def train(self, **changes: Any) -> None:
        arguments: dict[str, Any] = {
            "dataset": self.dataset,
            "partition": self.partition,
            "code": {"train.txt": "one"},
            "out": self.out,
            "private": self.project.root / ".pfl",
            "device": "cpu",
            "say": self.said.append,
        }
        train.run(self.record, **{**arguments, **changes})

    def evaluate(self) -> str:
        return evaluate.run(self.record, self.out)

    def change_record(self, change: Callable[[dict[str, Any]], object]) -> None:
        record = yaml.safe_load(self.record.read_text(encoding="utf-8"))
        change(record)
        self.record.write_text(yaml.safe_dump(record), encoding="utf-8")

    def checkpoints(self) -> list[Path]:
        return sorted(self.project.root.glob(".pfl/checkpoints/*/round-*"))


def runner(
    folder: Path, method: str = "fedper", backbone: str = CONVNET, training: str = ", save_weights: true"
) -> Runner:
    text = spec(f"[{method}]", backbone=backbone, rounds=ROUNDS, training=training)
    return Runner(make_project(folder, {"specs/a.yaml": text})).prepare()
