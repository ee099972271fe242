"""The engine against rounds written out in plain PyTorch, and what a run promises to its caller."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from support.by_hand import SEED, Rounds
from support.mistakes import refuses
from support.tiny import backbone, federation, method, result_bytes, run, sampled, training

from pflcore.engine import select_device, use_threads
from pflcore.methods.simple import FedAvg
from pflcore.seeds import generator, torch_seed
from pflcore.settings import Evaluation

TESTS = Path(__file__).parents[2]
CONVNET = backbone("convnet")

BY_HAND = [
    ("fedavg", {}, "convnet", {"momentum": 0.9}, ""),
    ("fedavg", {}, "convnet", {"weight_decay": 0.1}, ""),
    ("fedavg", {}, "norm", {}, ""),
    ("fedper", {}, "tiny_vit", {"momentum": 0.9}, "head."),
    ("fedprox", {"mu": 0.7}, "convnet", {"momentum": 0.9}, ""),
    ("local", {"schedule": "every_round"}, "norm", {}, "."),
    ("local", {"schedule": "when_sampled"}, "convnet", {}, "."),
    ("vanilla_attention", {}, "tiny_vit", {"weight_decay": 0.1}, ".qkv."),
]


@pytest.mark.parametrize("name, options, net, changes, own", BY_HAND)
def test_a_run_equals_rounds_written_out_by_hand(name, options, net, changes, own):
    # Batches of 5 of 15, 10 and 20 samples: batch norm has no batch of one.
    hand = Rounds(net, training(rounds=3, **changes), federation((15, 10, 20), (4, 4, 4)))
    initial = {entry: tensor for entry, tensor in hand.initial.items() if own and own in entry}
    hand.x = {entry: tensor for entry, tensor in hand.initial.items() if entry not in initial}
    hand.own, mu, ever = [dict(initial) for _ in range(3)], options.get("mu", 0.0), set()
    for round_, cohort in hand:
        trained = range(3) if options.get("schedule") == "every_round" else cohort
        ever |= set(trained)
        x = hand.x
        hand.x = hand.mean({i: hand.train(i, round_, pull=lambda n, w, x=x: mu * (w - x[n])) for i in trained})
    result = hand.run(method(name, **options))
    hand.own = [entries if i in ever else {} for i, entries in enumerate(hand.own)]
    hand.check(result, rtol=1e-4, atol=1e-6)
    if not mu:  # the proximal term is part of a train loss
        np.testing.assert_allclose(result.train_loss, np.ravel(hand.train_losses), rtol=1e-5)


def test_models_are_measured_when_the_schedule_says():
    seen, settings, measured = [], training(rounds=7, local_epochs=1), [3, 5, 6, 7]
    schedule = Evaluation(every=2, window=4, curve_every=6)
    result = run(method("fedper"), CONVNET, evaluation=schedule, on_round=seen.append, training=settings)
    assert result.round.tolist() == np.repeat(measured, 3).tolist()
    assert result.client.tolist() == [0, 1, 2] * len(measured) and not result.further
    assert result.total.tolist() == [5, 8, 6] * len(measured)
    figures, accuracy = {number: result.correct[result.round == number].sum() / 19 for number in measured}, None
    for round_, progress in enumerate(seen, 1):
        accuracy = figures.get(round_, accuracy)
        assert (progress.round, progress.rounds, progress.accuracy) == (round_, 7, accuracy) and 0 < progress.loss < 10
    assert len(seen) == 7
    unseen = run(method("fedper"), CONVNET, evaluation=Evaluation(window=0, curve_every=0), training=settings)
    assert all(torch.equal(result.weights[name], tensor) for name, tensor in unseen.weights.items())


FINITE = ("fedavg", "knn_per")


@pytest.mark.parametrize(
    "name, settings, measured",
    [
        ("fedavg", {"rounds": 4, "lr": 1e20}, False),
        # One step per client: its loss is finite, what it ends with is not a model any more.
        *((name, {"rounds": 1, "local_epochs": 1, "batch_size": 99, "lr": 1e30}, True) for name in FINITE),
    ],
)
def test_a_run_that_diverges_ends_early_and_says_where(name, settings, measured):
    result = run(method(name), CONVNET, training=training(**settings))
    first = 0 if measured else min(sampled(SEED, 1, 3, training()))
    assert str(result.diverged).startswith(f"diverged in round 1 at client {first}: the loss is not finite")
    columns = result.round, result.client, result.correct, result.total, result.loss
    assert [str(column.dtype) for column in columns] == ["int32", "int32", "int64", "int64", "float64"]
    assert not any(map(len, columns))


class Fragile(FedAvg):
    """Has no finite loss on a batch of nothing but class 3."""

    def loss(self, local, params, batch):
        plain = super().loss(local, params, batch)
        return plain + torch.log(-plain.detach().abs()) if bool((batch.labels == 3).all()) else plain


def test_divergence_names_the_client_and_keeps_the_rounds_before():
    data, seen = federation(), []
    for client, label in enumerate((0, 3, 1)):
        data.labels[data.train[client]] = label
    seed = next(s for s in range(99) if [1 in sampled(s, r, 3, training()) for r in (1, 2, 3)] == [False, False, True])
    result = run(Fragile(), CONVNET, data, training=training(rounds=5), seed=seed, on_round=seen.append)
    assert (result.diverged.round, result.diverged.client) == (3, 1)
    assert result.round.tolist() == [1, 1, 1, 2, 2, 2] and [progress.round for progress in seen] == [1, 2]
    short = run(FedAvg(), CONVNET, data, training=training(rounds=2), seed=seed)
    assert result_bytes(result)["weights"] == result_bytes(short)["weights"]


def test_the_callers_random_state_does_not_matter_and_cuda_is_left_alone(monkeypatch):
    started, results = mock.Mock(side_effect=AssertionError("CUDA is started")), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", started)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "_lazy_init", started)
            before = torch.get_rng_state()
            results.append(result_bytes(run(method("fedtp"), backbone("tiny_vit", dropout=0.5))))
        assert torch.equal(torch.get_rng_state(), before)
    assert results[0] == results[1]


def test_a_gpu_becomes_the_current_device(monkeypatch):
    current = []
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for name, device in (("cuda:1", "cuda:1"), ("cuda", "cuda:0"), ("auto", "cuda:0")):
        assert select_device(name) == torch.device(device) == current[-1]
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_devices_and_threads(monkeypatch):
    for name in ("none", "cuda:99", "cpu:x", "meta", ""):
        refuses(f"^device {name!r} cannot be used .*use auto, cpu or cuda$", select_device, name)
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("PFL_THREADS", raising=False)
    use_threads(torch.device("cpu"), (1, 8, 8))
    use_threads(torch.device("cpu"), (3, 32, 32))  # PyTorch's own choice stays
    monkeypatch.setenv("PFL_THREADS", "3")
    use_threads(torch.device("cpu"), (3, 32, 32))
    assert chosen == [1, 3]
    for text in ("0", "-1", "two", "1.5", "²", "10000"):
        monkeypatch.setenv("PFL_THREADS", text)
        refuses("PFL_THREADS", use_threads, torch.device("cpu"), (1, 8, 8))


def test_streams_of_randomness_are_independent():
    streams = list(product((0, 1), ("sampling", "batches"), [(), (1,), (1, 2), (2, 1)]))
    drawn = {tuple(generator(seed, purpose, *ids).integers(0, 2**63, 2).tolist()) for seed, purpose, ids in streams}
    assert len(drawn) == len(streams) and torch_seed(0, "init") != torch_seed(0, "dropout")


# The engine needs torch, numpy, safetensors and filelock, and nothing of these.
BARE = """
import json, sys
others = "pyarrow pandas pydantic dvc timm torchvision sklearn scipy PIL pooch h5py matplotlib jinja2 rich typer yaml"
sys.modules.update(dict.fromkeys(others.split()))
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from support.tiny import backbone, federation, method, run

entries = [registry.get(entry).name for registry in (METHODS, PARTITIONS) for entry in registry.names()]
runs = [run(method("fedtp"), backbone("tiny_vit"), federation(), executor=one) for one in ("sequential", "stacked")]
print(json.dumps([len(entries), *(one.correct.tolist() for one in runs)]))
"""


@pytest.mark.matrix
def test_the_engine_trains_where_little_is_installed():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    done = subprocess.run([sys.executable, "-W", "error", "-c", BARE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    entries, first, second = json.loads(done.stdout)
    assert entries > 40 and len(first) == 6 and first == second
