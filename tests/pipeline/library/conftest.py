"""A study that was trained with its weights saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project, make_project, spec

METHODS = "{FedAvg: fedavg, FedPer + kNN: {name: fedper, knn: 0.5, finetune_epochs: 1}, FedProto: fedproto}"


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Not to be changed. Two seeds of three methods, each another way of predicting; DVC has recorded all."""
    more = "    seed: [0, 1]\n"
    text = spec(METHODS, partition="{name: dirichlet, alpha: 1.0}", training=", save_weights: true", more=more)
    made = make_project(Path(tmp_path_factory.mktemp("saved")), {"specs/saved.yaml": text}, ["saved"])
    made.compile()
    done = made.repro(PFL_DEVICE="cpu")
    assert done.code == 0, done.output
    return made
