"""Text from samples to figures: what is predicted, and which predictions count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny import CLASSES, EXECUTORS, LENGTH, backbone, create, method, run, texts, training
from torch.func import functional_call
from torch.nn import functional as F

from pflcore.data.assignment import Assignment
from pflcore.data.federation import FederatedData
from pflcore.data.samples import Samples
from pflcore.errors import UserError


def test_every_character_but_the_first_is_predicted_and_counted() -> None:
    raw = np.random.default_rng(0).integers(0, CLASSES, (30, LENGTH + 1), np.uint8)
    samples = Samples(
        inputs=raw, labels=raw[:, -1].astype(np.int64), train=np.arange(30) < 20, name="letters",
        class_names=tuple("abcd"), mean=(), std=(), source="here",
    )  # fmt: skip
    rows = np.arange(30)
    assignment = Assignment([rows[:12], rows[12:20]], [rows[20:24], rows[24:]], "natural", 0)
    data = FederatedData.from_samples(samples, assignment, torch.device("cpu"))
    assert data.is_text and data.shape == (LENGTH,) and data.positions == LENGTH and data.classes == CLASSES
    for chosen in (torch.tensor([3, 1]), torch.tensor([[4, 5], [6, 7]])):
        batch = data.batch(chosen)
        assert batch.inputs.dtype == torch.int64 and batch.inputs.shape == (*chosen.shape, LENGTH)
        assert batch.inputs.tolist() == raw[chosen.numpy()][..., :-1].tolist()
        assert batch.labels.tolist() == raw[chosen.numpy()][..., 1:].tolist()
    assert data.class_counts(1).tolist() == np.bincount(raw[12:20, 1:].reshape(-1), minlength=CLASSES).tolist()
    with pytest.raises(UserError, match=r"^backbone convnet takes images, the dataset is text; use "):
        run(method("fedavg"), backbone("convnet"), texts())


@pytest.mark.parametrize("executor", EXECUTORS)
def test_scores_against_a_plain_loop(executor: str) -> None:
    data, net = texts(), backbone("language_transformer")
    result = run(method("fedper"), net, data, training=training(rounds=1, sample_rate=1.0), executor=executor)
    model, _ = create(net, 3)
    for client in range(3):
        prefix = f"client.{client}."
        own = {entry.removeprefix(prefix): tensor for entry, tensor in result.weights.items() if prefix in entry}
        state = {**{entry: tensor for entry, tensor in result.weights.items() if "client" not in entry}, **own}
        characters = data.inputs[data.test[client]].long()
        logits = functional_call(model.eval(), state, (characters[:, :-1],))
        hits = logits.argmax(-1) == characters[:, 1:]
        assert (result.correct[client], result.last[client]) == (int(hits.sum()), int(hits[:, -1].sum()))
        loss = float(F.cross_entropy(logits.transpose(1, 2), characters[:, 1:]))
        assert result.loss[client] == pytest.approx(loss, rel=1e-4)
