"""What somebody else's code is given, and what it gives back: the whole contract of an adapter.

An adapter is a Python file with two names::

    METHODS = {"fedavg": {}, "ditto": {"lam": 0.5}}     # methods of ours, and options that make them alike

    def run(method: str, options: Mapping[str, Any], setting: Setting) -> Iterator[After]: ...

``run`` yields an :class:`After` for each round, in order; ``plain.py`` is an example of seventy lines.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine.batches import LocalBatches
from pflcore.engine.forward import Features
from pflcore.engine.run import sample_cohort
from pflcore.groups import Groups, Tensors
from pflcore.settings import Training

Labelled = tuple[Tensor, Tensor]
"""Normalised inputs (samples, …) and their labels (samples,)."""


@dataclass(frozen=True)
class After:
    """A federation after a round.

    Attributes:
        correct: For each client how many of its test samples the model that it is measured with gets right; None for
            a round after which the code cannot measure.
        models: That model of each client, as entries under the names of `Setting.model()`; asked for after the last
            round only. Entries that the code does not have may be left out.
    """

    correct: Sequence[int] | None
    models: Callable[[], Sequence[Tensors]]


@dataclass(frozen=True)
class Setting:
    """A federation: samples, initial weights, who takes part when, and the batches of everybody's local steps."""

    data: FederatedData
    backbone: Backbone
    initial: nn.Module
    groups: Groups
    training: Training
    seed: int

    @property
    def clients(self) -> int:
        return self.data.clients

    @property
    def rounds(self) -> range:
        return range(1, self.training.rounds + 1)

    @cached_property
    def head(self) -> str:
        """The path of the classifier within the model, a linear layer."""
        return Features(self.model(), self.groups).head[0].rpartition(".")[0]

    def model(self) -> nn.Module:
        return copy.deepcopy(self.initial)

    def cohort(self, round_: int) -> list[int]:
        """Return the clients that take part in a round, ascending."""
        return sample_cohort(range(self.clients), self.training.cohort_size(self.clients), self.seed, round_)

    def epochs(self, round_: int, client: int) -> list[list[Labelled]]:
        """Return the batches of each local epoch of a client in a round."""
        local = LocalBatches(self.data.train, self.training, self.seed, batch_norm=False)
        each, batches = local.epoch_steps(client), [self._labelled(rows) for rows in local.batches(round_, client)]
        return [batches[start : start + each] for start in range(0, len(batches), each)]

    def train(self, client: int) -> Labelled:
        return self._labelled(self.data.train[client])

    def test(self, client: int) -> Labelled:
        return self._labelled(self.data.test[client])

    @torch.no_grad()
    def correct(self, models: Sequence[nn.Module]) -> list[int]:
        """Return how many of its test samples each client's model gets right."""
        tests = map(self.test, range(self.clients))
        pairs = zip(models, tests, strict=True)
        return [int((model.eval()(inputs).argmax(1) == labels).sum()) for model, (inputs, labels) in pairs]

    def _labelled(self, rows: Tensor) -> Labelled:
        batch = self.data.batch(rows)
        return batch.inputs, batch.labels


class Epochs:
    """Stands in for a loader: each pass over it is a local epoch of ours."""

    def __init__(self, epochs: Sequence[Sequence[Labelled]]) -> None:
        self._epochs, self._next = epochs, 0

    def __iter__(self) -> Iterator[Labelled]:
        self._next += 1
        return iter(self._epochs[(self._next - 1) % len(self._epochs)])

    def __len__(self) -> int:
        return len(self._epochs[0])
