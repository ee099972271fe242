"""Memories of training samples: the vote against a plain loop, and what it takes to be of use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from support.tiny import CLASSES, backbone, create, federation, method, normalised, training
from torch.func import functional_call

from pflcore.engine.phases import make_trainer
from pflcore.operators.neighbours import Neighbours


def vote_by_hand(memory: np.ndarray, labels: list[int], query: np.ndarray, k: int) -> np.ndarray:
    squares = [sum((float(a) - float(b)) ** 2 for a, b in zip(query, one, strict=True)) for one in memory]
    votes = np.zeros(CLASSES)
    for index in sorted(range(len(memory)), key=lambda index: squares[index])[:k]:
        votes[labels[index]] += math.exp(-squares[index] / len(query))
    return votes / votes.sum()


@pytest.mark.parametrize(("net", "inner"), [("convnet", "head"), ("tiny_vit", "norm")])
def test_a_prediction_mixes_probabilities(net: str, inner: str) -> None:
    """Features are what the classifier gets; for FedTP's Transformer the class token before its norm."""
    data, chosen = federation(), backbone(net)
    model, groups = create(chosen)
    trainer = make_trainer(model, groups, data, method("knn_per", knn=0.3, neighbours=3), training(), 0)
    state = dict(model.eval().state_dict())
    seen: list[torch.Tensor] = []
    model.get_submodule(inner).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    predict = trainer.predictor(state, 1, 4)
    known = torch.cat(seen).detach().numpy()
    seen.clear()
    rows = data.test[1]
    mixed = predict(data.batch(rows).inputs)
    logits = functional_call(model, state, (normalised(data, rows),))
    labels = data.labels[data.train[1]].tolist()
    for query, own, made in zip(seen[0].detach().numpy(), logits.softmax(1), mixed.exp(), strict=True):
        vote = torch.from_numpy(vote_by_hand(known, labels, query, 3)).float()
        torch.testing.assert_close(made, 0.3 * vote + 0.7 * own, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 50])
def test_the_weight_is_that_which_is_right_when_a_sample_has_no_vote_on_itself(k: int) -> None:
    grid, rng = (0.9, 0.1, 0.6, 0.4, 0.0), np.random.default_rng(0)
    features, labels = rng.normal(size=(14, 3)), rng.integers(0, CLASSES, 14).tolist()
    own = torch.from_numpy(rng.dirichlet(np.ones(CLASSES), 14))
    merits = {weight: [0, 0.0] for weight in grid}
    for out, label in enumerate(labels):
        others = [index for index in range(14) if index != out]
        vote = vote_by_hand(features[others], [labels[index] for index in others], features[out], k)
        for weight, merit in merits.items():
            mixed = weight * vote + (1 - weight) * own[out].numpy()
            merit[0] += int(mixed.argmax() == label)
            merit[1] += math.log(max(mixed[label], 1e-38))
    tables = own.log(), torch.from_numpy(features), torch.tensor(labels)
    pieces = list(zip(*(table.split(9) for table in tables), strict=True))
    memory = Neighbours.remember(pieces, CLASSES, k, 0.5, grid)
    assert memory is not None and memory.weight == max(grid, key=lambda weight: merits[weight])
    queries = rng.normal(size=(5, 3))
    votes = Neighbours(NearestNeighbors(n_neighbors=4).fit(features), np.array(labels), CLASSES).vote(queries)
    np.testing.assert_allclose(votes, [vote_by_hand(features, labels, query, 4) for query in queries], rtol=1e-9)
    features[0, 0] = np.nan  # which the pieces share
    assert Neighbours.remember(pieces, CLASSES, k, 0.5, grid) is None
