"""Memories of training samples: the vote against a plain loop, and what it takes to be of use."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from support.tiny import CLASSES, backbone, create, federation, method, normalised, training
from torch.func import functional_call

from pflcore.engine.phases import make_trainer
from pflcore.operators.neighbours import Neighbours


def vote_by_hand(memory, labels, query, k):
    squares = [sum((float(a) - float(b)) ** 2 for a, b in zip(query, sample, strict=True)) for sample in memory]
    votes = np.zeros(CLASSES)
    for index in np.argsort(squares)[:k]:
        votes[labels[index]] += math.exp(-squares[index] / len(query))
    return votes / votes.sum()


@pytest.mark.parametrize("net, inner", [("convnet", "head"), ("tiny_vit", "norm")])
def test_a_prediction_mixes_probabilities(net, inner):
    """Features are what the classifier gets; for FedTP's Transformer the class token before its norm."""
    data, (model, groups), seen = federation(), create(backbone(net)), []
    trainer = make_trainer(model, groups, data, method("knn_per", knn=0.3, neighbours=3), training(), 0)
    state = dict(model.eval().state_dict())
    model.get_submodule(inner).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    predict = trainer.predictor(state, 1, 4)
    features, rows = torch.cat(seen).numpy(), data.test[1]
    seen.clear()
    mixed = predict(data.batch(rows).inputs)
    softmax = functional_call(model, state, (normalised(data, rows),)).softmax(1)
    labels = data.labels[data.train[1]].tolist()
    votes = np.stack([vote_by_hand(features, labels, query, 3) for query in seen[0].numpy()])
    torch.testing.assert_close(mixed.exp(), 0.3 * torch.from_numpy(votes).float() + 0.7 * softmax, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 50])
def test_the_weight_is_that_which_is_right_when_a_sample_has_no_vote_on_itself(k):
    grid, rng = (0.9, 0.1, 0.6, 0.4, 0.0), np.random.default_rng(0)
    features, labels = rng.normal(size=(14, 3)), rng.integers(0, CLASSES, 14)
    probabilities, merits = rng.dirichlet(np.ones(CLASSES), 14), {weight: [0, 0.0] for weight in grid}
    for out, label in enumerate(labels):
        others = np.arange(14) != out
        vote = vote_by_hand(features[others], labels[others], features[out], k)
        for weight, merit in merits.items():
            mixed = weight * vote + (1 - weight) * probabilities[out]
            merit[0] += int(mixed.argmax() == label)
            merit[1] += math.log(max(mixed[label], 1e-38))
    tables = map(torch.from_numpy, (np.log(probabilities), features, labels))
    pieces = list(zip(*(table.split(9) for table in tables), strict=True))
    memory = Neighbours.create(pieces, CLASSES, k, 0.5, grid)
    assert memory is not None and memory.weight == max(grid, key=merits.get)
    queries = rng.normal(size=(5, 3))
    votes = Neighbours(NearestNeighbors(n_neighbors=4).fit(features), labels, CLASSES).vote(queries)
    np.testing.assert_allclose(votes, [vote_by_hand(features, labels, query, 4) for query in queries], rtol=1e-9)
    features[0, 0] = np.nan  # which the pieces share
    assert Neighbours.create(pieces, CLASSES, k, 0.5, grid) is None
