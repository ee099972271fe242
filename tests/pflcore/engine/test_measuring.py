"""What clients are measured with: tuned models, validation samples and where a run stops by them, detectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiers import SIX, six_of
from support.tiny import (
    EXECUTORS,
    NormNet,
    backbone,
    boxed,
    federation,
    first_fitting,
    groups_of,
    holding_back,
    method,
    normalised,
    result_bytes,
    run,
    training,
)
from torch import Tensor
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.detection.ssd import candidates, distinct
from pflcore.detection.task import mean_average_precision
from pflcore.engine import CheckpointFolder, Progress, Result
from pflcore.engine.client import balanced
from pflcore.engine.evaluation import Scores
from pflcore.engine.state import History
from pflcore.errors import UserError
from pflcore.method import Phase
from pflcore.methods import METHODS, Method
from pflcore.methods.simple import FedAvg
from pflcore.seeds import generator
from pflcore.settings import Evaluation

MATRIX = pytest.mark.matrix

# --- tuning, against loops with ``backward`` and ``torch.optim.SGD`` -------------------------------------------------

SEED = 3
DATA = federation((14, 7), (5, 8))
SETTINGS = training(sample_rate=1.0, momentum=0.5, weight_decay=0.01)


def trained(entry: Method, net: Backbone | None = None, executor: str = "sequential", **more: Any) -> Result:
    settings = replace(SETTINGS, **more)
    return run(entry, net or backbone("convnet"), DATA, training=settings, seed=SEED, executor=executor)


def assert_tuned(
    result: Result,
    plain: Result,
    options: dict[str, Any],
    prefix: str = "",
    net: Backbone | None = None,
    weigh: Callable[[int], Tensor | None] = lambda _: None,
) -> None:
    """Each client was measured after plain SGD on its own samples, in the batches that follow its second round."""
    groups, steps = options.get("finetune_groups", ()), options.get("finetune_steps")
    for client in range(2):
        model, _ = (net or backbone("convnet")).create(DATA.shape, DATA.classes, 0)
        model.load_state_dict({name: plain.weights[f"{prefix.format(client)}{name}"] for name in model.state_dict()})
        if groups == ("head",) and net:  # the batch's statistics still normalise, and nobody keeps them
            model.get_submodule("norm").momentum = 0.0  # type: ignore[assignment]
        moving = [tensor for name, tensor in model.train().named_parameters() if name.startswith(groups or ("",))]
        sgd, own = torch.optim.SGD(moving, options.get("finetune_lr") or SETTINGS.lr), DATA.train[client]
        order, size = generator(SEED, "tuning", 2, client), SETTINGS.batch_size
        drawn = [own[order.permutation(len(own))] for _ in range(steps or options["finetune_epochs"])]
        for rows in [one[:size] for one in drawn] if steps else [part for one in drawn for part in one.split(size)]:
            sgd.zero_grad()
            F.cross_entropy(model(normalised(DATA, rows)), DATA.labels[rows], weigh(client)).backward()
            sgd.step()
        rows, last = DATA.test[client], len(DATA.test) + client
        made = model.eval()(normalised(DATA, rows)).detach()
        assert result.correct[last] == int((made.argmax(1) == DATA.labels[rows]).sum())
        assert result.loss[last] == pytest.approx(float(F.cross_entropy(made, DATA.labels[rows])), rel=1e-4)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedavg_is_tuned_by_plain_sgd(executor: str) -> None:
    plain = trained(method("fedavg"))
    for options in ({"finetune_epochs": 2}, {"finetune_steps": 3, "finetune_lr": 0.2, "finetune_groups": ("head",)}):
        result = trained(method("fedavg", **options), executor=executor)
        assert all(torch.allclose(result.weights[name], plain.weights[name], atol=1e-6) for name in plain.weights)
        assert_tuned(result, plain, options)


@pytest.mark.parametrize("groups", [(), ("norm",), ("head",)])
def test_running_statistics_move_with_their_group_alone(groups: tuple[str, ...]) -> None:
    options = {"finetune_epochs": 2, "finetune_groups": groups}
    plain, result = (trained(method("fedavg", **more), NormNet()) for more in ({}, options))
    assert_tuned(result, plain, options, net=NormNet())


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_second_model_is_tuned_with_the_class_weights_of_training(executor: str) -> None:
    plain = trained(method("ditto"), class_weights="balanced")
    result = trained(method("ditto", finetune_epochs=2), executor=executor, class_weights="balanced")
    weights = [balanced(DATA.class_counts(client)) for client in range(2)]
    assert len(weights[0].unique()) > 1
    assert_tuned(result, plain, {"finetune_epochs": 2}, "client.{}.own/", weigh=lambda client: weights[client])


# What they do before a measurement is theirs.
REFUSING = ("per_fedavg", "fedala", "ifca", "pfedfda", "pfedgp")


@pytest.mark.parametrize("name", six_of(name for name in METHODS.names() if name not in REFUSING))
def test_every_method_can_be_tuned_and_keeps_none_of_it(name: str) -> None:
    net = first_fitting(method(name))
    # FedProto's predictions read no classifier.
    group = groups_of(net).names()[0] if name == "fedproto" else "head"
    options: dict[str, Any] = {"finetune_steps": 2, "finetune_epochs": 1, "finetune_groups": (group,)}
    plain, result = (run(one, net, executor="sequential") for one in (method(name), method(name, **options)))
    assert all(torch.equal(result.weights[entry], plain.weights[entry]) for entry in plain.weights)
    assert (result.loss != plain.loss).any()
    stacked = run(method(name, **options), net, executor="stacked")
    assert stacked.loss.tolist() == pytest.approx(result.loss.tolist(), rel=1e-3)


HEAD = {"finetune_epochs": 1, "finetune_groups": ("head",)}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("per_fedavg", {"finetune_epochs": 1}, r"method per_fedavg: finetune_\*: what clients do before"),
    ("fedproto", HEAD, r"fedproto\.finetune_groups: its predictions read no classifier"),
    ("fedavg", {"finetune_lr": 0.1}, r"fedavg\.finetune_lr says nothing without finetune_epochs or finetune_steps$"),
    ("fedavg", {**HEAD, "finetune_groups": ("haed",)}, r"method fedavg: finetune_groups: .*'haed'; did"),
    ("fedavg", {**HEAD, "train_only": ("conv1",)}, r"method fedavg: finetune_groups: train_only leaves nothing"),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_what_cannot_be_combined_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        trained(method(name, **options))


def test_methods_that_tune_by_themselves_tune_the_named_groups_instead() -> None:
    tuning, own = (method("fedrep", finetune_lr=0.3, **more).tuning() for more in (HEAD, {"finetune_epochs": 2}))
    assert tuning and (tuning.steps, tuning.groups, tuning.epochs) == (None, ("head",), 1)
    assert own and own.steps is not None and (own.groups, own.lr) == ((), 0.3)


class WildlyTuned(FedAvg):
    def tuning(self) -> Phase:
        return Phase(FedAvg(), epochs=2, lr=1e20)


def test_a_divergence_in_tuning_is_told() -> None:
    result = run(WildlyTuned(), backbone("convnet"))
    assert result.diverged and result.diverged.round == 1 and len(result.round) == 0


# --- validation ------------------------------------------------------------------------------------------------------

HELD = holding_back(federation())
# One model for all, own heads, generated entries, a memory of training samples, tuning before measuring.
KINDS = ("fedavg", "fedper", "fedtp", "knn_per", "fedbabu")


@pytest.mark.parametrize("name", KINDS)
def test_validation_is_what_a_test_of_these_samples_gives_by_every_executor(name: str) -> None:
    def side(held: bool, executor: str = "sequential", **changes: Any) -> tuple[list[Any], np.ndarray]:
        entry = method(name, **({"neighbours": 3} if name == "knn_per" else {}))
        net = backbone("tiny_vit" if name == "fedtp" else "convnet")
        result = run(entry, net, replace(HELD, **changes), executor=executor)
        chosen, columns = result.validation == held, (result.total, result.correct, result.last, result.round)
        return [column[chosen].tolist() for column in columns], result.loss[chosen]

    tested, validated = side(False), side(True)
    assert validated[0][0] == [3] * 6 and tested[0][0] == [5, 8, 6] * 2
    others = [(tested, side(False, validation=())), (validated, side(False, test=HELD.validation, validation=()))]
    others += [(one, side(one is validated, by)) for by in ("pooled", "stacked") for one in (tested, validated)]
    for one, other in others:
        assert one[0] == other[0]
        np.testing.assert_allclose(one[1], other[1], rtol=1e-4)


# --- early stopping --------------------------------------------------------------------------------------------------

ROUNDS = 14
EVERY = Evaluation(window=0, curve_every=1)


def stopped(patience: int | None, evaluation: Evaluation = EVERY, rounds: int = ROUNDS, **changes: Any) -> Result:
    settings = training(rounds=rounds, local_epochs=1, lr=0.2, patience=patience)
    arguments = {"executor": "sequential", "data": HELD, **changes}
    return run(method("fedper"), backbone("convnet"), training=settings, evaluation=evaluation, **arguments)


def test_where_it_stops_by_hand() -> None:
    def stops(patience: int | None, *correct: tuple[int, int], novel: int | None = None) -> int | None:
        """After measurements of two clients with 9 validation samples each in rounds 10, 20, …"""
        made = History(np.array([client != novel for client in range(2)]), 2)
        for number, both in enumerate(correct, start=1):
            made.scores[10 * number] = Scores.join([((0, 5, 1.0, 0), (one, 9, 1.0, one)) for one in both])
        return made.stops_after(patience)

    # Pooled 3, 5, 5, 4, 6, 1, 2, 6: equal is no better.
    measured = (3, 0), (1, 4), (5, 0), (2, 2), (3, 3), (0, 1), (1, 1), (6, 0)
    for patience, stop in {1: 30, 2: 40, 3: 80, 4: None, None: None}.items():
        assert stops(patience, *measured) == stop
    for novel, stop in {None: None, 1: 20}.items():  # novel clients do not count
        assert stops(1, (1, 0), (1, 5), (1, 9), novel=novel) == stop


def expected(whole: Result, patience: int) -> int:
    """The first round such that the best of all is not among it and the `patience` - 1 before it; else the last."""
    rounds = sorted(set(whole.round.tolist()))
    correct = [int(whole.correct[whole.validation & (whole.round == one)].sum()) for one in rounds]
    for at in range(patience, len(rounds)):
        if max(correct[at - patience + 1 : at + 1]) <= max(correct[: at - patience + 1]):
            return rounds[at]
    return rounds[-1]


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_ends_as_one_of_so_many_rounds(every: int) -> None:
    evaluation = Evaluation(window=0, curve_every=every)
    whole = stopped(None, evaluation)
    assert expected(whole, 1) < ROUNDS  # the seed is such that it matters
    for patience in (1, 3):
        said: list[Progress] = []
        result, stop = stopped(patience, evaluation, on_round=said.append), expected(whole, patience)
        assert result.rounds == stop and result_bytes(result) == result_bytes(stopped(None, evaluation, rounds=stop))
        assert [one.round for one in said] == list(range(1, stop + 1)) and said[-1].rounds == stop


def test_a_run_with_more_patience_goes_on_from_where_one_with_less_ended(tmp_path: Path) -> None:
    for patience, resumed in ((1, 0), (3, stopped(1).rounds), (None, stopped(3).rounds), (None, ROUNDS), (1, 0)):
        with CheckpointFolder(tmp_path / "own", "me", pytest.fail, "lineage", tmp_path / "states") as checkpoints:
            result = stopped(patience, checkpoints=checkpoints)
            checkpoints.archive()
        assert result.resumed_from == resumed and result_bytes(result) == result_bytes(stopped(patience))


@pytest.mark.parametrize(
    ("evaluation", "data", "message"),
    [
        (EVERY, federation(), "needs validation samples; set the partition's validation_share"),
        (Evaluation(window=5), HELD, "needs evaluation.window: 0, not 5"),
        (Evaluation(window=0, curve_every=0), HELD, "needs evaluation.curve_every"),
    ],
)
def test_what_patience_needs(evaluation: Evaluation, data: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^training.patience: {message}"):
        stopped(1, evaluation, data=data)


# --- detectors -------------------------------------------------------------------------------------------------------

NET = backbone("mobilenetv2_ssd", attention="se")
WIDE = training(batch_size=7, local_epochs=1, lr=0.02)  # batch norm of few samples magnifies rounding


def detected(name: str, executor: str = "sequential", **changes: Any) -> Result:
    entry = method(name, also_personal=("local_attention",))
    return run(entry, NET, executor=executor, **{"training": WIDE, **changes})


def test_executors_agree_on_detectors_also_on_validation_samples() -> None:
    one, pooled, stacked = (detected("fedper", executor, data=holding_back(boxed())) for executor in EXECUTORS)
    assert result_bytes(one) == result_bytes(pooled) and one.validation.sum() == 6
    np.testing.assert_allclose(stacked.loss, one.loss, rtol=2e-2)
    assert one.precision is not None and stacked.precision is not None and len(one.precision) == 12
    assert np.abs(stacked.precision - one.precision).max() < 0.1


def test_a_figure_is_the_mean_average_precision_of_a_clients_own_images() -> None:
    result, data = detected("fedavg"), boxed()
    model, _ = NET.create(data.shape, data.classes, 3)
    for client in range(data.clients):
        own = {name.removeprefix(f"client.{client}."): tensor for name, tensor in result.weights.items()}
        model.load_state_dict({name: own[name] for name in model.state_dict()})
        batch = data.with_boxes().batch(data.test[client])
        with torch.no_grad():
            found = candidates(model.eval()(batch.inputs), model.task.defaults)
        figure = mean_average_precision([distinct(one) for one in found.numpy()], batch.labels.numpy())
        last = (result.round == 2) & (result.client == client)
        assert result.precision is not None and result.precision[last] == pytest.approx(figure, abs=1e-9)
        assert result.total[last] == len(data.test[client]) and 0 <= figure <= 1
    scores = Scores.join([((1, 1, 0.5, 1, 0.2),), ((2, 2, 0.5, 2, 0.6),)])  # averaged, not pooled
    assert scores.figure(np.array([True, True])) == pytest.approx(0.4)


# Per-FedAvg halves batches, and norms over the one place of the last maps make gradients of 1e7 of three images.
ONE_STEP = training(rounds=1, local_steps=1, sample_rate=0.34, batch_size=12, lr=0.001)


@pytest.mark.parametrize(
    "name", [name if name in SIX[:1] else pytest.param(name, marks=MATRIX) for name in METHODS.names()]
)
def test_a_method_trains_a_detector_or_says_in_a_line_that_it_does_not(name: str) -> None:
    try:
        result = run(method(name), backbone("mobilenetv2_ssd"), training=ONE_STEP)
    except UserError as error:
        assert "\n" not in str(error) and str(error)
    else:
        assert result.precision is not None and np.isfinite(result.loss).all()


def test_what_goes_by_one_label_is_refused() -> None:
    with pytest.raises(UserError, match="the dataset has no boxes"):
        run(method("fedavg"), NET, federation())
    with pytest.raises(UserError, match="method fedrod: "):
        run(method("fedrod"), NET)
    for changes in ({"augment_flip": 0.5}, {"class_weights": "balanced"}):
        with pytest.raises(UserError, match="do not go with a detector"):
            detected("fedavg", training=training(**changes))
