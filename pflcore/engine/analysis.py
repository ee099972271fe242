"""The interface between the engine and analyses: the base class, its input and its findings."""

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
    """A series of numbers, float64 [n], called `item`; `client` is -1 if it is about no single client."""

    client: int
    item: str
    values: NDArray[np.float64]

    @classmethod
    def one(cls, client: int, item: str, value: float) -> Finding:
        """Return a finding with one number."""
        return cls(client, item, np.array([value], np.float64))


Findings = Mapping[str, Sequence[Finding]]
"""The findings of each analysis, by the analysis's name."""


@dataclass(frozen=True)
class Subject:
    """A run before its first round or after its last, as input of an analysis. Do not modify its states."""

    trainer: Trainer  # data, model, method, settings of training, and inference
    groups: Groups
    round: int  # rounds done
    server: Server
    state: Callable[[int], Tensors]  # client → the state with which its local training would begin
    kinds: Sequence[int] | None = None  # per client a number that selects its colour; None: its most frequent class

    def measured(self, client: int) -> Tensors:
        """Return the state with which a client is measured, tuned if the method tunes and a round has been trained."""
        state, tuning = self.trainer.measured(self.state(client)), self.trainer.tuning
        return tuning.train(self.round, client, state).model if tuning and self.round else state

    def members(self) -> list[int]:
        """Return the clients that take part in training."""
        data = self.trainer.data
        return [client for client in range(data.clients) if client not in data.novel]


@dataclass(frozen=True, kw_only=True)
class Analysis(Entry, ABC):
    """Base of the analyses, which compute findings once, after the last round of a run."""

    title: ClassVar[str]  # the heading of the findings in reports
    # Options that are lists of clients. If a run is shrunk to fewer clients, clients that are gone leave these lists.
    client_options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def check(self, subject: Subject) -> None:
        """Raise :class:`pflcore.errors.UserError`, before training, if the run cannot be analysed in this way."""

    @abstractmethod
    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the findings after the last round. The same run gives the same findings."""
