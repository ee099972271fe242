"""What more is measured of a round: further models, at a further moment, on the samples of all clients, by metrics.

Each is measured by a part of the trainer (:attr:`pflcore.engine.client.Trainer.parts`), a copy of it with other samples
or with plain predictions, so executors need not know what they measure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from pflcore.engine.client import TRAINING, TUNING, Job, Trainer
from pflcore.engine.executors.sequential import Sequential
from pflcore.groups import Tensors
from pflcore.method import Method
from pflcore.settings import Evaluation
from pflcore.task import Classification

# Clients whose generated entries are made together when all are measured: a hypernetwork is read once for each few.
GENERATED = 16
# Parts, from below those of training: each client has the samples of all clients, or there is one client who has them;
# the model predicts by itself, whatever the method does.
_ALL, _ONE, _PLAIN, _PLAIN_ONE = range(-4, 0)
# By whose samples models are measured on: those of clients, one that all share, the global one.
_EACH = {"own": TRAINING, "all": _ALL}
_SHARED = {"own": TRAINING, "all": _ONE}
_GLOBAL = {"own": _PLAIN, "all": _PLAIN_ONE}
Scored = NDArray[np.float64]
"""What :class:`pflcore.engine.evaluation.Scores` have of one view: [splits, columns, clients]."""


def add_views(trainer: Trainer, evaluation: Evaluation) -> None:
    """Have a trainer measure what the settings ask for beside the accuracy of clients on their own samples."""
    if evaluation.metrics:
        trainer.task = Classification(trainer.data.positions, trainer.data.is_text, evaluation.metrics)
    plain = trainer.parts[_PLAIN] = copy.copy(trainer)
    plain.method = Method()
    if "all" not in evaluation.on:
        return
    data = trainer.data
    test = [torch.cat(list(data.test))]
    held_back = [rows for client, rows in enumerate(data.validation) if client not in data.novel]
    validation = [torch.cat(held_back)] if held_back else []
    for part, like, clients in ((_ALL, trainer, data.clients), (_ONE, trainer, 1), (_PLAIN_ONE, plain, 1)):
        one = trainer.parts[part] = copy.copy(like)
        one.data = replace(data, train=data.train[:clients], test=test * clients, validation=validation * clients)


def score_model(executor: Sequential, evaluation: Evaluation, state: Tensors, *, plain: bool = False) -> list[Scored]:
    """Return the scores of one model of all clients by whose samples; on those of all, every client has the same."""
    parts, clients = _GLOBAL if plain else _SHARED, executor.trainer.data.clients
    scores = [executor.score_shared(state, parts[on]).values for on in evaluation.on]
    return [np.broadcast_to(one, (*one.shape[:2], clients)) for one in scores]


def score_models(
    executor: Sequential, evaluation: Evaluation, round_: int, states: Callable[[], Iterable[Job]]
) -> list[Scored]:
    """Return the scores of models of several clients by whose samples, in the order of the clients.

    They are tuned first where the method does so. Raises :class:`pflcore.engine.client.Diverged` for a loss in tuning.
    """
    trainer, parts = executor.trainer, [_EACH[on] for on in evaluation.on]

    def jobs() -> Iterator[Job]:
        return ((client, trainer.measured(state)) for client, state in states())

    if trainer.tuning is None:
        return [executor.score_each(jobs(), part).values for part in parts]
    scores, rest = [], jobs()
    while some := list(islice(rest, GENERATED)):
        tuned = [(one.client, one.model) for one in executor.train(round_, some, TUNING)]
        scores.append([executor.score_each(tuned, part).values for part in parts])
    return [np.concatenate(one, -1) for one in zip(*scores, strict=True)]
