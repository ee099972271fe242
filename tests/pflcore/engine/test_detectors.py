"""A detector through the engine: what it learns from, what is measured of it, and what it does not go with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny import (
    EXECUTORS,
    SHAPE,
    backbone,
    boxed,
    federation,
    holding_back,
    method,
    result_bytes,
    run,
    training,
)

from pflcore.data.federation import FederatedData
from pflcore.detection.average_precision import mean_average_precision
from pflcore.detection.ssd import candidates, distinct
from pflcore.engine import Result
from pflcore.engine.evaluation import Scores
from pflcore.engine.state import History
from pflcore.errors import UserError
from pflcore.methods import METHODS

NET = backbone("mobilenetv2_ssd", attention="se")
WIDE = training(batch_size=7, local_epochs=1, lr=0.02)  # batch norm of few samples magnifies rounding


def trained(name: str, data: FederatedData | None = None, executor: str = "sequential", **changes: object) -> Result:
    personal = {"also_personal": ("local_attention",)}
    return run(method(name, **personal), NET, data, executor=executor, **{"training": WIDE, **changes})


def test_executors_agree() -> None:
    one, pooled, stacked = (trained("fedper", executor=executor) for executor in EXECUTORS)
    assert result_bytes(one) == result_bytes(pooled)
    np.testing.assert_allclose(stacked.loss, one.loss, rtol=2e-2)
    assert one.precision is not None and stacked.precision is not None
    assert np.abs(stacked.precision - one.precision).max() < 0.1


def test_a_figure_is_the_mean_average_precision_of_a_clients_own_images() -> None:
    data = boxed()
    result = trained("fedavg", data)
    model, _ = NET.create(data.shape, data.classes, 3)
    for client in range(data.clients):
        own = {name: tensor for name, tensor in result.weights.items() if not name.startswith("client.")}
        own |= {
            name.removeprefix(f"client.{client}."): tensor
            for name, tensor in result.weights.items()
            if name.startswith(f"client.{client}.")
        }
        model.load_state_dict({**model.state_dict(), **own})
        model.eval()
        batch = data.with_boxes().batch(data.test[client])
        with torch.no_grad():
            found = candidates(model(batch.inputs), model.task.defaults)
        expected = mean_average_precision([distinct(one) for one in found.numpy()], batch.labels.numpy())
        assert result.precision is not None
        last = (result.round == result.round.max()) & (result.client == client)
        assert result.precision[last] == pytest.approx(expected, abs=1e-9)
        assert result.total[last] == len(data.test[client]) and 0 <= expected <= 1


def test_validation_is_measured_apart_and_checkpoints_have_its_numbers() -> None:
    result = trained("fedavg", holding_back(boxed()))
    assert result.precision is not None and len(result.precision) == len(result.round) == 12
    assert result.validation.sum() == 6
    members = np.ones(3, bool)
    history = History(members, 2, precise=True)
    history.add(1, Scores(np.arange(30.0).reshape(2, 5, 3)))
    assert history.misfit(history.state()) == "" and History(members, 2).misfit(history.state()) != ""


def test_figures_of_clients_are_averaged_not_pooled() -> None:
    scores = Scores.join([((1, 1, 0.5, 1, 0.2),), ((2, 2, 0.5, 2, 0.6),)])
    assert scores.figure(np.array([True, True])) == pytest.approx(0.4)
    assert Scores(scores.values[:, :4]).figure(np.array([True, True])) == 1.0


# Per-FedAvg halves batches, and norms over the one place of the last maps make gradients of 1e7 of three images.
ONE_STEP = training(rounds=1, local_steps=1, sample_rate=0.34, batch_size=12, lr=0.001)
MATRIX = pytest.mark.matrix


@pytest.mark.parametrize(
    "name", [name if name in ("fedavg", "fedkd") else pytest.param(name, marks=MATRIX) for name in METHODS.names()]
)
def test_a_method_trains_a_detector_or_says_in_a_line_that_it_does_not(name: str) -> None:
    try:
        result = run(method(name), backbone("mobilenetv2_ssd"), training=ONE_STEP)
    except UserError as error:
        assert "\n" not in str(error) and str(error)
    else:
        assert result.precision is not None and np.isfinite(result.loss).all()


@pytest.mark.parametrize("name", [pytest.param(name, marks=MATRIX) for name in ("fedavg", "fedbn", "pfedme", "ditto")])
def test_the_methods_of_the_papers_table_train_one(name: str) -> None:
    before = trained(name, training=training(rounds=1, local_epochs=1, batch_size=7, lr=0.01))
    after = trained(name, training=training(rounds=1, local_epochs=8, batch_size=7, lr=0.01))
    assert after.loss.sum() < before.loss.sum()


def test_what_goes_by_one_label_is_refused() -> None:
    with pytest.raises(UserError, match="the dataset has no boxes"):
        run(method("fedavg"), NET, federation())
    with pytest.raises(UserError, match="method fedrod: "):
        run(method("fedrod"), NET)
    for changes in ({"augment_flip": 0.5}, {"class_weights": "balanced"}):
        with pytest.raises(UserError, match="do not go with a detector"):
            trained("fedavg", training=training(**changes))
    assert boxed().shape == SHAPE
