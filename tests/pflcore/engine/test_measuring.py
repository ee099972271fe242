"""What clients are measured with: tuned models, validation samples and where a run stops by them, detectors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import tiny
from support.by_hand import Rounds, losses
from support.mistakes import line_of, refuses
from support.tiers import few_of
from support.tiny import EXECUTORS, backbone, boxed, federation, holding_back, method, result_bytes, run, training
from torch.nn import functional as F

from pflcore.detection.ssd import candidates, non_maximum_suppression
from pflcore.detection.task import mean_average_precision
from pflcore.engine import CheckpointFolder
from pflcore.engine.client import balanced
from pflcore.engine.evaluation import join
from pflcore.engine.state import History
from pflcore.methods import METHODS
from pflcore.methods.simple import FedAvg
from pflcore.settings import Evaluation

CONVNET = backbone("convnet")

# --- tuning ----------------------------------------------------------------------------------------------------------

DATA = federation((14, 7), (5, 8))
STEPS = {"finetune_steps": 3, "finetune_lr": 0.2, "finetune_groups": ("head",)}
NORMED = ((), ("norm",), ("head",))
TUNED = [
    ("fedavg", "convnet", {"finetune_epochs": 2}, "none", EXECUTORS),
    ("fedavg", "convnet", STEPS, "none", EXECUTORS),
    # Running statistics move with their group alone; the batch's still normalise.
    *(("fedavg", "norm", {"finetune_epochs": 2, "finetune_groups": group}, "none", ["sequential"]) for group in NORMED),
    ("ditto", "convnet", {"finetune_epochs": 2}, "balanced", ["sequential", "stacked"]),  # its second model
]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("change", [lambda out: out[:, :3], lambda out: out[:1], lambda out: out.argmax(-1)])
def test_predictions_of_a_wrong_shape_are_refused(change, executor):
    class Wrong(FedAvg):
        """Gives too few classes, too few samples, or labels."""

        def predict(self, local, state, inputs):
            return change(super().predict(local, state, inputs))

    refuses(r"^predictions have the shape \[.*\]; predict\(\) must return \[", run, Wrong(), CONVNET, executor=executor)


@pytest.mark.parametrize("name, net, options, weights, executors", TUNED)
def test_clients_are_measured_after_plain_sgd_in_batches_of_their_own(name, net, options, weights, executors):
    extra = {"schedule": "exponential", "gamma": 0.9, "server_optimizer": "momentum", "server_lr": 0.9}
    settings = training(sample_rate=1.0, momentum=0.5, weight_decay=0.01, clip=0.1, class_weights=weights, **extra)
    hand = Rounds(net, settings, DATA)
    plain, *results = hand.run(name), *(hand.run(name, executor, **options) for executor in executors)
    hand.settings = training()
    groups, steps, expected = options.get("finetune_groups", ()), options.get("finetune_steps"), []
    moved = [name for name in hand.parameters() if name.startswith(groups or ("",))]
    for client, client_rows in enumerate(DATA.train):
        prefix = f"client.{client}.own/" if name == "ditto" else ""
        hand.lend({entry: plain.weights[prefix + entry] for entry in hand.initial})
        weigh = balanced(DATA.class_counts(client)) if weights == "balanced" else None
        batches = hand.passes(client, "tuning", 2, steps or options["finetune_epochs"])
        ended = hand.descend(
            batches[:: -(-len(client_rows) // 5)] if steps else batches,  # the first of each shuffle
            lambda rows, weigh=weigh: F.cross_entropy(hand.logits(rows), hand.labels(rows), weigh),
            moved=moved,
            lr=options.get("finetune_lr"),
            statistics=groups != ("head",),
        )
        expected.append(hand.loss(client, ended))
    for result in results:
        losses(result, expected, rel=1e-4)
        tiny.assert_states_close(result.weights, plain.weights)


# What they do before a measurement is theirs.
REFUSING = ("per_fedavg", "fedala", "ifca", "pfedfda", "pfedgp")


@pytest.mark.parametrize("name", few_of(name for name in METHODS.names() if name not in REFUSING))
def test_every_method_can_be_tuned_and_keeps_none_of_it(name):
    net = tiny.first_fitting(method(name))
    # FedProto's predictions read no classifier.
    group = tiny.groups_of(net).names()[0] if name == "fedproto" else "head"
    tuned = method(name, finetune_steps=2, finetune_epochs=1, finetune_groups=(group,))
    plain, result = (run(entry, net, executor="sequential") for entry in (method(name), tuned))
    assert all(torch.equal(result.weights[entry], plain.weights[entry]) for entry in plain.weights)
    assert (result.loss != plain.loss).any()
    assert run(tuned, net, executor="stacked").loss.tolist() == pytest.approx(result.loss.tolist(), rel=1e-3)


HEAD = {"finetune_epochs": 1, "finetune_groups": ("head",)}


def test_methods_that_tune_by_themselves_tune_the_named_groups_instead():
    tuning, default = (
        method("fedrep", finetune_lr=0.3, **options).tuning() for options in (HEAD, {"finetune_epochs": 2})
    )
    assert (tuning.steps, tuning.groups, tuning.epochs) == (None, ("head",), 1)
    assert default.steps is not None and (default.groups, default.lr) == ((), 0.3)


def test_a_divergence_in_tuning_is_told():
    result = run(method("fedavg", finetune_epochs=2, finetune_lr=1e20), CONVNET)
    assert result.diverged.round == 1 and len(result.round) == 0


# --- validation ------------------------------------------------------------------------------------------------------

HELD = holding_back(federation())


# One model for all, own heads, generated entries, a memory of training samples, tuning before measuring.
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedtp", "knn_per", "fedbabu"])
def test_validation_is_what_a_test_of_these_samples_gives_by_every_executor(name):
    def side(validated, executor="sequential", **changes):
        entry = method(name, **({"neighbours": 3} if name == "knn_per" else {}))
        result = run(entry, tiny.first_fitting(entry), replace(HELD, **changes), executor=executor)
        columns = result.total, result.correct, result.last, result.round, result.loss
        return np.array([column[result.validation == validated] for column in columns])

    tested, validated = side(False), side(True)
    assert validated[0].tolist() == [3] * 6 and tested[0].tolist() == [5, 8, 6] * 2
    others = [(tested, side(False, validation=())), (validated, side(False, test=HELD.validation, validation=()))]
    others += [(side_, side(side_ is validated, by)) for by in ("pooled", "stacked") for side_ in (tested, validated)]
    for first, second in others:
        assert np.array_equal(first[:4], second[:4])
        np.testing.assert_allclose(first[4], second[4], rtol=1e-4)


ROUNDS = 14
EVERY = Evaluation(window=0, curve_every=1)


def stopped(patience, evaluation=EVERY, rounds=ROUNDS, **changes):
    settings = training(rounds=rounds, local_epochs=1, lr=0.2, patience=patience)
    arguments = {"executor": "sequential", "data": HELD, **changes}
    return run(method("fedper"), CONVNET, training=settings, evaluation=evaluation, **arguments)


def test_where_it_stops_by_hand():
    def stops(patience, *correct, novel=None):
        """After measurements of two clients with 9 validation samples each in rounds 10, 20, …"""
        history = History(np.arange(2) != novel, 2)
        for number, pair in enumerate(correct, start=1):
            history.add(10 * number, join([((0, 5, 1.0, 0), (hits, 9, 1.0, hits)) for hits in pair]), {})
        return history.stops_after(patience)

    # Pooled 3, 5, 5, 4, 6, 1, 2, 6: equal is no better.
    measured = (3, 0), (1, 4), (5, 0), (2, 2), (3, 3), (0, 1), (1, 1), (6, 0)
    for patience, stop in {1: 30, 2: 40, 3: 80, 4: None, None: None}.items():
        assert stops(patience, *measured) == stop
    for novel, stop in {None: None, 1: 20}.items():  # novel clients do not count
        assert stops(1, (1, 0), (1, 5), (1, 9), novel=novel) == stop


@pytest.mark.parametrize("every, patience", [(1, 1), (2, 1), (1, 3)])
def test_a_run_ends_as_one_of_so_many_rounds(every, patience):
    evaluation, progress = Evaluation(window=0, curve_every=every), []
    result = stopped(patience, evaluation, on_round=progress.append)
    stop = result.rounds
    rounds = list(range(every, stop + 1, every))
    correct = [result.correct[result.validation & (result.round == round_)].sum() for round_ in rounds]
    assert stop < ROUNDS and rounds[-1] == stop and np.argmax(correct) == len(rounds) - 1 - patience
    assert result_bytes(result) == result_bytes(stopped(None, evaluation, rounds=stop))
    assert [it.round for it in progress] == list(range(1, stop + 1)) and progress[-1].rounds == stop


def test_a_run_with_more_patience_goes_on_from_where_one_with_less_ended(tmp_path):
    ends = {patience: stopped(patience) for patience in (1, 3, None)}
    for patience, resumed in ((1, 0), (3, ends[1].rounds), (None, ends[3].rounds), (None, ROUNDS), (1, 0)):
        with CheckpointFolder(tmp_path / "own", "me", pytest.fail, "lineage", tmp_path / "states") as checkpoints:
            result = stopped(patience, checkpoints=checkpoints)
            checkpoints.archive()
        assert result.resumed_from == resumed and result_bytes(result) == result_bytes(ends[patience])


def test_what_patience_needs():
    for evaluation, data, message in (
        (EVERY, federation(), "needs validation samples; set the partition's validation_share"),
        (Evaluation(window=5), HELD, "needs evaluation.window: 0, not 5"),
        (Evaluation(window=0, curve_every=0), HELD, "needs evaluation.curve_every"),
    ):
        refuses(f"^training.patience: {message}", stopped, 1, evaluation, data=data)


# --- detectors -------------------------------------------------------------------------------------------------------

NET = backbone("mobilenetv2_ssd", attention="se")
WIDE = training(batch_size=7, local_epochs=1, lr=0.02)  # batch norm of few samples magnifies rounding


def detected(name, executor="sequential", settings=WIDE, **changes):
    return run(method(name, also_personal=("local_attention",)), NET, executor=executor, training=settings, **changes)


def test_executors_agree_on_detectors_also_on_validation_samples():
    sequential, pooled, stacked = (detected("fedper", executor, data=holding_back(boxed())) for executor in EXECUTORS)
    assert result_bytes(sequential) == result_bytes(pooled) and sequential.validation.sum() == 6
    np.testing.assert_allclose(stacked.loss, sequential.loss, rtol=2e-2)
    exact, near = sequential.further["precision"], stacked.further["precision"]
    assert len(exact) == 12 and np.abs(near - exact).max() < 0.1


def test_a_figure_is_the_mean_average_precision_of_a_clients_own_images():
    result, data = detected("fedavg"), boxed()
    model, _ = NET.create(data.shape, data.classes, 3)
    for client in range(3):
        entries = {name.removeprefix(f"client.{client}."): tensor for name, tensor in result.weights.items()}
        model.load_state_dict({name: entries[name] for name in model.state_dict()})
        batch = data.with_boxes().batch(data.test[client])
        with torch.no_grad():
            boxes = candidates(model.eval()(batch.inputs), model.task.defaults)
        figure = mean_average_precision(
            [non_maximum_suppression(image) for image in boxes.numpy()], batch.labels.numpy()
        )
        assert result.further["precision"][3 + client] == pytest.approx(figure, abs=1e-9) and 0 <= figure <= 1
        assert result.total[3 + client] == len(data.test[client])
    history = History(np.array([True, True]), further=("precision",))
    history.add(1, join([((1, 1, 0.5, 1, 0.2),), ((2, 2, 0.5, 2, 0.6),)]), {})
    assert history.last_figure() == pytest.approx(0.4)  # averaged, not pooled


# Per-FedAvg halves batches, and norms over the one place of the last maps make gradients of 1e7 of three images.
ONE_STEP = training(rounds=1, local_steps=1, sample_rate=0.34, batch_size=12, lr=0.001)
# They need a Transformer or a classifier, predict in their own way, or go by the one class of a sample.
WITHOUT_DETECTORS = {
    *("adapters", "fedala", "fedas", "fedcp", "feddbe", "fedkd", "fedpac", "fedperfix", "fedproto", "fedrod", "fedtp"),
    *("fedtp_fedrod", "gpfl", "knn_per", "lora", "moon", "pfedfda", "pfedgp", "prefix", "prompts", "vanilla_attention"),
}


@pytest.mark.parametrize("name", few_of(METHODS.names(), ["fedavg"]))
def test_a_method_trains_a_detector_or_says_in_a_line_that_it_does_not(name):
    entry, net = method(name), backbone("mobilenetv2_ssd")
    if name in WITHOUT_DETECTORS:
        assert line_of(run, entry, net, training=ONE_STEP)
    else:
        result = run(entry, net, training=ONE_STEP)
        assert "precision" in result.further and np.isfinite(result.loss).all()


def test_what_goes_by_one_label_is_refused():
    refuses("the dataset has no boxes", run, method("fedavg"), NET, federation())
    refuses("method fedrod: ", run, method("fedrod"), NET)
    for changes in ({"augment_flip": 0.5}, {"class_weights": "balanced"}):
        refuses("do not go with a detector", detected, "fedavg", settings=training(**changes))
