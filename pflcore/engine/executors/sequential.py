"""The reference executor, which the others derive from and are checked against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from pflcore.engine.client import TRAINING, Job, Outcome, Trainer
from pflcore.engine.evaluation import Scores, score_client, score_shared_model
from pflcore.groups import Tensors


class Sequential:
    """Trains and measures clients one after another on the device of the data.

    An executor is entered before its first use and left after the last. Methods cannot tell which one it is.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def train(self, round_: int, jobs: Iterable[Job], part: int = TRAINING) -> Iterator[Outcome]:
        """Train each job's client, in order, in a part of what there is to train; jobs are drawn as they are needed.

        Raises :class:`Diverged` for the first client, in order, whose loss is not finite.
        """
        trainer = self.trainer.part(part)
        return (trainer.train(round_, client, received) for client, received in jobs)

    def score_each(self, jobs: Iterable[Job], part: int = TRAINING) -> Scores:
        """Score every job's own model on its client's samples, both as the trainer of a part has them."""
        trainer = self.trainer.part(part)
        return Scores.join(score_client(trainer, state, client) for client, state in jobs)

    def score_shared(self, state: Tensors, part: int = TRAINING) -> Scores:
        """Score one model that all clients share, by the trainer of a part."""
        return score_shared_model(self.trainer.part(part), state)
