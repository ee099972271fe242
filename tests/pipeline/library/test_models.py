"""Models of a trained study by what a person calls them; what is refused, in one line."""

from __future__ import annotations

import shutil

import pytest
from support.project import Project

import pipeline
from pipeline.results.keep import keep


@pytest.fixture(scope="module")
def study(saved: Project) -> pipeline.Study:
    return pipeline.open(saved.root)


def test_a_clients_model_predicts_what_was_measured(study: pipeline.Study) -> None:
    measured = study.results("saved")
    measured = measured[measured["round"] == 2].set_index(["run", "client"])
    assert len(measured) == 18
    for run in dict.fromkeys(measured.index.get_level_values("run")):
        trained = study.trained(run)
        for client in range(3):
            model = trained.client(client)
            images, labels = model.samples("test")
            hits = model.predict(images).argmax(1) == labels
            assert (int(hits.sum()), len(hits)) == tuple(measured.loc[(run, client), ["correct", "total"]])


def test_samples_are_those_of_the_partition(study: pipeline.Study) -> None:
    dealt = study.partition("saved")
    mine = dealt[(dealt["seed"] == 1) & (dealt["client"] == 2) & (dealt["split"] == "test")]
    _, labels = study.model("saved: FedAvg", client=2, seed=1).samples("test")
    assert labels.tolist() == mine["label"].tolist()


def test_a_cell_is_named_by_its_labels_and_seed(study: pipeline.Study) -> None:
    model = study.model("saved: FedPer + kNN", client=0, seed=1)
    assert (model.method.name, model.plain) == ("fedper", False)
    for words, line in [
        ("saved: FedPer + kN", r"^saved: no cell 'FedPer \+ kN' with runs; did you mean 'FedPer \+ kNN'\?$"),
        ("saved: FedAvg", r"^saved: FedAvg: trained under several seeds; give seed=, one of \[0, 1\]$"),
        ("saved", r"^saved: a spec; name one of its runs, or a cell as 'saved: label, label'$"),
        (
            "fedavg-convnet-digits-0",
            r"^no spec asks for .*; did you mean 'fedavg-convnet-digits-\w+'\?; name a cell",
        ),
    ]:
        with pytest.raises(pipeline.UserError, match=line):
            study.model(words, client=0)
    with pytest.raises(pipeline.UserError, match="no run with seed 7; there are"):
        study.model("saved: FedAvg", client=0, seed=7)


def test_weights_that_were_not_saved_are_of_the_last_checkpoint_or_one_line(reproduced: Project) -> None:
    model = pipeline.open(reproduced.root).model("tiny: FedPer", client=1)
    assert model.method.name == "fedper"
    shutil.rmtree(reproduced.root / ".pfl/states")
    with pytest.raises(
        pipeline.UserError, match=r"its weights were not saved, and .* say `training: \{save_weights: true\}`"
    ):
        pipeline.open(reproduced.root).model("tiny: FedAvg", client=0)


def test_stale_weights_are_refused(saved: Project) -> None:
    study = pipeline.open(saved.root)
    run = study.runs("saved")["run"].iloc[0]
    path = saved.root / f"artifacts/runs/{run}/weights.safetensors"
    before = path.read_bytes()
    path.chmod(0o644)
    try:
        path.write_bytes(before + b" ")
        with pytest.raises(
            pipeline.UserError, match=r"weights.safetensors: not here, or not what was recorded; type `pfl"
        ):
            study.model(run, client=0)
    finally:
        path.write_bytes(before)


def test_a_kept_result_has_no_model(reproduced: Project) -> None:
    keep(reproduced.workspace(), "tiny")
    with pytest.raises(pipeline.UserError, match=r"kept in results/, which holds counts and no weights"):
        pipeline.open(reproduced.root).model("tiny: FedAvg", client=0)
