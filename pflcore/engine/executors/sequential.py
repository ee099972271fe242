"""The reference executor: the base class of the others, whose results must agree with it."""

from collections.abc import Iterable, Iterator
from typing import Self

from pflcore.engine.client import TRAINING, Job, Outcome, Trainer
from pflcore.engine.evaluation import Scored, join, score_client, score_shared_model
from pflcore.groups import Tensors


class Sequential:
    """Trains and measures clients one after another on the device of the data.

    An executor is entered before its first use and left after the last. Methods do not know which executor runs them.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def train(self, round_: int, jobs: Iterable[Job], part: int = TRAINING) -> Iterator[Outcome]:
        """Train each job's client in a part of training, in order; jobs are taken from the iterable as needed.

        Raises :class:`Diverged` for the first client, in order, whose loss is not finite.
        """
        trainer = self.trainer.part(part)
        return (trainer.train(round_, client, received) for client, received in jobs)

    def score_each(self, jobs: Iterable[Job], part: int = TRAINING) -> Scored:
        """Return the scores of each job's model on its client's samples, with a part's predictions and samples."""
        trainer = self.trainer.part(part)
        return join(score_client(trainer, state, client) for client, state in jobs)

    def score_shared(self, state: Tensors, part: int = TRAINING) -> Scored:
        """Return the scores of all clients with one model that they share, with a part's predictions and samples."""
        return score_shared_model(self.trainer.part(part), state)
