"""What an analysis gets and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # the engine imports this package
    from pflcore.engine.trainer import Trainer
    from pflcore.groups import Groups, Tensors
    from pflcore.method import Server
    from pflcore.settings import Evaluation


@dataclass(frozen=True, eq=False)
class Finding:
    """A series of numbers.

    Attributes:
        client: Whom it is about, or -1 for nobody.
        item: What it is, in the words of the analysis.
        values: float64 [n]; the place of a number in it is its index.
    """

    client: int
    item: str
    values: NDArray[np.float64]

    @classmethod
    def one(cls, client: int, item: str, value: float) -> Finding:
        """A series of one number."""
        return cls(client, item, np.array([value], np.float64))


Findings = Mapping[str, Sequence[Finding]]
"""What each analysis found."""


@dataclass(frozen=True)
class Subject:
    """A run, before its first round or after its last.

    Attributes:
        trainer: Data, model, method and settings of training, and inference.
        groups: The parameter groups of the model.
        evaluation: What the run asks for.
        round: Rounds done.
        server: The server's state; not to be modified.
        state: Client → its state, as its local training would begin with it; not to be modified.
        kinds: For each client a number by which it is coloured; None is its most frequent class.
    """

    trainer: Trainer
    groups: Groups
    evaluation: Evaluation
    round: int
    server: Server
    state: Callable[[int], Tensors]
    kinds: Sequence[int] | None = None

    def measured(self, client: int) -> Tensors:
        """What a client is measured with; after rounds of training, that is tuned first where the method does so."""
        state, tuning = self.state(client), self.trainer.tuning
        if tuning and self.round:
            state = tuning.train(self.round, client, state).model
        return self.trainer.method.personalised(state)

    def members(self) -> list[int]:
        """The clients that take part in training."""
        data = self.trainer.data
        return [client for client in range(data.clients) if client not in data.novel]


class Analysis(Protocol):
    """The functions of an analysis."""

    def check(self, subject: Subject) -> None:
        """Called before training. Raises :class:`pflcore.errors.UserError` when the run cannot be analysed so."""

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """What there is to say after the last round. The same run gives the same findings."""
