"""The Python interface: frames of what was obtained, models of clients, training on own tensors; what is refused."""

import io
import json
import math
import re
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from support import tiny
from support.command import pfl as pfl
from support.mistakes import refuses
from support.project import make_project, spec

import pipeline
from pipeline.cli.obtained import load_results
from pipeline.library.models import export
from pipeline.library.study import Study
from pipeline.results.keep import keep

CONVNET = {"name": "convnet", **tiny.BACKBONE_OPTIONS["convnet"]}


def test_frames_are_what_was_measured_reported_and_dealt(original):
    study = pipeline.open(original.root)
    frame, table, runs, dealt = (getattr(study, name)("tiny") for name in ("results", "table", "runs", "partition"))
    columns = "method run seed client round population accuracy loss train_loss correct total"
    assert " ".join(frame.columns) == columns and list(frame["method"].unique()) == ["FedAvg", "FedPer"]
    assert not frame.duplicated(["run", "client", "round", "population"]).any() and set(frame["seed"]) == {0}
    for path in original.root.glob("artifacts/runs/*/rounds.parquet"):
        run_rows = frame[frame["run"] == path.parent.name].set_index(["client", "round"])
        for row in pq.read_table(path).to_pylist():
            measured = run_rows.loc[row["client"], row["round"]]
            assert (measured["correct"], measured["total"], measured["loss"]) == (
                row["correct"],
                row["total"],
                row["loss"],
            )
            assert measured["accuracy"] == row["correct"] / row["total"]
    pd.testing.assert_frame_equal(table, pq.read_table(original.root / "reports/tiny/table.parquet").to_pandas())
    assert list(table["method"]) == ["FedAvg", "FedPer"] and table["obtained_mean"].notna().all()
    assert list(runs["method"]) == ["FedAvg", "FedPer"] and set(runs["state"]) == {"trained"}
    assert list(runs["last_round"]) == [2, 2] and not runs["diverged"].any() and (runs["communicated_up"] > 0).all()
    assert len(dealt) == 1797 and dealt["sample"].is_unique and set(dealt["client"]) == {0, 1, 2}
    assert (dealt["label"] == load_digits().target[dealt["sample"]]).all()
    assert set(dealt["split"]) == {"train", "test"} and dealt["federation"].nunique() == 1


def test_results_are_printed_by_cell_and_by_client_and_as_csv(original, pfl):
    """The counts of one client at the end are those in the file that its training left."""
    outputs = [pfl(original.root, "results", "tiny", "--csv", *options)[1] for options in ([], ["--per-client"])]
    cells, clients = (pd.read_csv(io.StringIO(text)) for text in outputs)
    assert list(cells["method"]) == ["FedAvg", "FedPer"] and cells["verdict"].isna().all()
    (path,) = original.root.glob("artifacts/runs/fedper-*/rounds.parquet")
    last = max(pq.read_table(path).to_pylist(), key=lambda row: (row["round"], row["client"]))
    client_row = clients[(clients["method"] == "FedPer") & (clients["client"] == last["client"])].iloc[0]
    assert (client_row["round"], client_row["correct"], client_row["total"]) == (
        last["round"],
        last["correct"],
        last["total"],
    )
    assert client_row["accuracy"] == pytest.approx(100 * last["correct"] / last["total"])
    printed = pfl(original.root, "results", "tiny")[1].splitlines()
    assert printed[1].split()[:2] == ["FedAvg", f"{cells['obtained_mean'][0]:.2f}"]


def test_a_detectors_precision_is_in_percent_and_why_a_cell_has_no_number_is_said(monkeypatch):
    rows = {"run": ["a", "a"], "round": [1, 2], "accuracy": [0.1, 0.2], "precision": [0.3, 0.4], "nll": [0.5, 0.6]}
    numbers = ("obtained_mean", "obtained_std", "published_mean", "published_std", "difference")
    cells: dict[str, list] = {name: [math.nan] for name in numbers}
    cells |= {"verdict": ["diverged"], "n": [0]}
    order = ["spec", "published_mean", *(cells.keys() - {"published_mean"})]
    monkeypatch.setattr(Study, "results", lambda self, spec: pd.DataFrame(rows))
    monkeypatch.setattr(Study, "table", lambda self, spec: pd.DataFrame({"spec": ["a"], **cells})[order])
    (last,) = load_results(None, "a", per_client=True).to_dict("records")
    assert last == {"run": "a", "round": 2, "accuracy": 20.0, "precision": 40.0, "nll": 0.6}
    assert load_results(None, "a", per_client=False)["verdict"].tolist() == ["diverged"]


def test_what_is_unknown_untrained_or_stale_is_said_and_never_shown(reproduced):
    reproduced.write("specs/later.yaml", spec("[ditto]"))
    study = pipeline.open(reproduced.root)
    assert study.specs == ["later", "tiny"] and list(study.runs("later")["state"]) == ["missing"]
    refuses(r"^unknown spec 'tinny'; did you mean 'tiny'\?$", study.results, "tinny")
    refuses(r"^later: nothing is trained yet; type `pfl run later`$", study.results, "later")
    refuses(r"^later: its report has not been made; type `pfl run later`$", study.table, "later")
    refuses(r"neither here nor above is a pyproject.toml with \[tool", pipeline.open, reproduced.root.parent)
    reproduced.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Ditto: ditto}"))
    with pytest.warns(pipeline.NotUpToDate, match=r"^tiny: 1 missing of 3 runs are left out; type `pfl run tiny`$"):
        assert set(study.results("tiny")["method"]) == {"FedAvg", "FedPer"}
    (rounds,) = reproduced.root.glob("artifacts/runs/fedper-*/rounds.parquet")
    rounds.chmod(0o644)
    rounds.write_bytes(rounds.read_bytes() + b"x")  # not what its stage left
    shutil.rmtree(next(reproduced.root.glob("artifacts/runs/fedavg-*")))
    reproduced.write("specs/tiny.yaml", spec("[fedavg, fedper]"))
    assert dict(study.runs("tiny")[["method", "state"]].values) == {"fedavg": "missing", "fedper": "stale"}
    refuses(r"tiny: nothing of it is up to date.* type `pfl run tiny`", study.results, "tiny")
    with pytest.warns(pipeline.NotUpToDate, match=r"table\.parquet is not up to date"):
        study.table("tiny")


def test_last_states_have_models_and_kept_results_none_and_no_artifacts(reproduced):
    study = pipeline.open(reproduced.root)
    before, avg = study.results("tiny"), "tiny: FedAvg"
    assert study.model("tiny: FedPer", client=1).method.name == "fedper"
    shutil.rmtree(reproduced.root / ".pfl/states")
    refuses(r"its weights were not saved, and .* `training: \{save_we", study.model, avg, client=0)
    assert len(keep(reproduced.workspace(), "tiny").added) == 2
    shutil.rmtree(reproduced.root / "artifacts")
    refuses(r"kept in results/, which holds counts and no weights", study.model, avg, client=0)
    after = study.results("tiny")
    losses = ["loss", "train_loss"]
    known = before[losses].notna()
    assert after[losses].isna().all(axis=None) and known.all(axis=None)  # a mean over clients is no client's
    pd.testing.assert_frame_equal(before.drop(columns=losses), after.drop(columns=losses))
    assert set(study.runs("tiny")["state"]) == {"kept"} and study.runs("tiny")["kept"].notna().all()
    refuses(r"^tiny: its partitions have not been made here", study.partition, "tiny")
    columns = ["method", "obtained_mean", "n"]
    with pytest.warns(pipeline.NotUpToDate, match="not up to date"):
        table = study.table("tiny")[columns]
    shutil.rmtree(reproduced.root / "reports")
    with pytest.warns(pipeline.NotUpToDate, match="no report has been made; type"):
        pd.testing.assert_frame_equal(study.table("tiny")[columns], table)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two seeds of two methods, one of which predicts by more than its network. Not to be changed."""
    methods, axes = "{FedAvg: fedavg, FedProto + FT: {name: fedproto, finetune_epochs: 1}}", "    seed: [0, 1]\n"
    text = spec(methods, partition="{name: dirichlet, alpha: 1.0}", training=", save_weights: true", more=axes)
    project = make_project(tmp_path_factory.mktemp("saved"), {"specs/saved.yaml": text}, ["saved"])
    project.compile()
    project.succeed("dvc", "repro")
    return project


@pytest.mark.matrix
def test_models_of_clients(saved, tmp_path):
    study = pipeline.open(saved.root)
    measured = study.results("saved").query("round == 2").set_index(["run", "client"])
    assert len(measured) == 12
    for run in dict.fromkeys(measured.index.get_level_values("run")):
        trained = study.trained(run)
        for client in range(3):
            images, labels = trained.client(client).samples("test")
            hits = trained.client(client).predict(images).argmax(1) == labels
            assert (int(hits.sum()), len(hits)) == tuple(measured.loc[(run, client), ["correct", "total"]])
    mine = study.partition("saved").query("seed == 1 and client == 2 and split == 'test'")
    _, labels = study.model("saved: FedAvg", client=2, seed=1).samples("test")
    assert labels.tolist() == mine["label"].tolist()
    # Weights are those that were saved, and no others.
    path = saved.root / f"artifacts/runs/{run}/weights.safetensors"
    before = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(before + b" ")
    refuses(r"weights.safetensors: not here, or not what was recorded; type", study.model, run, client=0)
    path.write_bytes(before)
    for words, seed, line in [
        ("saved: FedProto", None, r"^saved: no cell .*did you mean 'FedProto \+ FT'"),
        ("saved: FedAvg", None, r"^saved: FedAvg: 2 runs; give a seed or an id .* \S+ \(seed 0\), \S+ \(seed 1\)$"),
        ("saved: FedAvg", 7, "^saved: FedAvg: 0 runs; give a seed or an id"),
        ("saved", None, r"^saved: a spec; name one of its runs"),
        ("fedavg-convnet-digits-0", None, r"^no spec asks for .*; did you mean 'fedavg-convnet-digits-\w+'"),
    ]:
        refuses(line, study.model, words, client=0, seed=seed)
    # Exported weights say what they are.
    path = export(saved.workspace(), "saved: FedProto + FT", 2, 1, tmp_path)
    model, found = study.model("saved: FedProto + FT", client=2, seed=1), load_file(path)
    assert (model.method.name, model.plain) == ("fedproto", False)
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
def test_exports_on_the_command_line_and_a_split_that_comes_back(saved, tmp_path):
    command = ("pfl", "export", "saved: FedAvg", "--seed", "0", "--client")
    said = saved.succeed(*command, "1", "--out", str(tmp_path / "one"))
    assert re.fullmatch(r"\S*model\.safetensors  [\d,]+ bytes\n", said)
    done = saved.call(*command, "3")
    assert (done.returncode, done.stderr) == (2, "pfl: there is no client 3: clients are 0 to 2\n")
    # CSV → a spec, whose partition is the one that was exported; a change of the file is another.
    saved.succeed("pfl", "export-split", "saved", "--out", str(tmp_path / "out"))
    (origin, *_) = sorted((tmp_path / "out").glob("*-s0-*.csv"))
    text = spec("[fedavg]", partition="{name: from_file, path: specs/own/split.csv}")
    project = make_project(tmp_path / "study", {"specs/own.yaml": text}, ["own"])
    project.write("specs/own/split.csv", origin.read_text())
    project.compile()
    ((before, run),) = project.compiled().runs.items()
    assert run.record["partition"]["content"].startswith("sha256:")
    project.succeed("dvc", "repro", f"stages/federations/{run.federation_id}/dvc.yaml:partition")
    project.succeed("pfl", "export-split", "own", "--out", "again")
    (again,) = (project.root / "again").glob("*.csv")
    assert again.read_bytes() == origin.read_bytes()
    project.write("specs/own/split.csv", origin.read_text().replace("\n0,", "\n1797,", 1))
    assert before not in project.compiled().runs


DRAW = np.random.default_rng(0)
IMAGES, LABELS = DRAW.integers(0, 255, (12, 1, 8, 8), np.uint8), np.arange(12) % 3
CLIENT = (IMAGES, LABELS)
REFUSED = [
    ({"test": [(IMAGES.transpose(0, 2, 3, 1), LABELS)]}, r"^client 0: channels come last in \(12, 8, 8, 1\)"),
    ({"train": [(IMAGES[:0], LABELS[:0])]}, "^client 0 has no samples"),
    ({"test": [IMAGES]}, "^client 0: give a pair"),
    ({"test": [(IMAGES[:, :, :7], LABELS)]}, r"^images must have one shape, got \(1, 7, 8\) and \(1, 8, 8\)$"),
    ({"classes": 2}, "^classes = 2, but a label is 2$"),
    ({"mean": [0.1, 0.2]}, "^mean has 2 numbers for 1 channels$"),
    ({"seed": -1}, "^seed = -1 must be a whole number"),
    ({"classes": "4"}, "^classes = '4' must be a whole number, at least 1$"),
    ({"std": torch.tensor([0.0])}, r"^std = tensor\(\[0.\]\) must be a list of numbers, each above 0$"),
    ({"mean": ["a"]}, r"^mean = \['a'\] must be a list of numbers$"),
    ({"device": None}, "^device 'None' cannot be used"),
    ({"train": (one for one in [CLIENT])}, "^train is a generator; give a list with a pair"),
    ({"train": [(torch.eye(3).to_sparse(), [0, 1, 2])]}, "^client 0: no array of numbers"),
    ({"train": [(IMAGES, LABELS * 10**9)]}, "^a label is 2000000000, and there are fewer samples"),
    ({"train": [(IMAGES, np.eye(3)[LABELS])]}, r"^client 0: labels must be .*, got float64 \(12, 3\)$"),
    ({"backbone": torch.nn.Linear(1, 1)}, "^backbone is a Linear; give a name"),
    ({"train": [(torch.zeros(3, 1, 8, 8).int(), [0, 1, 2])]}, r"^client 0: images must be uint8 \(n, .* int32 \("),
    ({"train": [(torch.zeros(3, 1, 8, 8), [0, 1, 2])]}, r"^samples must be of one type, got float32 and uint8$"),
    ({"train": [(torch.full((3, 4), torch.nan), [0, 1, 2])]}, r"^client 0: row 0 has a number that is missing"),
    ({"train": [(np.zeros((3, 1, 8, 8), np.uint8), [0, 1])]}, r"^client 0: labels must be 3 whole numbers"),
    ({"test": []}, r"^1 clients have training samples and 0 test samples; give both for each$"),
    ({"method": "fedperr"}, r"^unknown method 'fedperr'; did you mean 'fedper'\?$"),
    ({"batchsize": 4}, r"^training has no setting 'batchsize'; did you mean 'batch_size'\?$"),
]


def trained(**changes):
    return pipeline.train(**{"train": [CLIENT], "test": [CLIENT], "backbone": CONVNET, "rounds": 1, **changes})


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_own_tensors_that_do_not_fit_are_refused(changes, line):
    refuses(line, trained, **changes)


def test_settings_of_the_caller_change_no_result_and_stay():
    expected, threads = trained(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(threads + 1)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.no_grad(), torch.device("meta"):
            own = trained()
            assert not torch.is_grad_enabled() and torch.get_float32_matmul_precision() == "medium"
            torch.set_float32_matmul_precision("highest")
        with torch.inference_mode():
            logits = trained().model(0).predict(IMAGES)
        assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float64, threads + 1)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert own.results.equals(expected.results) and torch.equal(logits, expected.model(0).predict(IMAGES))


def test_training_on_own_tensors_is_the_engines_run_on_these_samples():
    data = tiny.federation()
    sides = [[(data.inputs[rows], data.labels[rows]) for rows in part] for part in (data.train, data.test)]
    settings = {"sample_rate": 0.67, "local_epochs": 2, "batch_size": 5, "lr": 0.05, "rounds": 2, "seed": 3}
    given = {"mean": [0.4], "std": [0.3], "classes": tiny.CLASSES, "device": "cpu"}
    own = pipeline.train(*sides, method="fedper", backbone=CONVNET, **settings, **given)
    # The engine on the same federation; its samples lie in another order, which no step sees.
    expected = tiny.run(tiny.method("fedper"), tiny.backbone("convnet"), data)
    for name in ("client", "round", "correct", "total"):
        assert own.results[name].tolist() == getattr(expected, name).tolist()
    np.testing.assert_allclose(own.results["loss"], expected.loss, rtol=1e-6)
    images, labels = sides[1][1]
    hits = int((own.model(1).predict(images).argmax(1) == labels).sum())
    assert hits == own.results.query("client == 1 and round == 2")["correct"].item()
    # Normalisation and classes are those of the training samples where they are not given.
    model = pipeline.train(*sides, backbone=CONVNET, rounds=1, sample_rate=1.0).model(0)
    pixels = np.concatenate([images.numpy() for images, _ in sides[0]]) / 255
    expected_inputs = (data.inputs[:2].numpy() / 255 - pixels.mean()) / pixels.std()
    np.testing.assert_allclose(model.prepared(data.inputs[:2]).numpy(), expected_inputs, rtol=1e-4, atol=1e-5)
    assert model.predict(data.inputs[:2]).shape == (2, tiny.CLASSES)
    # Floats are standardised by the training samples.
    readings = [(np.arange(12.0).reshape(4, 3) ** 2 + client, np.arange(4) % 2) for client in range(2)]
    model = pipeline.train(readings[:1], readings[1:], backbone="mlp", rounds=1, sample_rate=1.0).model(0)
    inputs = readings[0][0].astype(np.float32)
    standardised = (inputs - inputs.mean(0)) / inputs.std(0)
    np.testing.assert_allclose(model.prepared(torch.from_numpy(inputs)).numpy(), standardised, rtol=1e-5, atol=1e-5)
    assert {*pipeline.__all__} <= {*dir(pipeline)}
    with pytest.raises(AttributeError, match=r"^module 'pipeline' has no attribute 'opne'$"):
        pipeline.opne  # noqa: B018
