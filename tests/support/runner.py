"""The stages of a project with a single run, called one by one."""

from pipeline.report.collect import write_frame
from pipeline.report.frame import read_frame
from pipeline.spec.run import Run
from pipeline.stages import data, partition, train
from pipeline.workspace import frame_path
from support.project import CONVNET, make_project, spec

ROUNDS = 4


class Runner:
    """The stages of a project with a single run, one by one; data and partition have been made."""

    def __init__(self, folder, method="fedper", backbone=CONVNET, training=", save_weights: true"):
        text = spec(f"[{method}]", backbone=backbone, rounds=ROUNDS, training=training)
        self.project = make_project(folder, {"specs/a.yaml": text})
        (self.run,) = self.project.compiled().runs.values()
        self.project.compile()
        self.dataset, self.partition = folder / "artifacts/dataset.parquet", folder / "artifacts/partition.parquet"
        self.out, self.frame = folder / "artifacts/runs" / self.run.id, folder / frame_path("a")
        self.said = []
        data.run(self.run.record["dataset"], self.dataset, folder / "data")
        partition.run(self.run, self.dataset, self.partition)

    def change(self, **parts):
        """Change settings of parts of the run, under its id."""
        id_ = self.run.id
        self.run = Run(self.run.record | {part: self.run.record[part] | settings for part, settings in parts.items()})
        self.run.__dict__["id"] = id_

    def train(self, **changes):
        own = {"out": self.out, "private": self.project.root / ".pfl", "say": self.said.append}
        inputs = {"dataset": self.dataset, "partition": self.partition, "code": "one", "device": "cpu"}
        train.run(self.run, **{**inputs, **own, **changes})

    def evaluate(self):
        (table,) = self.project.compiled().tables.values()
        write_frame(table, self.project.root, self.frame)
        return read_frame(self.frame)

    def checkpoints(self):
        return sorted(self.project.root.glob(".pfl/checkpoints/*/round-*"))
