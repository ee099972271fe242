"""Small batches are filled up where a client's step stays what it is, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.cohorts import UNEVEN, backbones
from support.tiny import TEXT, assert_states_close, method, suited, training
from torch import Tensor, nn

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.executors.cohort import Cohort
from pflcore.engine.executors.filling import can_fill, filled_labels, filled_rows
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked
from pflcore.engine.facts import balanced
from pflcore.engine.parts import make_trainer
from pflcore.engine.trainer import TRAINING, Trainer
from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView
from pflcore.methods.fedprox import FedProx


def made(name: str, net: str, finetune_epochs: int = 0, **changes: Any) -> tuple[Trainer, Tensors]:
    data = suited(backbones()[net], *UNEVEN)
    model, groups = backbones()[net].create(data.shape, data.classes, 3)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return make_trainer(
        model, groups, data, method(name, finetune_epochs=finetune_epochs), training(momentum=0.5, **changes), 3
    ), state


def ticks_of(
    executor: Stacked, jobs: list[tuple[int, Tensors]], monkeypatch: pytest.MonkeyPatch, part: int = TRAINING
) -> list[Any]:
    """The outcomes, behind the number of ticks that they took."""
    ticks = []
    advance = Cohort._advance
    monkeypatch.setattr(Cohort, "_advance", lambda self, *rest: ticks.append(rest[1]) or advance(self, *rest))
    outcomes = list(executor.train(1, jobs, part))
    return [len(ticks), *outcomes]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("net", ["convnet", "tiny_vit", TEXT])
def test_uneven_clients_step_side_by_side(net: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, state = made("fedavg", net)
    jobs = []
    for client in range(trainer.data.clients):
        weights = {CLASS_WEIGHTS: balanced(trainer.data.class_counts(client))} if weighted else {}
        jobs.append((client, {**state, **weights}))
    ticks, *outcomes = ticks_of(Stacked(trainer, 8), jobs, monkeypatch)
    assert ticks == max(map(trainer.steps, range(trainer.data.clients))) == 10
    for one, other in zip(outcomes, Sequential(trainer).train(1, jobs), strict=True):
        assert_states_close(one.model, other.model)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "net"), [("fedproto", "convnet"), ("moon", "convnet"), ("fedavg", "norm_net"), ("fedavg", "lenet_bn")]
)
def test_other_losses_and_batch_norm_are_left_alone(name: str, net: str) -> None:
    trainer, _ = made(name, net)
    assert not can_fill(trainer)


def test_who_overrides_a_loss_has_to_say_it_anew() -> None:
    class Louder(FedProx):
        def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
            return super().loss(local, params, batch) * len(batch.labels)

    class Same(FedProx):
        def eval_state(self, state: Tensors) -> Tensors:
            return state

    trainer, _ = made("fedprox", "convnet")
    assert can_fill(trainer)
    for kind, expected in ((Louder, False), (Same, True)):
        trainer.method = kind()
        assert can_fill(trainer) == expected


def test_layers_that_look_across_samples_are_left_alone() -> None:
    trainer, _ = made("fedavg", "convnet")
    assert can_fill(trainer)
    trainer.model.register_buffer("mean", torch.zeros(1))
    trainer.entries |= {"mean"}
    assert not can_fill(trainer)
    trainer, _ = made("fedavg", "convnet")
    trainer.noise = DropoutBits(nn.Sequential(nn.Flatten(0, 1), nn.Dropout(0.5)), torch.zeros(1, 3, 4))
    assert not can_fill(trainer)


def test_rows_are_filled_with_a_row_of_their_own_and_labels_with_none() -> None:
    rows = filled_rows([torch.tensor([7, 8, 9]), torch.tensor([5]), torch.tensor([])])
    assert rows.tolist() == [[7, 8, 9], [5, 5, 5], [0, 0, 0]]
    assert filled_labels(rows[:2], torch.tensor([2, 1])).tolist() == [[7, 8, -100], [5, -100, -100]]
    texts = torch.ones(2, 3, 2, dtype=torch.int64)
    assert filled_labels(texts, torch.tensor([1, 2]))[:, :, 0].tolist() == [[1, -100, -100], [1, 1, -100]]


def test_the_samples_of_a_batch_that_is_filled_up_have_the_masks_of_the_batch() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(6, 5), nn.Dropout(0.25))
    noise = DropoutBits(model, torch.zeros(1, 2, 3))
    model.train()
    bits = noise.draw(3, 1)

    def outputs(bits: Tensor, x: Tensor) -> Tensor:
        noise.load(bits)
        return model(x)

    x = torch.rand(7, 2, 3)
    torch.testing.assert_close(outputs(noise.fill(bits, 3, 7), x)[:3], outputs(bits, x[:3]))
