"""pFedGP against rounds written out with a module, PyTorch's SGD and a textbook's formulas of Gaussian processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.by_hand import Hand
from support.tiny import (
    CLASSES,
    EXECUTORS,
    TEXT,
    NormNet,
    assert_states_close,
    backbone,
    facts,
    federation,
    method,
    result_bytes,
    run,
    run_by_all,
    sampled,
    training,
)
from torch import Tensor

from pflcore.data.federation import FederatedData
from pflcore.errors import UserError
from pflcore.operators.class_tree import class_tree
from pflcore.operators.gaussian_process import JITTER, SCALE, gibbs
from pflcore.seeds import torch_seed

SEED = 3
DATA = federation()
OPTIONS = {"gibbs_steps": 3, "chains": 4, "measured_chains": 6}


def covariances(one: Tensor, other: Tensor) -> Tensor:
    return SCALE * torch.exp(-torch.cdist(one, other).square() / 2)


def first_side(features: Tensor, first: Tensor, others: Tensor, chains: int, draws: torch.Generator) -> Tensor:
    """Probabilities of the first side, by inverses and a sum over a grid."""
    one, other = (part.double() / part.double().norm(dim=1, keepdim=True) for part in (features, others))
    prior = covariances(one, one) + JITTER * torch.eye(len(one))
    signs = torch.where(first, 0.5, -0.5).double()
    across, parts = covariances(one, other), []
    for omega in gibbs(prior.detach(), signs, OPTIONS["gibbs_steps"], chains, draws):
        inverse = torch.linalg.inv(prior + torch.diag(1 / omega))
        mean = across.T @ inverse @ (signs / omega)
        variance = SCALE + JITTER - torch.einsum("nm,nk,km->m", across, inverse, across)
        grid = torch.linspace(-9, 9, 721, dtype=torch.float64)
        at = mean.unsqueeze(1) + variance.sqrt().unsqueeze(1) * grid
        parts.append(at.sigmoid() @ torch.exp(-grid.square() / 2) / torch.exp(-grid.square() / 2).sum())
    return torch.stack(parts).mean(0)


def draws_of(round_: int, client: int, purpose: str, *ids: int) -> torch.Generator:
    own = torch_seed(SEED, "draws", round_, client)
    return torch.Generator().manual_seed(torch_seed(own, f"pfedgp {purpose}", *ids))


def means_of(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    means = torch.zeros(CLASSES, features.shape[1])
    for label in labels.unique():
        means[label] = features[labels == label].mean(0)
    return means, torch.bincount(labels, minlength=CLASSES) > 0


def test_rounds_are_those_of_the_paper() -> None:
    chosen, settings = backbone("convnet"), training(momentum=0.5, weight_decay=0.01, batch_size=8)
    result = run(method("pfedgp", **OPTIONS), chosen, DATA, training=settings, seed=SEED, executor="sequential")
    hand = Hand(chosen, DATA, settings, SEED)
    body = {name: tensor for name, tensor in hand.initial.items() if not name.startswith("head.")}
    for round_ in range(1, settings.rounds + 1):
        ended = []
        for client in sampled(SEED, round_, 3, settings):
            hand.model.load_state_dict({**hand.initial, **body})
            tree = class_tree(*means_of(*hand.see([DATA.train[client]])))
            streams = (draws_of(round_, client, "step", step) for step in range(100))

            def loss(rows: Tensor, tree: Tensor = tree, streams: Iterator[torch.Generator] = streams) -> Tensor:
                draws, labels = next(streams), DATA.labels[rows]
                hand.logits(rows)
                total = hand.features.sum() * 0
                for sides in tree:
                    given, held = list[int](), list[int]()
                    for side in (1, -1):
                        places = [place for place, label in enumerate(labels.tolist()) if sides[label] == side]
                        order = torch.randperm(len(places), generator=draws).tolist()
                        half = len(places) - len(places) // 2
                        given += [places[one] for one in order[:half]]
                        held += [places[one] for one in order[half:]]
                    if held:
                        first = sides[labels] > 0
                        chains = OPTIONS["chains"]
                        likely = first_side(hand.features[given], first[given], hand.features[held], chains, draws)
                        total = total - torch.where(first[held], likely, 1 - likely).log().mean()
                return total

            hand.descend(hand.parameters(head=False), hand.rows(client, round_), loss)
            ended.append(hand.state())
        body = {name: torch.stack([one[name] for one in ended]).mean(0) for name in body}  # not by samples
    assert_states_close({name: result.weights[name] for name in body}, body, atol=1e-5)
    assert not any(torch.equal(body[name], hand.initial[name]) for name in body)
    hand.model.load_state_dict({**hand.initial, **body})
    for client in range(3):
        features, labels = hand.see([DATA.train[client]])
        others, truth = hand.see([DATA.test[client]])
        draws = draws_of(settings.rounds + 1, client, "measurement")
        means, present = means_of(features, labels)
        likely = present.double().expand(len(truth), CLASSES).clone()
        for sides in class_tree(means, present):
            mine = sides[labels] != 0
            first = first_side(features[mine], sides[labels[mine]] > 0, others, OPTIONS["measured_chains"], draws)
            likely[:, sides > 0] *= first.unsqueeze(1)
            likely[:, sides < 0] *= 1 - first.unsqueeze(1)
        torch.testing.assert_close(likely.sum(1), torch.ones(len(truth), dtype=torch.float64))
        expected = -(likely[torch.arange(len(truth)), truth] + 1e-12).log().mean()
        assert result.loss[3 + client] == pytest.approx(expected.item(), rel=1e-3)


def skewed() -> FederatedData:
    """Two classes for each client; a class is where in the image it is light."""
    data = federation((24, 24, 24, 24), (20, 20, 20, 20))
    rng = np.random.default_rng(0)
    for client, pair in enumerate(([0, 1], [1, 2], [2, 3], [3, 0])):
        for rows in (data.train[client], data.test[client]):
            labels = torch.from_numpy(rng.permutation(np.resize(pair, len(rows))))
            images = torch.from_numpy(rng.integers(0, 120, (len(rows), 1, 8, 8), np.uint8))
            for image, label in zip(images, labels.tolist(), strict=True):
                image[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 90
            data.inputs[rows], data.labels[rows] = images, labels
    return data


def test_training_helps_and_is_ahead_of_federated_averaging_under_label_skew() -> None:
    def accuracy(name: str, rounds: int, lr: float) -> float:
        settings = training(rounds=rounds, sample_rate=1.0, batch_size=24, momentum=0.5, lr=lr)
        result = run(method(name), backbone("convnet"), skewed(), training=settings)
        last = result.round == rounds
        return float(result.correct[last].sum() / result.total[last].sum())

    untrained, trained, averaged = accuracy("pfedgp", 1, 1e-9), accuracy("pfedgp", 15, 0.1), accuracy("fedavg", 15, 0.1)
    assert trained > untrained + 0.05 and trained > averaged + 0.2 and trained > 0.85


@pytest.mark.parametrize("net", ["norm_net", "tiny_vit", TEXT])
def test_executors_agree(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", "2")
    chosen = NormNet() if net == "norm_net" else backbone(net)
    run_by_all(method("pfedgp"), chosen, training=training(batch_size=6))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_run_that_diverges_says_where(executor: str) -> None:
    result = run(method("pfedgp"), backbone("convnet"), training=training(rounds=4, lr=1e20), executor=executor)
    assert str(result.diverged) == "diverged in round 1 at client 0: the loss is not finite; try a smaller lr"


def test_draws_are_of_the_client_the_round_and_the_seed() -> None:
    first, again, other = (run(method("pfedgp"), backbone("convnet"), seed=seed) for seed in (3, 3, 4))
    assert result_bytes(first) == result_bytes(again) and not np.allclose(first.loss, other.loss)
    still = run(method("pfedgp"), backbone("convnet"), training=training(lr=1e-12, rounds=2, sample_rate=1.0))
    assert not np.allclose(still.loss[:3], still.loss[3:], rtol=1e-4)  # the model is the same, the draws are not


def test_a_client_of_one_class_learns_nothing_and_knows_it() -> None:
    data = federation((9,), (4,))
    data.labels[:] = 2
    result = run(method("pfedgp"), backbone("convnet"), data, training=training(sample_rate=1.0))
    before, _, _ = facts(method("pfedgp"), backbone("convnet"))
    assert result.correct.tolist() == [4, 4] and result.loss.max() < 1e-6
    again = run(method("pfedgp"), backbone("convnet"), data, training=training(sample_rate=1.0, rounds=1))
    assert all(torch.equal(result.weights[name], again.weights[name]) for name in before if name in again.weights)


def test_a_class_that_the_client_does_not_have_is_all_but_ruled_out() -> None:
    data = federation((12,), (6,))
    data.labels[data.train[0]], data.labels[data.test[0]] = torch.arange(12) % 3, 3
    result = run(method("pfedgp"), backbone("convnet"), data, training=training(sample_rate=1.0))
    assert result.loss.tolist() == pytest.approx([-np.log(1e-12)] * 2, rel=1e-4) and not result.correct.any()


def test_the_loss_of_a_step_is_a_cross_entropy() -> None:
    """That of a coin where classes lie upon each other, less where they lie apart, and never below 0."""
    entry, labels = method("pfedgp"), torch.arange(40) % 2
    apart = torch.stack([labels - 0.5, torch.full((40,), 0.1)], 1)
    losses = [
        float(entry.tree_loss(torch.tensor([[1, -1]]), features, labels, torch.Generator().manual_seed(1)))  # type: ignore[attr-defined]
        for features in (apart, torch.ones(40, 2))
    ]
    assert 0 < losses[0] < 0.4 and losses[1] == pytest.approx(np.log(2), abs=0.2)


def test_neighbours_vote_beside_the_processes() -> None:
    plain, mixed, alone = (run(method("pfedgp", knn=knn), backbone("convnet")).loss for knn in (0.0, 0.5, 1.0))
    assert not np.allclose(plain, mixed) and not np.allclose(mixed, alone)


def test_what_cannot_be_is_one_line() -> None:
    entry = method("pfedgp")
    initial, roles, known = facts(entry, backbone("convnet"))
    with pytest.raises(UserError, match=r"^method pfedgp needs a backbone with a classifier, a group 'head'$"):
        entry.companions(initial, roles, replace(known, head=(), features=0))
    with pytest.raises(UserError, match=r"^method pfedgp: finetune_\*: "):
        method("pfedgp", finetune_epochs=1)
    for name in ("gibbs_steps", "chains", "measured_chains"):
        with pytest.raises(UserError, match=name):
            method("pfedgp", **{name: 0})
    with pytest.raises(UserError, match=r"^method pfedgp does not go with training\.class_weights"):
        run(entry, backbone("convnet"), training=training(class_weights="balanced"))
