"""What a condition is: what it changes of clients' presence, their steps, their labels, or what they send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from pflcore.data.federation import FederatedData
from pflcore.data.samples import Rows
from pflcore.errors import UserError
from pflcore.exchange import Update
from pflcore.groups import Tensors
from pflcore.method import Method
from pflcore.registry import Entry
from pflcore.seeds import generator, torch_seed
from pflcore.settings import Training


@dataclass(frozen=True)
class Draws:
    """What a condition draws from: the seed of a run, and the clients that take part in its training."""

    seed: int
    members: tuple[int, ...]

    def share(self, share: float, purpose: str) -> frozenset[int]:
        """Draw a share of the clients, rounded, of a share above 0 at least one; the same ones whenever asked for."""
        return _drawn(self, share, purpose)

    def happens(self, chance: float, purpose: str, round_: int, client: int) -> bool:
        """Draw for a client in a round whether something of this probability happens."""
        return chance > 0 and generator(self.seed, purpose, round_, client).random() < chance

    def stream(self, purpose: str, round_: int, client: int) -> torch.Generator:
        """Return a generator on the host for a client in a round."""
        return torch.Generator().manual_seed(torch_seed(self.seed, purpose, round_, client))


@cache
def _drawn(draws: Draws, share: float, purpose: str) -> frozenset[int]:
    order = generator(draws.seed, purpose).permutation(draws.members)
    count = max(round(share * len(order)), int(share > 0))
    return frozenset(order[:count].tolist())


@dataclass(frozen=True, kw_only=True)
class Condition(Entry):
    """Base of the conditions; it changes nothing."""

    def check(self, method: Method, sent: Tensors) -> None:
        """Raise :class:`UserError` where it does not go with the method, whose clients send entries such as `sent`."""

    def data(self, draws: Draws, data: FederatedData) -> FederatedData:
        """Return the data that clients train on. Raises :class:`UserError` where it does not go with the data."""
        return data

    def attackers(self, draws: Draws) -> frozenset[int]:
        """Return the clients that are no part of what is measured."""
        return frozenset()

    def attends(self, draws: Draws, round_: int, client: int) -> bool:
        """Return whether a client that was chosen for a round takes part in it."""
        return True

    def share_of_steps(self, draws: Draws, round_: int, client: int) -> float:
        """Return the share of its local steps that a client takes in a round, rounded down to at least one step."""
        return 1.0

    def sent(self, draws: Draws, round_: int, updates: Sequence[Update]) -> list[Update]:
        """Return what the server gets in place of what clients have trained; round 0 is before the first."""
        return list(updates)

    def epsilon(self, training: Training, clients: int, cohorts: Iterable[Sequence[int]]) -> float | None:
        """Return the ε of differential privacy after rounds with these of so many clients; None: none is promised."""
        return None


def normal(like: Tensor, stream: torch.Generator) -> Tensor:
    """Draw standard normal numbers of the shape of a tensor, the same ones on every device."""
    return torch.randn(like.shape, generator=stream, dtype=like.dtype).to(like.device)


def changed(update: Update, change: Callable[[Tensor, Tensor], Tensor]) -> Update:
    """Return an update whose entries of floating point are what `change` makes of (before, returned), in order of their
    names; counters and masks stay."""
    made = {name: change(update.before(name), update.returned[name]) for name in floating(update.returned)}
    return replace(update, returned={**update.returned, **made})


def floating(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of entries of floating point, sorted, as a checkpoint does not keep their order."""
    return sorted(name for name, tensor in tensors.items() if tensor.is_floating_point())


def relabelled(data: FederatedData, clients: Collection[int], change: Callable[[int, Rows], Rows]) -> FederatedData:
    """Return the data with the training labels of some clients as `change` makes them of (client, its labels); raise
    :class:`UserError` for samples that have no single class."""
    if data.is_text or data.labels.ndim > 1:
        what = "texts" if data.is_text else "boxes"
        raise UserError(f"condition: wrong labels are of samples with one class each, and {what} have none")
    if data.classes < 2:
        raise UserError("condition: wrong labels need two classes, and the dataset has one")
    labels = data.labels.cpu().numpy().copy()
    for client in clients:
        rows = data.train[client].numpy()
        labels[rows] = change(client, labels[rows])
    return replace(data, labels=torch.from_numpy(labels).to(data.device))
