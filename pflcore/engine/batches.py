"""Batches of local steps: the training samples that a client uses in each step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.seeds import generator
from pflcore.settings import Training


@dataclass(frozen=True)
class LocalBatches:
    """The batches of every client's local steps in a round, or in a part of a round (a phase).

    Methods raise :class:`UserError` for a client with only batches of one sample, if the model has batch norm.
    """

    rows: Sequence[Tensor]  # per client the rows of its training samples, on the host
    training: Training
    seed: int
    batch_norm: bool  # whether the model has batch norm
    stream: str = "batches"  # name of the random stream
    share: float = 1.0  # share of a client's samples that are used, at least one sample, drawn again in each round
    before: float = 0.0  # passes of the round before the part, rounded down to whole steps
    passes: float | None = None  # passes of the part, also rounded down; None: the remaining ones
    # (round, client) → the share of the part's steps that a client takes (its first steps), rounded down, at least one
    pace: Callable[[int, int], float] | None = None

    def first(self, client: int) -> int:
        """Return the number of steps of the round before the part."""
        return self._step_at(self.before, client)

    def steps(self, round_: int, client: int) -> int:
        """Return the number of steps that a client takes in the part."""
        end = self.round_steps(client) if self.passes is None else self._step_at(self.before + self.passes, client)
        steps = end - self.first(client)
        return min(steps, max(1, math.floor(self.pace(round_, client) * steps + 1e-9))) if self.pace else steps

    def round_steps(self, client: int) -> int:
        """Return the number of steps in a whole round of a client, regardless of `pace`."""
        return self.training.local_steps or self.training.local_epochs * self.epoch_steps(client)

    def epoch_steps(self, client: int) -> int:
        """Return the number of steps in one pass over a client's samples."""
        return math.ceil(self._samples(client) / self.training.batch_size) - self._leaves_one_out(client)

    def batches(self, round_: int, client: int) -> list[Tensor]:
        """Return the rows of each step. Every epoch is shuffled again; its last batch may be smaller.

        With ``local_steps``, each batch is a new draw from all samples of the client. A last batch of one sample is
        left out if the model has batch norm.
        """
        rows, size = self.rows[client], self.training.batch_size
        order = generator(self.seed, self.stream, round_, client)

        def shuffled(count: int) -> Tensor:
            return rows[torch.from_numpy(order.permutation(len(rows))[:count]).to(rows.device)]

        used = self._samples(client) - self._leaves_one_out(client)
        if self.share < 1:
            rows = shuffled(self._samples(client))
        if self.training.local_steps:
            batches = [shuffled(size) for _ in range(self.training.local_steps)]
        else:
            batches = [batch for _ in range(self.training.local_epochs) for batch in torch.split(shuffled(used), size)]
        first = self.first(client)
        return batches[first : first + self.steps(round_, client)]

    def _samples(self, client: int) -> int:
        return max(1, math.floor(self.share * len(self.rows[client]) + 1e-9))

    def _step_at(self, passes: float, client: int) -> int:
        # Rounding errors must not cost a step: 0.29 · 100 is slightly below 29.
        return min(self.round_steps(client), math.floor(passes * self.epoch_steps(client) + 1e-9))

    def _leaves_one_out(self, client: int) -> bool:
        """Return whether a client's last batch is left out, because batch norm cannot normalise a single sample."""
        samples, size = self._samples(client), self.training.batch_size
        if not self.batch_norm or samples % size != (1 if size > 1 else 0):
            return False
        if 1 not in (size, samples):
            return True
        why = "batch_size is 1" if size == 1 else "it has a single training sample"
        raise UserError(
            f"client {client} cannot train a model with batch norm, since {why} and there is nothing to normalise; "
            "use larger batches, clients with more samples, or a backbone without batch norm"
        )
