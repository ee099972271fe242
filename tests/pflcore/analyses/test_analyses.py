"""What is looked at after the last round: attention rollout, embeddings, mixing weights; how runs ask for it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.project import VIT, make_project, spec
from support.tiny import EXECUTORS, backbone, create, federation, method, result_bytes, run, texts, training
from torch import Tensor
from torch.nn import functional as F

from pflcore.analyses import ANALYSES
from pflcore.analyses.adaptation import PARTS
from pflcore.analyses.learned import plane
from pflcore.analyses.pictures import attention, grid, rollout
from pflcore.artifacts import read_table
from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine import Result
from pflcore.engine.analysis import Finding
from pflcore.engine.client import Trainer
from pflcore.engine.phases import make_trainer
from pflcore.engine.result import write_findings
from pflcore.errors import UserError
from pflcore.options import describe_options
from pflcore.settings import Evaluation

SIX = federation((9,) * 6, (4,) * 6)


def analysed(
    name: str,
    net: Backbone,
    *analyses: str,
    data: FederatedData | None = None,
    asked: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Result:
    """A run of two rounds of all clients with these analyses, under the options `asked`; `changes` of arguments."""
    options = changes.pop("options", {})
    return run(
        method(name, **options),
        net,
        data,
        evaluation=Evaluation(every=1, window=0),
        analyses={analysis: ANALYSES.create(analysis, **(asked or {})) for analysis in analyses},
        **{"training": training(sample_rate=1.0), "executor": "sequential", **changes},
    )


def series(result: Result, analysis: str) -> dict[tuple[int, str], np.ndarray]:
    found = result.findings[analysis]
    of = {(one.client, one.item): one.values for one in found}
    assert len(of) == len(found) and all(values.dtype == np.float64 for values in of.values())
    return of


# --- attention rollout ----------------------------------------------------------------------------------------------


def trainer_of(net: Backbone, name: str = "fedavg") -> tuple[Trainer, Any]:
    entry = method(name)
    model, groups = create(net, 0, entry)
    return make_trainer(model, groups, federation(), entry, training(), 0), dict(model.state_dict())


@pytest.mark.parametrize(("net", "name"), [("tiny_vit", "fedavg"), ("vit", "fedperfix")])
def test_attention_is_what_the_model_mixes_values_by(net: str, name: str) -> None:
    trainer, state = trainer_of(backbone(net), name)
    values, mixed = [], []
    plain = F.scaled_dot_product_attention

    def spy(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        values.append(value)
        mixed.append(plain(query, key, value, **more))
        return mixed[-1]

    inputs = trainer.data.batch(trainer.data.test[1]).inputs
    maps = attention(trainer, state, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", spy)
        trainer.features(state, inputs)
    assert len(maps) == len(mixed) > 0
    for one, value, expected in zip(maps, values, mixed, strict=True):
        torch.testing.assert_close(one.sum(-1), torch.ones_like(one.sum(-1)))
        torch.testing.assert_close((one @ value.double()).float(), expected, rtol=1e-4, atol=1e-6)


def by_loops(maps: list[np.ndarray], discard: float) -> np.ndarray:
    """Rollout of one image, number by number: (heads, length, length) for each block."""
    length = maps[0].shape[-1]
    through = np.eye(length)
    for heads in maps:
        fused = [[max(heads[h][i][j] for h in range(len(heads))) for j in range(length)] for i in range(length)]
        places = sorted((fused[i][j], i, j) for i in range(length) for j in range(length))
        for _, i, j in places[: int(length * length * discard)]:
            if (i, j) != (0, 0):
                fused[i][j] = 0.0
        mixed = [[(fused[i][j] + (i == j)) / 2 for j in range(length)] for i in range(length)]
        through = np.array([[entry / sum(row) for entry in row] for row in mixed]) @ through
    return through[0, 1:] / through[0, 1:].max()


def test_rollout_is_its_formula() -> None:
    stream = torch.Generator().manual_seed(0)
    maps = [torch.rand(3, 2, 5, 5, generator=stream, dtype=torch.float64).softmax(-1) for _ in range(4)]
    for discard in (0.0, 0.3, 0.6):
        found = rollout(maps, discard)
        assert found.shape == (3, 4)
        for image in range(3):
            expected = by_loops([one[image].numpy() for one in maps], discard)
            np.testing.assert_allclose(found[image].numpy(), expected, rtol=1e-12)


def test_grids_of_patches() -> None:
    grids = {65: ((32, 32), (8, 8)), 197: ((224, 224), (14, 14)), 9: ((8, 16), (2, 4)), 2: ((8, 8), (1, 1))}
    for length, (size, expected) in grids.items():
        assert grid([torch.zeros(1, 1, length, length)] * 2, size) == expected
    shapes: list[list[tuple[int, int]]] = [[], [(64, 64)], [(70, 70)], [(65, 65), (17, 17)], [(65, 130)], [(1, 1)]]
    for other in shapes:
        with pytest.raises(UserError, match="'rollout' needs a Transformer in which every block attends to a class"):
            grid([torch.zeros(1, 1, *shape) for shape in other], (32, 32))


def test_rollout_of_a_run() -> None:
    result = analysed("vanilla_attention", backbone("tiny_vit"), "rollout", asked={"clients": (2, 0), "images": 3})
    found, data = series(result, "rollout"), federation()
    rows = {client: data.test[client][[0, size // 3, 2 * size // 3]].tolist() for client, size in ((2, 6), (0, 5))}
    assert list(found) == [
        (client, f"{what}.{row}") for client in (2, 0) for row in rows[client] for what in ("mask", "image")
    ]
    trainer, initial = trainer_of(backbone("tiny_vit"))
    for client in (2, 0):
        own = {name: result.weights.get(name, result.weights.get(f"client.{client}.{name}")) for name in initial}
        masks = rollout(attention(trainer, own, data.batch(torch.tensor(rows[client])).inputs))
        for row, mask in zip(rows[client], masks, strict=True):
            np.testing.assert_array_equal(found[client, f"mask.{row}"], mask.numpy())
            assert mask.shape == (4,) and mask.max() == 1.0 and mask.min() >= 0.0
            assert found[client, f"image.{row}"].tolist() == data.inputs[row].flatten().tolist()


# --- embeddings -----------------------------------------------------------------------------------------------------


def test_neighbours_stay_neighbours_on_the_plane() -> None:
    stream, groups = np.random.default_rng(0), np.repeat(np.arange(6), 5)
    points = (stream.normal(size=(6, 16)) * 4)[groups] + stream.normal(size=(30, 16)) * 0.3
    placed = plane(points, 7)
    distances = np.linalg.norm(placed[:, None] - placed, axis=-1) + np.diag([np.inf] * 30)
    assert placed.shape == (30, 2) and (groups[distances.argmin(1)] == groups).all()
    assert plane(points, 7).tobytes() == placed.tobytes() and np.isfinite(plane(points[:4, :1], 0)).all()


def test_embeddings_of_a_run() -> None:
    data = dataclasses.replace(SIX, novel=frozenset({4}))
    result = analysed("pfedhn", backbone("convnet"), "embeddings", data=data, kinds=[5, 4, 3, 2, 1, 0])
    found = series(result, "embeddings")
    assert list(found) == [(client, item) for client in (0, 1, 2, 3, 5) for item in ("x", "y", "group")]
    places = np.array([[found[client, item][0] for item in "xy"] for client in (0, 1, 2, 3, 5)])
    assert np.isfinite(places).all() and len(np.unique(places, axis=0)) == 5
    assert [found[client, "group"].tolist() for client in (0, 5)] == [[5.0], [0.0]]


def mixture(hyper: dict[str, Tensor], client: int, layer: str) -> np.ndarray:
    """A client's weights of a layer, number by number."""
    hidden = hyper["embedding"][client].double()
    for index in range(3):
        weight, bias = (hyper[f"mlp.{index}.{part}"][client].double() for part in ("weight", "bias"))
        hidden = (weight @ hidden + bias).clamp_min(0)
    weight, bias = (hyper[f"layers.{layer}.{part}"][client].double() for part in ("weight", "bias"))
    outputs = (weight @ hidden + bias).clamp_min(0)
    return (outputs / outputs.sum()).numpy()


def test_how_far_layer_weights_have_moved() -> None:
    data, entry = dataclasses.replace(SIX, novel=frozenset({4})), "pfedla_layerwise"
    few: dict[str, Any] = {"options": {"server_lr": 1.0}, "training": training(rounds=2, sample_rate=0.34)}
    result = analysed(entry, backbone("convnet"), "layer_weights", data=data, **few)
    begun = run(method(entry, server_lr=1e-30), backbone("convnet"), data)
    before, after = (
        {name.removeprefix("server.hyper/"): tensor for name, tensor in one.weights.items() if "hyper/" in name}
        for one in (begun, result)
    )
    found, places = series(result, "layer_weights"), list(product((0, 1, 2, 3, 5), ("conv1", "conv2", "fc1", "head")))
    assert list(found) == [(client, f"{layer}.{what}") for client, layer in places for what in ("own", "moved")]
    moved = set()
    for client, layer in places:
        old, new = (mixture(hyper, client, layer) for hyper in (before, after))
        assert found[client, f"{layer}.own"] == pytest.approx([new[client]], abs=1e-6)
        assert found[client, f"{layer}.moved"] == pytest.approx([np.abs(new - old).sum() / 2], abs=1e-6)
        moved |= {client} if np.abs(new - old).sum() > 1e-5 else set()
    assert 1 <= len(moved) < 5  # those that were sampled


# --- mixing weights -------------------------------------------------------------------------------------------------


def test_mixing_weights_are_the_softmax_of_logits() -> None:
    net = backbone("lenet_bn", attention="hybrid", attention_reduction=2)
    data = dataclasses.replace(federation(), novel=frozenset({1}))
    result = analysed("ditto", net, "mixing", data=data, training=training(sample_rate=1.0, lr=0.5))
    found, kinds = series(result, "mixing"), ("se", "eca", "ca")
    places = list(product((0, 2), ("conv1_attention", "conv2_attention")))
    assert list(found) == [(client, f"{place}.{kind}") for client, place in places for kind in kinds]
    for client, place in places:
        logits = result.weights[f"client.{client}.own/{place}.logits"].double().numpy()
        weights = np.concatenate([found[client, f"{place}.{kind}"] for kind in kinds])
        np.testing.assert_allclose(weights, np.exp(logits) / np.exp(logits).sum(), rtol=1e-12)
        assert np.abs(weights - 1 / 3).max() > 1e-6  # they have been trained


# --- any analysis ---------------------------------------------------------------------------------------------------

RUNS = [
    ("layer_weights", "pfedla_layerwise", "convnet", {}),
    ("rollout", "ditto", "tiny_vit", {}),
    ("mixing", "fedbn", "lenet_bn", {"attention": "hybrid", "attention_reduction": 2}),
]


@pytest.mark.parametrize(("analysis", "name", "net", "options"), RUNS)
def test_findings_depend_on_no_executor_and_change_nothing_else(
    analysis: str, name: str, net: str, options: dict[str, Any]
) -> None:
    runs = [analysed(name, backbone(net, **options), analysis, data=SIX, executor=each) for each in EXECUTORS]
    one, pooled, stacked = (series(run_, analysis) for run_ in runs)
    assert [pooled[key].tobytes() for key in one] == [values.tobytes() for values in one.values()]
    assert all(np.allclose(stacked[key], values, atol=1e-4) for key, values in one.items())
    without = analysed(name, backbone(net, **options), data=SIX)
    assert result_bytes(runs[0]) == result_bytes(without)
    assert without.findings == {} and list(runs[0].findings) == [analysis]


@pytest.mark.parametrize(
    ("analysis", "name", "net", "data", "asked", "message"),
    [
        ("rollout", "fedavg", "convnet", None, {}, "'rollout' needs a Transformer"),
        ("rollout", "prompts", "tiny_vit", None, {}, "'rollout' needs a Transformer"),
        ("rollout", "fedavg", "language_transformer", texts(), {}, "'rollout' needs images, and the dataset is text"),
        ("rollout", "fedavg", "tiny_vit", None, {"clients": (3,)}, r"clients: there is no client 3; .* 0\.\.2"),
        ("rollout", "fedavg", "tiny_vit", None, {"clients": ()}, r"rollout\.clients: name a client"),
        ("embeddings", "fedavg", "convnet", SIX, {}, "method fedavg has no embeddings of clients"),
        ("embeddings", "pfedhn", "convnet", None, {}, "needs 4 or more clients that take part in training, not 3"),
        ("mixing", "fedbn", "lenet_bn", None, {}, "needs a backbone with hybrid local attention"),
        ("layer_weights", "fedavg", "convnet", None, {}, "method fedavg mixes no layers"),
    ],
)
def test_what_cannot_be_analysed_is_an_error_before_training(
    analysis: str, name: str, net: str, data: FederatedData | None, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        analysed(name, backbone(net), analysis, data=data, on_round=lambda _: pytest.fail("trained"), asked=asked)
    assert str(error.value).startswith(("analyses: ", f"{analysis}.")) and "\n" not in str(error.value)


def test_the_documentation_has_the_defaults() -> None:
    text = (Path(__file__).parents[3] / "docs/analyses.md").read_text(encoding="utf-8")
    printed = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", text, re.MULTILINE))
    for name in ANALYSES.names():
        for one in describe_options(ANALYSES.get(name)):
            default = list(one.default) if one.many else one.default
            assert yaml.safe_load(printed[f"{name}.{one.name}"]) == default
    for name in (*ANALYSES.names(), *PARTS):
        assert f"| `{name}` |" in text


# --- the artifact and the stage -------------------------------------------------------------------------------------


def test_the_artifact_is_a_number_per_row(tmp_path: Path) -> None:
    findings = {
        "mixing": [Finding.one(3, "a.se", 0.25)],
        "rollout": [Finding(0, "mask.7", np.array([1.0, 0.5])), Finding(-1, "x", np.empty(0))],
    }
    write_findings(tmp_path / "a.parquet", findings, run="r")
    table, meta = read_table(tmp_path / "a.parquet", "analysis/1")
    assert table.to_pydict() == {
        "analysis": ["mixing", "rollout", "rollout"],
        "client": [3, 0, 0],
        "item": ["a.se", "mask.7", "mask.7"],
        "index": [0, 0, 1],
        "value": [0.25, 1.0, 0.5],
    }
    assert [str(field.type) for field in table.schema] == ["string", "int32", "string", "int32", "double"]
    assert meta == {"run": "r"}
    write_findings(tmp_path / "none.parquet", {})
    none, _ = read_table(tmp_path / "none.parquet", "analysis/1")
    assert none.num_rows == 0 and none.schema.equals(table.schema)


def test_smoke_makes_analyses_small(tmp_path: Path) -> None:
    wanted = "[{name: rollout, clients: [0, 4, 49]}, {name: adaptation, parts: [head], epochs: 30}]"
    text = spec("[fedavg]", backbone=VIT).replace("clients: 3", "clients: 50")
    text = text.replace("curve_every: 1}", f"curve_every: 1}}\n    analyses: {wanted}")
    (run_,) = make_project(tmp_path, {"specs/a.yaml": text}).compiled("smoke").runs.values()
    assert run_.record["clients"] == 8
    assert run_.record["analyses"] == [
        {"name": "adaptation", "parts": ["head"], "epochs": 2, "lr": 0.01},
        {"name": "rollout", "clients": [0, 4], "images": 1},
    ]
