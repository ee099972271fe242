"""What is looked at after the last round: attention rollout, embeddings, mixing weights."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from support.mistakes import line_of
from support.tiny import EXECUTORS, backbone, create, federation, method, result_bytes, run, texts, training
from torch.nn import functional as F

from pflcore.analyses import ANALYSES
from pflcore.analyses.adaptation import PARTS
from pflcore.analyses.learned import plane
from pflcore.analyses.pictures import attention, grid, rollout
from pflcore.artifacts import read_table
from pflcore.engine.analysis import Finding
from pflcore.engine.phases import make_trainer
from pflcore.engine.result import write_findings
from pflcore.errors import UserError
from pflcore.options import describe_options
from pflcore.settings import Evaluation

SIX = federation((9,) * 6, (4,) * 6)
JOINED = replace(SIX, novel=frozenset({4}))  # all but one have trained
VITS, CONV = backbone("tiny_vit"), backbone("convnet")
HYBRID = backbone("lenet_bn", attention="hybrid", attention_reduction=2)


def analysed(entry, net, analysis, data=SIX, **changes):
    """A run of two rounds of all clients, and what the analysis found: (client, item) → values."""
    analyses = {} if analysis is None else {analysis: ANALYSES.create(analysis, **changes.pop("asked", {}))}
    usual = {"training": training(sample_rate=1.0), "evaluation": Evaluation(every=1, window=0)}
    result = run(entry, net, data, analyses=analyses, **{"executor": "sequential", **usual, **changes})
    findings = result.findings.get(analysis, ())
    series = {(finding.client, finding.item): finding.values for finding in findings}
    assert len(series) == len(findings) and result.findings.keys() == analyses.keys()
    return result, series


# --- attention rollout ----------------------------------------------------------------------------------------------


def trainer_of(net, name="fedavg"):
    model, groups = create(net, 0, method(name))
    return make_trainer(model, groups, federation(), method(name), training(), 0), dict(model.state_dict())


@pytest.mark.parametrize("net, name", [("tiny_vit", "fedavg"), ("vit", "fedperfix")])
def test_attention_is_what_the_model_mixes_values_by(net, name, monkeypatch):
    (trainer, state), seen, plain = trainer_of(backbone(net), name), [], F.scaled_dot_product_attention
    inputs = trainer.data.batch(trainer.data.test[1]).inputs
    maps = attention(trainer, state, inputs)

    def spy(query, key, value, **options):
        seen.append((value, plain(query, key, value, **options)))
        return seen[-1][1]

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    trainer.features(state, inputs)
    assert len(maps) == len(seen) > 0
    for attention_map, (value, mixed) in zip(maps, seen, strict=True):
        torch.testing.assert_close(attention_map.sum(-1), torch.ones_like(attention_map.sum(-1)))
        torch.testing.assert_close((attention_map @ value.double()).float(), mixed, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("discard", [0.0, 0.3, 0.6])
def test_rollout_is_its_formula(discard):
    draw, expected = torch.Generator().manual_seed(0), []
    maps = [torch.rand(3, 2, 5, 5, generator=draw, dtype=torch.float64).softmax(-1) for _ in range(4)]
    for image in range(3):  # number by number
        total = np.eye(5)
        for heads in (maps_[image].tolist() for maps_ in maps):
            fused = [[max(head[i][j] for head in heads) for j in range(5)] for i in range(5)]
            for _, i, j in sorted((fused[i][j], i, j) for i in range(5) for j in range(5))[: int(25 * discard)]:
                fused[i][j] = fused[i][j] if (i, j) == (0, 0) else 0.0
            mixed = [[(fused[i][j] + (i == j)) / 2 for j in range(5)] for i in range(5)]
            total = np.array([[entry / sum(row) for entry in row] for row in mixed]) @ total
        expected.append(total[0, 1:] / total[0, 1:].max())
    np.testing.assert_allclose(rollout(maps, discard).numpy(), expected, rtol=1e-12)


def test_grids_of_patches():
    for length, size, expected in ((65, (32, 32), (8, 8)), (9, (8, 16), (2, 4)), (2, (8, 8), (1, 1))):
        assert grid([torch.zeros(1, 1, length, length)] * 2, size) == expected
    for shapes in ([], [(64, 64)], [(70, 70)], [(65, 65), (17, 17)], [(65, 130)], [(1, 1)]):
        with pytest.raises(UserError, match="'rollout' needs a Transformer in which every block attends to a class"):
            grid([torch.zeros(1, 1, *shape) for shape in shapes], (32, 32))


def test_rollout_of_a_run():
    data, asked = federation(), {"clients": (2, 0), "images": 3}
    result, findings = analysed(method("vanilla_attention"), VITS, "rollout", data, asked=asked)
    rows = {client: data.test[client][[0, size // 3, 2 * size // 3]] for client, size in ((2, 6), (0, 5))}
    places = [(client, row) for client in (2, 0) for row in rows[client].tolist()]
    assert list(findings) == [(client, f"{item}.{row}") for client, row in places for item in ("mask", "image")]
    trainer, initial = trainer_of(VITS)
    for client in (2, 0):
        state = {name: result.weights.get(name, result.weights.get(f"client.{client}.{name}")) for name in initial}
        masks = rollout(attention(trainer, state, data.batch(rows[client]).inputs))
        for row, mask in zip(rows[client].tolist(), masks, strict=True):
            np.testing.assert_array_equal(findings[client, f"mask.{row}"], mask.numpy())
            assert mask.shape == (4,) and mask.max() == 1.0 and mask.min() >= 0.0
            assert findings[client, f"image.{row}"].tolist() == data.inputs[row].flatten().tolist()


# --- what has been learned of clients -------------------------------------------------------------------------------


def test_neighbours_stay_neighbours_on_the_plane():
    draw, groups = np.random.default_rng(0), np.repeat(np.arange(6), 5)
    points = (draw.normal(size=(6, 16)) * 4)[groups] + draw.normal(size=(30, 16)) * 0.3
    placed = plane(points, 7)
    distances = np.linalg.norm(placed[:, None] - placed, axis=-1) + np.diag([np.inf] * 30)
    assert placed.shape == (30, 2) and (groups[distances.argmin(1)] == groups).all()
    assert plane(points, 7).tobytes() == placed.tobytes() and np.isfinite(plane(points[:4, :1], 0)).all()


def test_embeddings_of_a_run():
    _, findings = analysed(method("pfedhn"), CONV, "embeddings", JOINED, kinds=[5, 4, 3, 2, 1, 0])
    assert list(findings) == list(product((0, 1, 2, 3, 5), ("x", "y", "group")))
    places = [(*findings[client, "x"], *findings[client, "y"]) for client in (0, 1, 2, 3, 5)]
    assert np.isfinite(places).all() and len(set(places)) == 5
    assert [findings[client, "group"].tolist() for client in (0, 5)] == [[5.0], [0.0]]


def mixture(weights, client, layer):
    """A client's weights of a layer."""
    hidden = weights["server.hyper/embedding"][client].double()
    for part in (*(f"mlp.{index}" for index in range(3)), f"layers.{layer}"):
        weight, bias = (weights[f"server.hyper/{part}.{name}"][client].double() for name in ("weight", "bias"))
        hidden = (weight @ hidden + bias).clamp_min(0)
    return (hidden / hidden.sum()).numpy()


def test_how_far_layer_weights_have_moved():
    entry, frozen = (method("pfedla_layerwise", server_lr=lr) for lr in (1.0, 1e-30))
    result, findings = analysed(entry, CONV, "layer_weights", JOINED, training=training(sample_rate=0.34))
    begun, moved = run(frozen, CONV, JOINED).weights, set()
    places = list(product((0, 1, 2, 3, 5), ("conv1", "conv2", "fc1", "head")))
    assert list(findings) == [(client, f"{layer}.{item}") for client, layer in places for item in ("own", "moved")]
    for client, layer in places:
        old, new = (mixture(weights, client, layer) for weights in (begun, result.weights))
        assert findings[client, f"{layer}.own"] == pytest.approx([new[client]], abs=1e-6)
        assert findings[client, f"{layer}.moved"] == pytest.approx([np.abs(new - old).sum() / 2], abs=1e-6)
        moved |= {client} if np.abs(new - old).sum() > 1e-5 else set()
    assert 1 <= len(moved) < 5  # those that were sampled


def test_mixing_weights_are_the_softmax_of_logits():
    data, settings = replace(federation(), novel=frozenset({1})), training(sample_rate=1.0, lr=0.5)
    result, findings = analysed(method("ditto"), HYBRID, "mixing", data, training=settings)
    places = list(product((0, 2), ("conv1_attention", "conv2_attention")))
    assert list(findings) == [(client, f"{place}.{kind}") for client, place in places for kind in ("se", "eca", "ca")]
    for client, place in places:
        logits = result.weights[f"client.{client}.own/{place}.logits"].double().numpy()
        weights = np.concatenate([findings[client, f"{place}.{kind}"] for kind in ("se", "eca", "ca")])
        np.testing.assert_allclose(weights, np.exp(logits) / np.exp(logits).sum(), rtol=1e-12)
        assert np.abs(weights - 1 / 3).max() > 1e-6  # they have been trained


# --- any analysis ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "analysis, name, net",
    [("layer_weights", "pfedla_layerwise", CONV), ("rollout", "ditto", VITS), ("mixing", "fedbn", HYBRID)],
)
def test_findings_depend_on_no_executor_and_change_nothing_else(analysis, name, net):
    results, findings = zip(*(analysed(method(name), net, analysis, executor=each) for each in EXECUTORS), strict=True)
    sequential, pooled, stacked = findings
    assert [pooled[key].tobytes() for key in sequential] == [values.tobytes() for values in sequential.values()]
    assert all(np.allclose(stacked[key], values, atol=1e-4) for key, values in sequential.items())
    assert result_bytes(results[0]) == result_bytes(analysed(method(name), net, None)[0])


TEXT, LENET = backbone("language_transformer"), backbone("lenet_bn")


@pytest.mark.parametrize(
    "analysis, name, net, data, asked, message",
    [
        ("rollout", "fedavg", CONV, SIX, {}, "'rollout' needs a Transformer"),
        ("rollout", "prompts", VITS, SIX, {}, "'rollout' needs a Transformer"),
        ("rollout", "fedavg", TEXT, texts(), {}, "'rollout' needs images, and the dataset is of text"),
        ("rollout", "fedavg", VITS, SIX, {"clients": (6,)}, r"clients: there is no client 6; .* 0\.\.5"),
        ("rollout", "fedavg", VITS, SIX, {"clients": ()}, r"rollout\.clients: name a client"),
        ("embeddings", "fedavg", CONV, SIX, {}, "method fedavg has no embeddings of clients"),
        ("embeddings", "pfedhn", CONV, federation(), {}, "needs 4 or more clients that take part in training, not 3"),
        ("mixing", "fedbn", LENET, SIX, {}, "needs a backbone with hybrid local attention"),
        ("detections", "fedavg", CONV, SIX, {}, "'detections' needs a detector"),
        ("layer_weights", "fedavg", CONV, SIX, {}, "method fedavg mixes no layers"),
    ],
)
def test_what_cannot_be_analysed_is_an_error_before_training(analysis, name, net, data, asked, message):
    options = {"on_round": lambda _: pytest.fail("trained"), "asked": asked}
    line = line_of(lambda: analysed(method(name), net, analysis, data, **options))
    assert line.startswith(("analyses: ", f"{analysis}.")) and re.search(message, line)


def test_the_documentation_has_the_defaults():
    text = (Path(__file__).parents[3] / "docs/analyses.md").read_text(encoding="utf-8")
    printed = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", text, re.MULTILINE))
    for name in ANALYSES.names():
        for info in describe_options(ANALYSES.get(name)):
            default = list(info.default) if info.many else info.default
            assert yaml.safe_load(printed[f"{name}.{info.name}"]) == default
    assert all(f"| `{name}` |" in text for name in (*ANALYSES.names(), *PARTS))


def test_the_artifact_is_a_number_per_row(tmp_path):
    rolled = [Finding(0, "mask.7", np.array([1.0, 0.5])), Finding(-1, "x", np.empty(0))]
    write_findings(tmp_path / "a.parquet", {"mixing": [Finding.one(3, "a.se", 0.25)], "rollout": rolled}, run="r")
    table, meta = read_table(tmp_path / "a.parquet", "analysis/1")
    assert table.column_names == ["analysis", "client", "item", "index", "value"]
    rows = [("mixing", 3, "a.se", 0, 0.25), ("rollout", 0, "mask.7", 0, 1.0), ("rollout", 0, "mask.7", 1, 0.5)]
    assert list(zip(*table.to_pydict().values(), strict=True)) == rows
    assert [str(column.type) for column in table.schema] == ["string", "int32", "string", "int32", "double"]
    write_findings(tmp_path / "none.parquet", {})
    none, _ = read_table(tmp_path / "none.parquet", "analysis/1")
    assert meta == {"run": "r"} and none.num_rows == 0 and none.schema.equals(table.schema)
