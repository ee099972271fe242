"""Batch norm and batches of one sample: what is left out, and when that is an error."""

from __future__ import annotations

import pytest
from support.tiny import EXECUTORS, NormNet, backbone, federation, method, run, training

from pflcore.backbones import Backbone
from pflcore.engine.parts import make_trainer
from pflcore.engine.trainer import Trainer
from pflcore.errors import UserError


def trainer(net: Backbone, *sizes: int, batch_size: int = 5) -> Trainer:
    data = federation(sizes, (2,) * len(sizes))
    model, groups = net.create(data.shape, data.classes, 0)
    return make_trainer(model, groups, data, method("fedavg"), training(batch_size=batch_size), 0)


@pytest.mark.parametrize(
    ("samples", "plain", "normed"),
    [(11, [5, 5, 1], [5, 5]), (6, [5, 1], [5]), (7, [5, 2], [5, 2]), (10, [5, 5], [5, 5]), (3, [3], [3])],
)
def test_a_last_batch_of_one_is_left_out_for_batch_norm_only(samples: int, plain: list[int], normed: list[int]) -> None:
    for net, expected in ((backbone("convnet"), plain), (NormNet(), normed), (backbone("lenet_bn"), normed)):
        made = trainer(net, samples)
        batches = made.batches(1, 0)
        assert [len(batch) for batch in batches] == expected * 2  # two epochs
        assert made.steps(0) == len(batches)


@pytest.mark.parametrize(
    ("samples", "batch_size", "why"),
    [(1, 5, "it has a single training sample"), (1, 1, "batch_size is 1"), (4, 1, "batch_size is 1")],
)
def test_a_client_of_single_samples_is_one_line(samples: int, batch_size: int, why: str) -> None:
    made = trainer(NormNet(), 5, samples, batch_size=batch_size)
    for call in (lambda: made.steps(1), lambda: made.batches(1, 1)):
        with pytest.raises(UserError, match=f"client 1 cannot train a model with batch norm, since {why}") as error:
            call()
        assert "\n" not in str(error.value)
    assert len(trainer(backbone("convnet"), samples, batch_size=batch_size).batches(1, 0)) == 2 * samples


@pytest.mark.parametrize("executor", EXECUTORS)
def test_executors_refuse_a_client_of_one_sample(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", "2")
    with pytest.raises(UserError, match="client 1 cannot train a model with batch norm"):
        run(method("fedavg"), NormNet(), federation((5, 1, 6)), training=training(sample_rate=1.0), executor=executor)
