"""What is measured beside the accuracy of personal models: metrics, the global model, participants, samples of all."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from support import tiny
from support.by_hand import SEED, Rounds
from support.mistakes import refuses
from support.tiers import few_of
from support.tiny import EXECUTORS, method, run

from pflcore.conditions import CONDITIONS
from pflcore.engine import CheckpointFolder
from pflcore.engine.trained import Trained
from pflcore.metrics import score_metrics
from pflcore.settings import METRICS, VIEWS, Evaluation, View

ALL = Evaluation(every=1, window=100, metrics=tuple(METRICS), **VIEWS)
CONVNET = tiny.backbone("convnet")


def one_class_of(data, client):
    """The same data, of whose test samples the client keeps those of its first one's class."""
    rows = data.test[client]
    subset = rows[data.labels[rows] == data.labels[rows[0]]]
    return replace(data, test=[subset if index == client else rows_ for index, rows_ in enumerate(data.test)])


def by_client(result, view, column):
    """A column of the last round on test samples, by client."""
    selected = (result.view == result.views.index(view)) & ~result.validation & (result.round == result.round.max())
    values = result.further[column] if column in result.further else getattr(result, column)
    return dict(zip(result.client[selected].tolist(), values[selected].tolist(), strict=True))


def by_pairs(scores, positive):
    """The share of pairs of a positive and another sample in which the former has more, a tie counting half."""
    gaps = scores[positive][:, None] - scores[~positive]
    return (gaps > 0).mean() + (gaps == 0).mean() / 2


def expected(logits, labels):
    probabilities, labels = logits.double().softmax(-1).numpy(), labels.numpy()
    predicted, confidence = probabilities.argmax(1), probabilities.max(1)
    classes = np.unique(labels)
    edges = np.linspace(0, 1, 16)
    error = 0.0
    for low, high in itertools.pairwise(edges):
        if (inside := (confidence > low) & (confidence <= high)).any():
            gap = (predicted == labels)[inside].mean() - confidence[inside].mean()
            error += inside.mean() * abs(gap)
    areas = [by_pairs(probabilities[:, label], labels == label) for label in classes] if len(classes) > 1 else [np.nan]
    return {
        "balanced_accuracy": np.mean([(predicted == label)[labels == label].mean() for label in classes]),
        "macro_f1": np.mean([reference.f1_score(labels == label, predicted == label) for label in classes]),
        "auc": np.mean(areas),
        "ece": error,
        "nll": reference.log_loss(labels, probabilities, labels=range(tiny.CLASSES)),
    }


@pytest.mark.parametrize("name, options", [("ditto", {}), ("fedper", {"knn": 0.5}), ("fedproto", {})])
def test_metrics_of_what_clients_predict(name, options):
    entry, data = method(name, **options), one_class_of(tiny.federation((14, 7, 9), (15, 18, 16)), 1)
    settings = tiny.training(lr=0.3)
    result = run(entry, CONVNET, data, training=settings, evaluation=replace(ALL, models=("personal",)))
    trained = Trained(data, CONVNET, entry, settings, SEED, result.rounds, result.weights)
    for client in range(3):
        model = trained.client(client)
        inputs, labels = model.samples("test")
        for metric, value in expected(model.predict(inputs), labels).items():
            scores = by_client(result, View(), metric)[client]
            assert scores == pytest.approx(value, rel=1e-5, abs=1e-7, nan_ok=True), metric
        everyone = [trained.client(other).samples("test") for other in range(3)]
        inputs, labels = (torch.cat(parts) for parts in zip(*everyone, strict=True))
        hits = int((model.predict(inputs).argmax(-1) == labels).sum())
        assert by_client(result, View(on="all"), "correct")[client] == hits
    assert np.isnan(by_client(result, View(), "auc")[1]) and not np.isnan(by_client(result, View(on="all"), "auc")[1])


def test_the_auc_of_ties_and_the_edges_of_bins():
    probabilities = np.array([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.2, 0.4, 0.4]])
    labels = np.array([0, 1, 1, 0])
    # Class 0: 0.5 and 0.2 against 0.5 twice; class 1: 0.5 and 0.25 against 0.25 and 0.4; class 2 does not occur.
    (auc,) = score_metrics(("auc",), 1.0, (probabilities, labels))
    assert auc == pytest.approx(((0.5 + 0.5) / 4 + (1 + 1 + 0.5) / 4) / 2)
    sure = np.array([[1.0, 0.0], [0.6, 0.4], [0.4, 0.6]])  # 0.6 is the upper edge of the ninth bin
    assert score_metrics(("ece", "nll"), 0.7, (sure, np.array([0, 0, 0]))) == pytest.approx((0.2 / 3, 0.7))
    assert np.isnan(score_metrics(("ece", "auc"), np.inf, (sure * np.nan, np.array([0, 1, 1])))).all()


FEW = [("fedavg", {"finetune_epochs": 1}), ("ditto", {"knn": 0.3})]


@pytest.mark.parametrize("name, options", few_of([*FEW, ("fedrod", {}), ("fedtp", {}), ("local", {})], FEW))
def test_executors_agree_and_a_stopped_run_ends_with_the_same_bytes(name, options, tmp_path):
    entry = method(name, **options)
    net, data = tiny.first_fitting(entry), tiny.holding_back(tiny.federation((14, 11, 9), (5, 8, 6)))

    start = partial(run, entry, net, data, evaluation=ALL)
    first, pooled, stacked = (start(executor=executor) for executor in EXECUTORS)
    assert stacked.view.tolist() == first.view.tolist() == pooled.view.tolist()
    for metric, values in first.further.items():
        np.testing.assert_allclose(stacked.further[metric], values, rtol=1e-3, atol=1e-4)
    continued = tiny.continued(start, tmp_path)
    assert tiny.result_bytes(first) == tiny.result_bytes(pooled) == tiny.result_bytes(continued)
    with CheckpointFolder(tmp_path, "me", pytest.fail) as folder:
        last = folder.load(lambda _: "")
    model = Trained(data, net, entry, tiny.training(), SEED, continued.rounds, last).client(1)
    assert model.measure()[0] == by_client(continued, View(), "correct")[1]


class Lost(type(method("ditto"))):
    """Ditto whose server loses its model in the second round; the clients' own models stay."""

    def update_server(self, server, roles, updates):
        after = super().update_server(server, roles, updates)
        broken = {name: tensor * np.nan for name, tensor in after.shared.items()}
        return replace(after, shared=broken) if server.round == 2 else after


def test_a_global_model_that_is_lost_is_a_divergence():
    evaluation = tiny.EVERY_ROUND
    result = run(Lost(), CONVNET, training=tiny.training(rounds=2), evaluation=evaluation)
    assert result.diverged is None and np.isfinite(result.loss).all()  # nobody looks at it
    measured = run(Lost(), CONVNET, training=tiny.training(rounds=2), evaluation=replace(evaluation, **VIEWS))
    assert measured.diverged.round == 2 and {*measured.round.tolist()} == {1}


def test_a_round_by_hand():
    data = tiny.federation((14, 7, 9), (15, 18, 16))
    hand = Rounds(data=data, settings=tiny.training(rounds=2, lr=0.3))
    right = {}

    def hits(state, rows):
        return int((hand.look(state, rows)[0].argmax(-1) == hand.labels(rows)).sum())

    everyone = torch.cat(list(data.test))
    for round_, cohort in hand:
        trained = {client: hand.train(client, round_) for client in cohort}
        hand.x = hand.mean(trained)
        right = {
            View("global"): {client: hits(hand.x, data.test[client]) for client in range(3)},
            View("global", on="all"): dict.fromkeys(range(3), hits(hand.x, everyone)),
            View(moment="after_training"): {client: hits(trained[client], data.test[client]) for client in cohort},
            View(moment="after_training", on="all"): {client: hits(trained[client], everyone) for client in cohort},
        }
    settings = {"training": hand.settings, "evaluation": replace(ALL, metrics=())}
    fedavg, ditto = (run(method(name), CONVNET, data, **settings) for name in ("fedavg", "ditto"))
    assert fedavg.views == (View(), View(on="all"), *right) and not fedavg.further
    assert {view: by_client(fedavg, view, "correct") for view in right} == right
    assert by_client(ditto, View("global"), "correct") == right[View("global")] != by_client(ditto, View(), "correct")
    assert set(by_client(fedavg, View("global", on="all"), "total").values()) == {49}
    alone = run(method("local"), CONVNET, data, **settings)  # whose models stay as training leaves them
    trained = by_client(alone, View(moment="after_training"), "loss")
    assert trained and trained.items() <= by_client(alone, View(), "loss").items()
    rod = run(method("fedrod"), CONVNET, data, **settings)  # which predicts with a second classifier
    shared = {name: tensor for name, tensor in rod.weights.items() if not name.startswith(("client.", "server."))}
    assert by_client(rod, View("global"), "correct") == {client: hits(shared, data.test[client]) for client in range(3)}
    assert by_client(rod, View("global", on="all"), "correct") == dict.fromkeys(range(3), hits(shared, everyone))
    novel = replace(tiny.holding_back(data), novel=frozenset({1}))
    for condition, counted in ((None, 2), (CONDITIONS.create("attack", share=0.5), 1)):
        result = run(method("fedper"), CONVNET, novel, evaluation=ALL, condition=condition)
        assert "global" not in {view.model for view in result.views}
        on_all = result.view == result.views.index(View(on="all"))
        assert {*result.total[on_all & result.validation]} == {counted * 3}
        assert {*result.total[on_all & ~result.validation]} == {49}


def test_what_cannot_be_measured():
    text = tiny.backbone(tiny.TEXT)
    result = run(method("fedavg"), text, evaluation=Evaluation(metrics=("nll",)))
    np.testing.assert_allclose(result.further["nll"], result.loss)
    for net, metric, why in (
        (text, "auc", "auc is of one class per image; of texts there is nll alone"),
        (tiny.backbone("mobilenetv2_ssd"), "nll", "nll is of one class per image; detectors are measured by"),
    ):
        refuses(f"^evaluation.metrics: {why}", run, method("fedavg"), net, evaluation=Evaluation(metrics=(metric,)))
    for wrong, message in (
        ({"models": ("global",)}, r"^evaluation.models must be \[personal\] or \[personal, global\]"),
        ({"metrics": ("auc", "ece", "auc")}, "^evaluation.metrics has auc twice"),
    ):
        refuses(message, Evaluation, **wrong)
