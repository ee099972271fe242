"""The engine against rounds written out in plain PyTorch, and what a run promises to its caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.by_hand import SEED, Rounds
from support.tiny import (
    CLASSES,
    backbone,
    create,
    federation,
    method,
    result_bytes,
    run,
    sampled,
    training,
)
from torch import Tensor

from pflcore.engine import Progress, select_device, use_threads
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.evaluation import Scores, score_client, score_shared_model
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView
from pflcore.methods.simple import FedAvg
from pflcore.seeds import generator, torch_seed
from pflcore.settings import Evaluation

TESTS = Path(__file__).parents[2]
CONVNET = backbone("convnet")

# --- rounds written out by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "net", "changes", "own"),
    [
        ("fedavg", {}, "convnet", {"momentum": 0.9}, ""),
        ("fedavg", {}, "convnet", {"weight_decay": 0.1}, ""),
        ("fedavg", {}, "norm", {}, ""),
        ("fedper", {}, "tiny_vit", {"momentum": 0.9}, "head."),
        ("fedprox", {"mu": 0.7}, "convnet", {"momentum": 0.9}, ""),
        ("local", {"schedule": "every_round"}, "norm", {}, "."),
        ("local", {"schedule": "when_sampled"}, "convnet", {}, "."),
        ("vanilla_attention", {}, "tiny_vit", {"weight_decay": 0.1}, ".qkv."),
    ],
)
def test_a_run_equals_rounds_written_out_by_hand(
    name: str, options: dict[str, Any], net: str, changes: dict[str, Any], own: str
) -> None:
    # Batches of 5 of 15, 10 and 20 samples: batch norm has no batch of one.
    hand = Rounds(net, training(rounds=3, **changes), federation((15, 10, 20), (4, 4, 4)))
    mine = {entry for entry in hand.initial if own and own in f"{entry}"}
    hand.x = {entry: tensor for entry, tensor in hand.initial.items() if entry not in mine}
    hand.own = [{entry: hand.initial[entry] for entry in hand.initial if entry in mine} for _ in range(3)]
    ever = set()
    for round_, cohort in hand:
        trained, mu = range(3) if options.get("schedule") == "every_round" else cohort, options.get("mu", 0.0)
        ever |= set(trained)
        pull = (lambda entry, w, x=hand.x, mu=mu: mu * (w - x[entry])) if mu else None
        hand.x = hand.mean({i: hand.train(i, round_, pull=pull) for i in trained})
    result = hand.run(method(name, **options))
    hand.own = [one if i in ever else {} for i, one in enumerate(hand.own)]
    hand.check(result, rtol=1e-4, atol=1e-6)


def test_dropout_has_the_masks_of_its_stream() -> None:
    hand = Rounds("tiny_vit", training(rounds=2, momentum=0.9))
    hand.net = backbone("tiny_vit", dropout=0.2)
    hand.model = hand.net.create((1, 8, 8), CLASSES, SEED)[0]
    noise = DropoutBits(hand.model, hand.data.example())
    for round_, cohort in hand:
        ended = {}
        for client in cohort:
            steps = iter(range(99))

            def loss(rows: Tensor, ids: Any = (SEED, round_, client), steps: Any = steps) -> Tensor:
                noise.load(noise.draw(len(rows), *ids, next(steps), 0))
                return hand.cross_entropy(rows)

            ended[client] = hand.train(client, round_, loss=loss)
        hand.x = hand.mean(ended)
    hand.check(hand.run("fedavg"), rtol=1e-4, atol=1e-6)


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_one_shared_model_scores_as_each_client_does_with_it() -> None:
    data = federation((3, 3, 3, 3), (700, 1, 900, 5))  # the pooled pass has two batches, cut inside a client
    model, groups = create(backbone("convnet"))
    trainer = make_trainer(model, groups, data, method("fedavg"), training(), SEED)
    state = dict(model.state_dict())
    pooled = score_shared_model(trainer, state)
    each = Scores.join(score_client(trainer, state, client) for client in range(data.clients))
    assert pooled.column("total").tolist() == [700, 1, 900, 5] and 0 < pooled.column("correct").sum() < 1606
    np.testing.assert_allclose(pooled.values, each.values, rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "measured"),
    [
        ({"every": 2, "window": 4, "curve_every": 2}, [2, 3, 4, 5, 6, 7]),
        ({"every": 1, "window": 0, "curve_every": 4}, [4, 7]),
        ({"every": 9, "window": 200, "curve_every": 0}, [7]),
    ],
)
def test_models_are_measured_when_the_schedule_says(schedule: dict[str, int], measured: list[int]) -> None:
    seen: list[Progress] = []
    arguments: Any = {"training": training(rounds=7, local_epochs=1)}
    result = run(method("fedper"), CONVNET, evaluation=Evaluation(**schedule), on_round=seen.append, **arguments)
    assert result.round.tolist() == np.repeat(measured, 3).tolist()
    assert result.client.tolist() == [0, 1, 2] * len(measured) and result.precision is None
    assert result.total.tolist() == [5, 8, 6] * len(measured)
    assert [(one.round, one.rounds) for one in seen] == [(round_, 7) for round_ in range(1, 8)]
    figures = {at: result.correct[result.round == at].sum() / 19 for at in measured}
    for one in seen:
        last = max((at for at in measured if at <= one.round), default=None)
        assert 0 < one.loss < 10 and one.accuracy == (None if last is None else pytest.approx(figures[last]))
    unseen = run(method("fedper"), CONVNET, evaluation=Evaluation(window=0, curve_every=0), **arguments)
    assert all(torch.equal(result.weights[name], tensor) for name, tensor in unseen.weights.items())


# --- divergence ------------------------------------------------------------------------------------------------------


def test_a_run_that_diverges_ends_early_and_says_where() -> None:
    result = run(method("fedavg"), CONVNET, training=training(rounds=4, lr=1e20))
    first = min(sampled(SEED, 1, 3, training()))
    assert str(result.diverged).startswith(f"diverged in round 1 at client {first}: the loss is not finite")
    columns = result.round, result.client, result.correct, result.total, result.loss
    assert [str(one.dtype) for one in columns] == ["int32", "int32", "int64", "int64", "float64"]
    assert not any(map(len, columns))


class Fragile(FedAvg):
    """Has no finite loss on a batch of nothing but class 3."""

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        plain = super().loss(local, params, batch)
        return plain + torch.log(-plain.detach().abs()) if bool((batch.labels == 3).all()) else plain


def test_divergence_names_the_client_and_keeps_the_rounds_before() -> None:
    data = federation()
    for client, label in enumerate((0, 3, 1)):
        data.labels[data.train[client]] = label
    seed = next(s for s in range(99) if [1 in sampled(s, r, 3, training()) for r in (1, 2, 3)] == [False, False, True])
    seen: list[Progress] = []
    result = run(Fragile(), backbone("convnet"), data, training=training(rounds=5), seed=seed, on_round=seen.append)
    assert result.diverged and (result.diverged.round, result.diverged.client) == (3, 1)
    assert result.round.tolist() == [1, 1, 1, 2, 2, 2] and [one.round for one in seen] == [1, 2]
    short = run(FedAvg(), backbone("convnet"), data, training=training(rounds=2), seed=seed)
    assert result_bytes(result)["weights"] == result_bytes(short)["weights"]


@pytest.mark.parametrize("name", ["fedavg", "knn_per"])
def test_weights_lost_in_the_last_step_are_a_divergence_too(name: str) -> None:
    # One step per client: its loss is finite, what it ends with is not a model any more.
    once = training(rounds=1, local_epochs=1, batch_size=99, lr=1e30)
    result = run(method(name), backbone("convnet"), training=once)
    assert result.diverged and result.diverged.round == 1 and np.isfinite(result.loss).all()


# --- a run and its surroundings --------------------------------------------------------------------------------------


def test_the_callers_random_state_does_not_matter_and_cuda_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("CUDA is started")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", started)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "_lazy_init", started)
            before = torch.get_rng_state()
            results.append(result_bytes(run(method("fedtp"), backbone("tiny_vit", dropout=0.5))))
        assert torch.equal(torch.get_rng_state(), before)
    assert results[0] == results[1]


def test_everybody_has_samples() -> None:
    for sizes, part in ((((3, 0), (2, 2)), "training"), (((3, 3), (2, 0)), "test")):
        with pytest.raises(UserError, match=f"^client 1 has no {part} samples; raise the partition's minimum$"):
            federation(*sizes)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("none", "cuda:99", "cpu:x", "meta", ""):
        with pytest.raises(UserError, match=f"^device {name!r} cannot be used .*use auto, cpu or cuda$"):
            select_device(name)
    current: list[torch.device] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for name, device in (("cuda:1", "cuda:1"), ("cuda", "cuda:0"), ("auto", "cuda:0")):
        assert select_device(name) == torch.device(device) == current[-1]
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_threads_are_one_for_small_images_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("PFL_THREADS", raising=False)
    use_threads(torch.device("cpu"), (1, 8, 8))
    use_threads(torch.device("cpu"), (3, 32, 32))  # PyTorch's own choice stays
    monkeypatch.setenv("PFL_THREADS", "3")
    use_threads(torch.device("cpu"), (3, 32, 32))
    assert chosen == [1, 3]
    for wanted in ("0", "-1", "two", "1.5", "²", "10000"):
        monkeypatch.setenv("PFL_THREADS", wanted)
        with pytest.raises(UserError, match="PFL_THREADS"):
            use_threads(torch.device("cpu"), (1, 8, 8))


def test_streams_of_randomness_are_independent() -> None:
    ids = (), (1,), (1, 2), (2, 1)
    streams = list(product((0, 1), ("sampling", "batches"), ids))
    drawn = {tuple(generator(seed, what, *one).integers(0, 2**63, 2).tolist()) for seed, what, one in streams}
    assert len(drawn) == len(streams)
    assert 0 <= torch_seed(0, "init") < 2**63 and torch_seed(0, "init") != torch_seed(0, "dropout")


# --- without the pipeline, and with little installed ------------------------------------------------------------------

LAZY = """
import sys
import pflcore, pflcore.errors, pflcore.options, pflcore.registry, pflcore.seeds, pflcore.settings
import pflcore.artifacts, pflcore.data.samples, pflcore.data.assignment, pflcore.protocols
from pflcore.registry import registry_of
assert {"cifar10", "digits"} <= set(registry_of("dataset").names()) and "iid" in registry_of("partition").names()
print([name for name in ("torch", "sklearn", "pooch", "timm", "PIL", "pandas", "pipeline") if name in sys.modules])
"""
# The engine needs torch, numpy, safetensors and filelock, and nothing of these.
BARE = """
import json, sys
others = "pyarrow pandas pydantic dvc timm torchvision sklearn scipy PIL pooch h5py matplotlib jinja2 rich typer yaml"
sys.modules.update(dict.fromkeys(others.split()))
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from support.tiny import backbone, federation, method, run

found = {"entries": [registry.get(entry).name for registry in (METHODS, PARTITIONS) for entry in registry.names()]}
for executor in ("sequential", "stacked"):
    found[executor] = run(method("fedtp"), backbone("tiny_vit"), federation(), executor=executor).correct.tolist()
print(json.dumps(found))
"""


def python(script: str) -> str:
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], env=there, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_is_no_training_does_not_load_torch() -> None:
    assert python(LAZY) == "[]"


@pytest.mark.matrix
def test_the_engine_trains_where_little_is_installed() -> None:
    found = json.loads(python(BARE))
    assert len(found["entries"]) > 40 and len(found["stacked"]) == 6 and found["stacked"] == found["sequential"]
