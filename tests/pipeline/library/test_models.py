"""Models of a trained study by what a person calls them, and exported; what is refused, in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file
from support import tiny
from support.project import Project, make_project, spec

import pipeline
from pipeline.library.models import export
from pipeline.results.keep import keep

METHODS = "{FedAvg: fedavg, FedProto + FT: {name: fedproto, finetune_epochs: 1}}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two seeds of two methods, one of which predicts by more than its network. Not to be changed."""
    more = "    seed: [0, 1]\n"
    text = spec(METHODS, partition="{name: dirichlet, alpha: 1.0}", training=", save_weights: true", more=more)
    made = make_project(Path(tmp_path_factory.mktemp("saved")), {"specs/saved.yaml": text}, ["saved"])
    made.compile()
    done = made.repro(PFL_DEVICE="cpu")
    assert done.code == 0, done.output
    return made


@pytest.fixture(scope="module")
def study(saved: Project) -> pipeline.Study:
    return pipeline.open(saved.root)


def test_a_clients_model_predicts_what_was_measured(study: pipeline.Study) -> None:
    measured = study.results("saved")
    measured = measured[measured["round"] == 2].set_index(["run", "client"])
    assert len(measured) == 12
    for run in dict.fromkeys(measured.index.get_level_values("run")):
        trained = study.trained(run)
        for client in range(3):
            model = trained.client(client)
            images, labels = model.samples("test")
            hits = model.predict(images).argmax(1) == labels
            assert (int(hits.sum()), len(hits)) == tuple(measured.loc[(run, client), ["correct", "total"]])
    mine = study.partition("saved").query("seed == 1 and client == 2 and split == 'test'")
    _, labels = study.model("saved: FedAvg", client=2, seed=1).samples("test")
    assert labels.tolist() == mine["label"].tolist()


def test_a_cell_is_named_by_its_labels_and_seed(study: pipeline.Study) -> None:
    model = study.model("saved: FedProto + FT", client=0, seed=1)
    assert (model.method.name, model.plain) == ("fedproto", False)
    for words, seed, line in [
        ("saved: FedProto", None, r"^saved: no cell .*did you mean 'FedProto \+ FT'"),
        ("saved: FedAvg", None, r"^saved: FedAvg: .*give seed=, one of \[0, 1\]$"),
        ("saved: FedAvg", 7, "no run with seed 7; there are"),
        ("saved", None, r"^saved: a spec; name one of its runs"),
        ("fedavg-convnet-digits-0", None, r"^no spec asks for .*; did you mean 'fedavg-convnet-digits-\w+'"),
    ]:
        with pytest.raises(pipeline.UserError, match=line):
            study.model(words, client=0, seed=seed)


def test_weights_are_saved_or_of_the_last_checkpoint_or_one_line(reproduced: Project, saved: Project) -> None:
    study = pipeline.open(reproduced.root)
    assert study.model("tiny: FedPer", client=1).method.name == "fedper"
    shutil.rmtree(reproduced.root / ".pfl/states")
    with pytest.raises(pipeline.UserError, match=r"its weights were not saved, and .* say `training: \{save_weights"):
        study.model("tiny: FedAvg", client=0)
    keep(reproduced.workspace(), "tiny")
    with pytest.raises(pipeline.UserError, match=r"kept in results/, which holds counts and no weights"):
        study.model("tiny: FedAvg", client=0)
    study = pipeline.open(saved.root)
    run = study.runs("saved")["run"].iloc[0]
    path = saved.root / f"artifacts/runs/{run}/weights.safetensors"
    before = path.read_bytes()
    path.chmod(0o644)
    try:
        path.write_bytes(before + b" ")
        with pytest.raises(pipeline.UserError, match=r"weights.safetensors: not here, or not what was recorded; type"):
            study.model(run, client=0)
    finally:
        path.write_bytes(before)


def test_exported_weights_say_what_they_are(saved: Project, study: pipeline.Study, tmp_path: Path) -> None:
    path = export(saved.workspace(), "saved: FedProto + FT", 2, 1, tmp_path)
    model = study.model("saved: FedProto + FT", client=2, seed=1)
    found = load_file(path)
    assert {"common/prototypes", "common/present"} < found.keys()  # a method with more than a network
    tiny.assert_states_close(found, {name: tensor.detach() for name, tensor in model.state().items()}, atol=0)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    assert header["format"] == "pt" and header["run"].startswith("fedproto-convnet-digits-")
    facts = {name: json.loads(text) for name, text in header.items() if name not in ("format", "run")}
    assert (facts["client"], facts["plain"], facts["size"]) == (2, False, None)
    assert facts["classes"] == [str(digit) for digit in range(10)] and len(facts["mean"]) == len(facts["std"]) == 1
    assert facts["settings"]["method"]["name"] == "fedproto" and facts["settings"]["seed"] == 1


@pytest.mark.matrix
def test_export_on_the_command_line(saved: Project) -> None:
    done = saved.call("pfl", "export", "saved: FedAvg", "--client", "1", "--seed", "0")
    assert done.returncode == 0 and re.fullmatch(r"\S*model\.safetensors  [\d,]+ bytes\n", done.stdout), done.stderr
    (path,) = saved.root.glob("exports/fedavg-*-client1/model.safetensors")
    with safe_open(path, "pt") as file:
        assert file.metadata()["plain"] == "true"
    done = saved.call("pfl", "export", "saved: FedAvg", "--client", "3", "--seed", "0")
    assert (done.returncode, done.stderr) == (2, "pfl: there is no client 3: clients are 0 to 2\n")


@pytest.mark.matrix
def test_a_split_goes_out_and_comes_back_as_a_spec(original: Project, tmp_path: Path) -> None:
    """CSV → a spec, whose partition is the one that was exported; a change of the file is another."""
    done = original.call("pfl", "export-split", "tiny", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    (origin, *_) = sorted((tmp_path / "out").glob("*-s0-*.csv"))
    text = spec("[fedavg]", partition="{name: from_file, path: specs/own/split.csv}")
    project = make_project(tmp_path / "study", {"specs/own.yaml": text}, ["own"])
    project.write("specs/own/split.csv", origin.read_text())
    project.compile()
    ((before, run),) = project.compiled().runs.items()
    assert run.record["partition"]["content"].startswith("sha256:")
    done = project.repro(f"stages/federations/{run.federation_id}/dvc.yaml:partition", PFL_DEVICE="cpu")
    assert done.code == 0, done.output
    done = project.call("pfl", "export-split", "own", "--out", "again")
    assert done.returncode == 0, done.stderr
    (again,) = (project.root / "again").glob("*.csv")
    assert again.read_bytes() == origin.read_bytes()
    project.write("specs/own/split.csv", origin.read_text().replace("\n0,", "\n1797,", 1))
    assert before not in project.compiled().runs
