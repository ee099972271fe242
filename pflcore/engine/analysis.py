"""What the engine offers an analysis, and what it asks of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pflcore.engine.client import Trainer
from pflcore.groups import Groups, Tensors
from pflcore.method import Server
from pflcore.registry import Entry


@dataclass(frozen=True, eq=False)
class Finding:
    """A series of numbers, float64 [n], about a client or, as -1, about nobody; `item` is what it is."""

    client: int
    item: str
    values: NDArray[np.float64]

    @classmethod
    def one(cls, client: int, item: str, value: float) -> Finding:
        """Return a series of one number."""
        return cls(client, item, np.array([value], np.float64))


Findings = Mapping[str, Sequence[Finding]]
"""What each analysis found."""


@dataclass(frozen=True)
class Subject:
    """A run, before its first round or after its last. States are not to be modified."""

    trainer: Trainer  # data, model, method and settings of training, and inference
    groups: Groups
    round: int  # rounds done
    server: Server
    state: Callable[[int], Tensors]  # client → its state, as its local training would begin with it
    kinds: Sequence[int] | None = None  # for each client a number that colours it; None: its most frequent class

    def measured(self, client: int) -> Tensors:
        """Return what a client is measured with, tuned after rounds of training where the method does so."""
        state, tuning = self.trainer.measured(self.state(client)), self.trainer.tuning
        return tuning.train(self.round, client, state).model if tuning and self.round else state

    def members(self) -> list[int]:
        """Return the clients that take part in training."""
        data = self.trainer.data
        return [client for client in range(data.clients) if client not in data.novel]


@dataclass(frozen=True, kw_only=True)
class Analysis(Entry, ABC):
    """Base of the analyses: something to look at, once, when a run has been trained."""

    title: ClassVar[str]  # the heading of what it found, in reports
    # Options that are lists of clients: of a run that is shrunk to fewer clients, those that are left are kept.
    client_options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def check(self, subject: Subject) -> None:
        """Raise :class:`pflcore.errors.UserError`, before training, when the run cannot be analysed so."""

    @abstractmethod
    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield what there is to say after the last round. The same run gives the same findings."""
