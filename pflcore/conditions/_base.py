"""Base of the conditions, which change clients' attendance, local steps, labels, or what they send."""

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


@dataclass(frozen=True)
class Draws:
    """Random draws of a condition, from the run's seed, among the clients that take part in its training."""

    seed: int
    members: tuple[int, ...]

    def share(self, share: float, purpose: str) -> frozenset[int]:
        """Return a random share of the clients, at least one if the share is above 0; the same in all calls."""
        return _drawn(self, share, purpose)

    def happens(self, chance: float, purpose: str, round_: int, client: int) -> bool:
        """Return whether an event of probability `chance` happens to a client in a round."""
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
    """Base class of conditions; it changes nothing."""

    def check(self, method: Method, sent: Tensors) -> None:
        """Raise :class:`UserError` if it does not support the method, whose clients send entries like `sent`."""

    def data(self, draws: Draws, data: FederatedData) -> FederatedData:
        """Return the data that clients train on. Raises :class:`UserError` if it does not support `data`."""
        return data

    def attackers(self, draws: Draws) -> frozenset[int]:
        """Return the clients that attack; they are not measured like the others."""
        return frozenset()

    def attends(self, draws: Draws, round_: int, client: int) -> bool:
        """Return whether a client that was sampled for a round takes part in it."""
        return True

    def share_of_steps(self, draws: Draws, round_: int, client: int) -> float:
        """Return the share of its local steps that a client takes in a round, rounded down to at least one step."""
        return 1.0

    def sent(self, draws: Draws, round_: int, updates: Sequence[Update]) -> list[Update]:
        """Return the updates that the server receives in place of the trained ones; round 0 is the warm-up."""
        return list(updates)

    def epsilon(self, clients: int, cohorts: Iterable[Sequence[int]]) -> float | None:
        """Return the ε of differential privacy after rounds with these `cohorts`; None if none is promised."""
        return None


def normal_noise(like: Tensor, stream: torch.Generator) -> Tensor:
    """Return standard normal numbers in the shape of a tensor, the same ones on every device."""
    return torch.randn(like.shape, generator=stream, dtype=like.dtype).to(like.device)


def change_entries(update: Update, change: Callable[[Tensor, Tensor], Tensor]) -> Update:
    """Return an update whose floating-point entries are `change`(before, returned), computed in the order of their
    names; counters and masks stay."""
    entries = {name: change(update.before(name), update.returned[name]) for name in floating(update.returned)}
    return replace(update, returned={**update.returned, **entries})


def floating(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the sorted names of floating-point entries."""
    return sorted(name for name, tensor in tensors.items() if tensor.is_floating_point())


def relabel(data: FederatedData, clients: Collection[int], change: Callable[[int, Rows], Rows]) -> FederatedData:
    """Return the data with the training labels of some clients replaced by `change`(client, labels). Raises
    :class:`UserError` for samples that have no single class."""
    if data.is_text or data.labels.ndim > 1:
        kind = "texts" if data.is_text else "boxes"
        raise UserError(f"condition: wrong labels are of samples with one class each, and {kind} have none")
    if data.classes < 2:
        raise UserError("condition: wrong labels need two classes, and the dataset has one")
    labels = data.labels.cpu().numpy().copy()
    for client in clients:
        rows = data.train[client].numpy()
        labels[rows] = change(client, labels[rows])
    return replace(data, labels=torch.from_numpy(labels).to(data.device))
