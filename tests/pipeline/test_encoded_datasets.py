"""Frozen encoders: a stage for each that runs share, and features that are what the encoder's classifier takes."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import tiny
from support.mistakes import refuses
from support.project import make_project, spec

from pflcore.backbones import BACKBONES
from pflcore.data.sample_files import read_samples
from pflcore.engine.encoder import Encoder
from pflcore.errors import UserError
from pipeline.browse.partition_view import Drawing
from pipeline.plan.compatibility import compatibility_errors
from pipeline.plan.estimate import visits
from pipeline.running.clean import unused
from pipeline.spec.run import Run, read_record
from pipeline.stages import data, features
from pipeline.workspace import RECORDS, dataset_path

ENCODER = {"backbone": "convnet", "channels": [2, 3], "hidden": [7], "kernel": 3, "padding": 1}
FILE = "files/encoder.safetensors"
HEADS = "{FedAvg: fedavg, Local: local}"


def encoded(stated, **more):
    """A spec whose dataset passes through an encoder, given in YAML."""
    backbone = "{name: mlp, hidden: [8]}"
    return spec(HEADS, backbone=backbone, **more).replace("digits", f"{{name: digits, features: {{{stated}}}}}")


def asked(**more):
    dataset = {"name": "digits", "stand_in": None, "features": {**ENCODER, **more}}
    return Run({"dataset": dataset})


def pretrain(**more):
    return {"share": 0.25, "epochs": 10, "lr": 0.1, "seed": 3, **more}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "digits.parquet"
    data.run({"name": "digits", "stand_in": None}, path, path.parent)
    return path


def test_specs_share_an_encoder_and_the_samples_that_it_reads(tmp_path):
    """The base data set is that of runs on images; the run's seed is no part of an encoder, its own options are."""
    seeds = "    seed: [0, 1]\n"
    texts = {
        "images": spec(HEADS),
        "trained": encoded("backbone: convnet, kernel: 3, padding: 1, pretrain: {epochs: 2}", more=seeds),
        "more": encoded("backbone: convnet, kernel: 3, padding: 1, pretrain: {epochs: 3}"),
        "file": encoded(f"backbone: convnet, kernel: 3, padding: 1, weights: {FILE}"),
    }
    texts["null"] = texts["images"].replace("dataset: digits", "dataset: {name: digits, features: null}")
    files = {FILE: b"weights", **{f"specs/{name}.yaml": text for name, text in texts.items()}}
    project = make_project(tmp_path, files, [*texts])
    compilation = project.compiled()
    assert compilation.table("images").runs == compilation.table("null").runs
    (base,), (weights,), encoders = (
        [one for one in compilation.stages if one.kind == kind] for kind in ("data", "weights", "features")
    )
    assert len(encoders) == 3 and all(one.deps[0] == base.outs[0] for one in encoders)
    assert [one.deps[1:] for one in encoders if len(one.deps) > 1] == [weights.outs]
    made = {one.outs[0]: one for one in encoders}
    for run in compilation.runs.values():
        (reader,) = [one for one in compilation.stages if one.subject == run.federation_id and one.kind == "partition"]
        assert (reader.deps[0] in made) == bool(run.features) and reader.deps[0] == dataset_path(run.data_id)
        assert compilation.made_by[run.id]["backbone.convnet"] == "1"
    project.compile()
    assert {*project.stages()} == {one.address for one in compilation.stages}
    assert read_record(project.root / RECORDS, encoders[0].subject)["dataset"]["features"]
    assert FILE in next(one for one in compilation.stages if one.kind == "guard").deps
    (project.root / FILE).unlink()
    refuses(f"^{FILE}: is missing, so it is unknown which runs began with it", unused, project.workspace())


def test_a_sentence_encoder_is_part_of_a_run_by_what_is_in_its_folder(tmp_path):
    text = spec(HEADS, backbone="linear").replace("digits", "{name: text_table, encoder: files/encoder}")
    made = make_project(tmp_path, {"specs/a.yaml": text, "files/encoder/sub/model": "one"}, ["a"])

    def content(profile="paper"):
        (dataset,) = {run.data_id: run.record["dataset"] for run in made.compiled(profile).runs.values()}.values()
        return dataset.get("content", dataset["encoder"])

    found = [content()]
    assert "files/encoder" in next(one for one in made.compiled().stages if one.kind == "guard").deps
    for name in ("sub/.hidden", "sub/model", "more"):
        made.write(f"files/encoder/{name}", "two")
        found.append(content())
    assert found[0] == found[1] and len({*found}) == 3 and all(one.startswith("sha256:") for one in found)
    assert content("smoke") is None
    made.write("specs/a.yaml", text.replace("files/encoder", "files/absent"))
    assert content() == "absent:files/absent"
    for path, words in (("files/encoder/more", "is no folder"), ("../encoder", "must be a path inside the project")):
        made.write("specs/a.yaml", text.replace("files/encoder", path))
        refuses(rf"^specs/a\.yaml:4: grid\.base\.dataset\.encoder: .*{words}", made.compiled)


def test_features_are_what_the_classifier_of_the_file_takes(tmp_path, digits):
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in ENCODER.items()}
    model, _ = BACKBONES.create(options.pop("backbone"), **options).create((1, 8, 8), 10, 5)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    encoder, file = asked(weights="sha256:"), tmp_path / "w.safetensors"
    line = features.run(encoder, digits, file, out=tmp_path / "out", device="cpu")
    before, after = read_samples(digits), read_samples(tmp_path / "out")
    assert line == "digits: 7 features of 1,797 samples by convnet"
    assert after.standardise and after.inputs.shape == (1797, 7) and after.class_names == before.class_names
    assert np.array_equal(after.labels, before.labels) and np.array_equal(after.train, before.train)
    images = (torch.from_numpy(before.inputs).float() / 255 - before.mean[0]) / before.std[0]
    weight, bias = model.state_dict()["head.weight"], model.state_dict()["head.bias"]
    with torch.no_grad():
        logits = model.eval()(images)
    assert torch.allclose(torch.from_numpy(after.inputs) @ weight.T + bias, logits, atol=1e-4)
    save_file({**model.state_dict(), "more": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"^backbone convnet: .*: not the weights of this model: 1 unknown to the"):
        features.run(encoder, digits, file, out=tmp_path / "no", device="cpu")
    assert not (tmp_path / "no").exists()


def test_features_do_not_depend_on_the_batch():
    encoder, rows = Encoder(tiny.backbone("lenet_bn"), tiny.federation()), torch.tensor([3, 0, 8, 5])
    together = encoder.encode(rows)
    np.testing.assert_allclose(together[1:2], encoder.encode(rows[1:2]), rtol=1e-4, atol=1e-5)
    assert np.ptp(together, axis=0).max() > 0.01


def test_an_encoder_that_is_trained_leaves_out_what_it_has_seen(tmp_path, digits, monkeypatch):
    """The same bytes by any number of workers, without memory, and whatever the seed of the caller."""
    found = []
    for workers, memory in (("1", "1"), ("3", "0")):
        monkeypatch.setenv("PFL_WORKERS", workers)
        monkeypatch.setenv("PFL_MEMORY", memory)
        torch.manual_seed(len(found))
        line = features.run(asked(pretrain=pretrain()), digits, out=tmp_path / workers, scratch=tmp_path, device="cpu")
        found.append((tmp_path / workers).read_bytes())
    assert found[0] == found[1] and "trained on 360 others, it recognises" in line
    before, after = read_samples(digits), read_samples(tmp_path / "1")
    assert [(one.train.sum(), (~one.train).sum()) for one in (before, after)] == [(1438, 359), (1078, 359)]
    assert np.array_equal(after.labels[~after.train], before.labels[~before.train])
    counts = [np.bincount(one.labels[one.train], minlength=10) for one in (before, after)]
    assert ((counts[0] - counts[1]) > 20).all()  # of each class a share, at random
    assert float(line.rpartition("recognises ")[2].partition("%")[0]) > 30  # chance is 10
    features.run(asked(pretrain=pretrain(seed=4)), digits, out=tmp_path / "other", device="cpu")
    assert not np.array_equal(read_samples(tmp_path / "other").labels, after.labels)
    features.run(asked(pretrain=pretrain(epochs=1)), digits, out=tmp_path / "short", device="cpu")
    short = read_samples(tmp_path / "short")
    assert np.array_equal(short.labels, after.labels) and not np.allclose(short.inputs, after.inputs)
    with pytest.raises(UserError, match=r"^features: the encoder diverged in epoch 1; choose a smaller pretrain.lr$"):
        features.run(asked(pretrain=pretrain(lr=1e30)), digits, out=tmp_path / "no", device="cpu")


def test_what_does_not_go_together_is_a_line_and_plans_know_what_is_left(tmp_path):
    small = "backbone: convnet, kernel: 3, padding: 1, pretrain: {share: 0.5}"
    texts = {
        "large": encoded("backbone: convnet, pretrain: {}"),
        "text": encoded(small).replace("name: digits", "name: shakespeare"),
        "augmented": encoded(small, training=", augment_flip: 0.5"),
        "few": encoded(small.replace("0.5", "0.999"), partition="{name: dirichlet, min_samples: 10}"),
        "noisy": encoded(small, partition="noise"),
        "right": encoded(small),
    }
    project = make_project(tmp_path, {f"specs/{name}.yaml": text for name, text in texts.items()}, [*texts])
    compilation = project.compiled()
    lines = dict(
        line.split(":", 1) for line in compatibility_errors(project.workspace(), compilation, compilation.runs)
    )
    assert {*lines} == {f"specs/{name}.yaml" for name in ("large", "text", "augmented", "few", "noisy")}
    assert "(there are 1 and 359 in all)" in lines["specs/few.yaml"]
    assert lines["specs/large.yaml"].startswith("4: FedAvg and 1 more: features: backbone convnet: kernel 5")
    assert lines["specs/text.yaml"].startswith("4: FedAvg and 1 more: features: a text has a label at every")
    assert "augment" in lines["specs/augmented.yaml"]
    run = compilation.runs[next(iter(compilation.table("right").runs))]
    assert visits(run) == 2 * 719  # rounds, and half of the training samples
    assert len(Drawing.make(run.federation, project.root).samples) == 719 + 359
