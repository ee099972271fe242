"""Which of its samples a client trains on in each of its local steps."""

from __future__ import annotations

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
    """The batches of every client's local steps in a round, or in a part of it.

    All raise :class:`UserError` for a client with nothing but batches of one sample, which batch norm cannot normalise.
    """

    rows: Sequence[Tensor]  # for each client those of its training samples, on the host
    training: Training
    seed: int
    batch_norm: bool  # whether the model has any
    stream: str = "batches"  # the random numbers that they are drawn from
    share: float = 1.0  # of a client's samples, at least one, drawn anew in each round; there are none beside
    before: float = 0.0  # passes of the round that come before the part, rounded down to whole steps
    passes: float | None = None  # those of the part, rounded likewise; None for all that are left
    # (round, client) → the share of the part's steps that a client takes, the first ones, rounded down to at least one
    pace: Callable[[int, int], float] | None = None

    def first(self, client: int) -> int:
        """Return the steps of the round before those of the part."""
        return self._step_at(self.before, client)

    def steps(self, round_: int, client: int) -> int:
        """Return the steps that a client takes in the part."""
        end = self.whole(client) if self.passes is None else self._step_at(self.before + self.passes, client)
        steps = end - self.first(client)
        return min(steps, max(1, math.floor(self.pace(round_, client) * steps + 1e-9))) if self.pace else steps

    def whole(self, client: int) -> int:
        """Return the steps of the round, of a client that takes all."""
        return self.training.local_steps or self.training.local_epochs * self.epoch_steps(client)

    def epoch_steps(self, client: int) -> int:
        """Return the steps in one pass over the samples of a client."""
        return math.ceil(self._samples(client) / self.training.batch_size) - self._leaves_one_out(client)

    def batches(self, round_: int, client: int) -> list[Tensor]:
        """Return the rows of each step: every epoch shuffled anew, its last batch as small as it turns out.

        With ``local_steps``, each batch is drawn anew from all samples of the client. A last batch of one sample is
        left out when the model has batch norm.
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
        # What rounding leaves below a whole number, as of 0.29 · 100, must not cost a step.
        return min(self.whole(client), math.floor(passes * self.epoch_steps(client) + 1e-9))

    def _leaves_one_out(self, client: int) -> bool:
        """Return whether a client's last batch is left out, since batch norm cannot take its only sample."""
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
