"""Measured views: clients' models after a round, the global model, models before aggregation, all clients' samples.

Further views are measured by parts of the trainer (:attr:`pflcore.engine.client.Trainer.parts`): copies with other
samples or with plain predictions. So executors do not depend on what they measure.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice

import numpy as np
import torch
from numpy.typing import NDArray

from pflcore.engine.client import TRAINING, TUNING, Job, Trainer
from pflcore.engine.evaluation import COLUMNS, Scored
from pflcore.engine.executors.sequential import Sequential
from pflcore.groups import Tensors
from pflcore.method import Method
from pflcore.settings import Evaluation

# Clients for which entries are generated together in measurements, so that a hypernetwork is read less often.
GENERATED = 16
# Parts, numbered below those of training. _ALL: each client has the samples of all clients. _ONE: one client has the
# samples of all. _PLAIN and _PLAIN_ONE: the model's predictions, without the method's.
_ALL, _ONE, _PLAIN, _PLAIN_ONE = range(-4, 0)
# Setting `evaluation.on` → part, for the models of clients, for one model that all clients share, for the global model.
_EACH = {"own": TRAINING, "all": _ALL}
_SHARED = {"own": TRAINING, "all": _ONE}
_GLOBAL = {"own": _PLAIN, "all": _PLAIN_ONE}


class Views:
    """Measures a run's models, in the order of :meth:`pflcore.settings.Evaluation.views`.

    Args:
        trainer: The trainer of the run, which gets the parts and the metrics that are measured.
        members: For each client whether its validation samples count.
        differ: Whether the clients' models or predictions differ.
        has_global: Whether the server has a complete model.
    """

    def __init__(
        self, trainer: Trainer, evaluation: Evaluation, members: NDArray[np.bool_], *, differ: bool, has_global: bool
    ) -> None:
        self.trainer, self.evaluation, self.differ = trainer, evaluation, differ
        self.measured = evaluation.views(has_global=has_global)
        self.with_global = has_global and "global" in evaluation.models
        if evaluation.metrics:
            trainer.task = replace(trainer.task, further=evaluation.metrics)
        if len(evaluation.views()) > 1:
            self._add_parts(members)

    def _add_parts(self, members: NDArray[np.bool_]) -> None:
        trainer, data = self.trainer, self.trainer.data
        plain = trainer.parts[_PLAIN] = copy.copy(trainer)
        plain.method = Method()
        if "all" not in self.evaluation.on:
            return
        test = [torch.cat(list(data.test))]
        validation = [torch.cat(list(compress(data.validation, members)))] if data.validation else []
        for part, like, clients in ((_ALL, trainer, data.clients), (_ONE, trainer, 1), (_PLAIN_ONE, plain, 1)):
            view = trainer.parts[part] = copy.copy(like)
            view.data = replace(data, train=data.train[:clients], test=test * clients, validation=validation * clients)

    def after_aggregation(self, executor: Sequential, round_: int, states: Callable[[], Iterator[Job]]) -> list[Scored]:
        """Return the scores of all clients; `states` yields their states in order. Raises
        :class:`pflcore.engine.client.Diverged` if a loss in tuning is not finite."""
        if self.differ:
            scores = self._score_each(executor, round_, states)
        else:
            scores = self._score_shared(executor, self.trainer.measured(next(states())[1]), _SHARED)
        if self.with_global:
            scores += self._score_shared(executor, next(states())[1], _GLOBAL)
        return scores

    def after_training(self, executor: Sequential, round_: int, jobs: Sequence[Job]) -> list[Scored]:
        """Return scores of clients with their states after local training, else NaN. Raises like the method above."""
        data = self.trainer.data
        shape = 1 + bool(data.validation), len(COLUMNS) + len(self.trainer.task.further), data.clients
        scores = [np.full(shape, np.nan) for _ in self.evaluation.on]
        if jobs:  # empty if no client took part in the round
            for view, trained in zip(scores, self._score_each(executor, round_, lambda: iter(jobs)), strict=True):
                view[..., [client for client, _ in jobs]] = trained
        return scores

    def _score_shared(self, executor: Sequential, state: Tensors, parts: Mapping[str, int]) -> list[Scored]:
        """Return the scores of one model, per kind of samples; on those of all clients, every client's are the same."""
        scores = [executor.score_shared(state, parts[on]) for on in self.evaluation.on]
        return [np.broadcast_to(it, (*it.shape[:2], self.trainer.data.clients)) for it in scores]

    def _score_each(self, executor: Sequential, round_: int, states: Callable[[], Iterable[Job]]) -> list[Scored]:
        """Return the scores of several clients' models, tuned first if the method tunes, per kind of samples."""
        trainer, parts = self.trainer, [_EACH[on] for on in self.evaluation.on]

        def jobs() -> Iterator[Job]:
            return ((client, trainer.measured(state)) for client, state in states())

        if trainer.tuning is None:
            return [executor.score_each(jobs(), part) for part in parts]
        scores, remaining = [], jobs()
        while group := list(islice(remaining, GENERATED)):
            tuned = [(outcome.client, outcome.model) for outcome in executor.train(round_, group, TUNING)]
            scores.append([executor.score_each(tuned, part) for part in parts])
        return [np.concatenate(groups, -1) for groups in zip(*scores, strict=True)]
