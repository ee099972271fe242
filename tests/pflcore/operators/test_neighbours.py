"""Memories of training samples: the vote against a plain loop, and what it takes to be of use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.tiny import CLASSES, backbone, create, federation, method, normalised, training
from torch.func import functional_call

from pflcore.engine.client import Trainer
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.operators.neighbours import Neighbours


def vote_by_hand(memory: np.ndarray, labels: list[int], query: np.ndarray, k: int) -> list[float]:
    squares = [sum((float(a) - float(b)) ** 2 for a, b in zip(query, one, strict=True)) for one in memory]
    nearest = sorted(range(len(memory)), key=lambda index: squares[index])[:k]
    weights = [math.exp(-squares[index] / len(query)) for index in nearest]
    return [
        sum(w for w, index in zip(weights, nearest, strict=True) if labels[index] == c) / sum(weights)
        for c in range(CLASSES)
    ]


def memory_of(trainer: Trainer, state: Tensors, client: int) -> Neighbours | None:
    """Of a client's training samples, four in a forward pass."""
    samples, entry = trainer.samples(client, 4), trainer.method
    seen = (
        (*samples.noted(lambda batch=batch: trainer.predict(state, batch.inputs)), batch.labels)
        for batch in samples.batches()
    )
    with torch.no_grad():
        return Neighbours.remember(seen, CLASSES, entry.neighbours, entry.knn, entry.knn_grid)


def test_the_vote_is_that_of_a_plain_loop() -> None:
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(0)
    memory, queries, labels = rng.normal(size=(12, 3)), rng.normal(size=(5, 3)), rng.integers(0, CLASSES, 12)
    votes = Neighbours(NearestNeighbors(n_neighbors=4).fit(memory), labels, CLASSES).vote(queries)
    expected = [vote_by_hand(memory, labels.tolist(), query, 4) for query in queries]
    np.testing.assert_allclose(votes, expected, rtol=1e-9)
    np.testing.assert_allclose(votes.sum(1), 1)


@pytest.mark.parametrize(("net", "inner"), [("convnet", "fc1_relu"), ("tiny_vit", "norm")])
def test_a_prediction_mixes_probabilities(net: str, inner: str) -> None:
    """Features are what the classifier gets; for FedTP's Transformer the class token before its norm."""
    data, chosen = federation(), backbone(net)
    model, groups = create(chosen)
    trainer = make_trainer(model, groups, data, method("knn_per", knn=0.3, neighbours=3), training(), 0)
    state = dict(model.eval().state_dict())
    seen: list[torch.Tensor] = []
    module = dict(model.named_modules())[inner]
    if net == "tiny_vit":
        module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    else:
        module.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    predict = trainer.predictor(state, 1, 4)
    known = torch.cat(seen).detach().numpy()
    seen.clear()
    rows = data.test[1]
    mixed = predict(data.batch(rows).inputs)
    logits = functional_call(model, state, (normalised(data, rows),))
    labels = data.labels[data.train[1]].tolist()
    for query, own, made in zip(seen[0].detach().numpy(), logits.softmax(1), mixed.exp(), strict=True):
        vote = torch.tensor(vote_by_hand(known, labels, query, 3))
        torch.testing.assert_close(made, 0.3 * vote + 0.7 * own, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("client", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 3, 50])
def test_the_weight_is_that_which_is_right_when_a_sample_has_no_vote_on_itself(client: int, k: int) -> None:
    grid = (0.9, 0.1, 0.6, 0.4, 0.0)
    data, chosen = federation(), backbone("convnet")
    model, groups = create(chosen)
    trainer = make_trainer(model, groups, data, method("knn_per", knn_grid=grid, neighbours=k), training(), 0)
    state = dict(model.eval().state_dict())
    seen: list[torch.Tensor] = []
    model.get_submodule("head").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    probabilities = model(normalised(data, data.train[client])).softmax(1).tolist()
    known, labels = seen[0].numpy(), data.labels[data.train[client]].tolist()
    merits = {weight: [0, 0.0] for weight in grid}
    for out, label in enumerate(labels):
        others = [index for index in range(len(labels)) if index != out]
        vote = vote_by_hand(known[others], [labels[index] for index in others], known[out], k)
        for weight, merit in merits.items():
            mixed = [weight * a + (1 - weight) * b for a, b in zip(vote, probabilities[out], strict=True)]
            merit[0] += mixed.index(max(mixed)) == label
            merit[1] += math.log(max(mixed[label], 1e-38))
    memory = memory_of(trainer, state, client)
    assert memory is not None and memory.weight == max(grid, key=lambda weight: merits[weight])


@pytest.mark.parametrize(("option", "value"), [("knn", 0.0), ("knn", 1.1), ("neighbours", 0)])
def test_wrong_options(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"knn_per.{option}"):
        method("knn_per", **{option: value})
