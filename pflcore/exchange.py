"""What a server and its clients exchange: facts of the federation, the server's state, updates, their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.faults import caller
from pflcore.groups import Tensors

MOMENTA = "momentum/"  # what names of momenta begin with in the server's further state; they are no parameters


@dataclass(frozen=True)
class Federation:
    """Facts about a federation and its model that a method may build its state from."""

    clients: int
    seed: int
    momentum: float = 0.0  # of the clients' SGD
    classes: int = 0  # of characters for text
    features: int = 0  # width of the classifier's input
    head: tuple[str, ...] = ()  # names of the classifier's weight and bias, or only of its weight
    local_epochs: int | None = None  # None where steps are counted instead
    total_rounds: int | None = None  # None for a method that does not ask for the fact `progress`
    samples: tuple[int, ...] = ()  # of each client, its number of training samples
    generated: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of the generated entries
    parameters: frozenset[str] = frozenset()  # entries of the model that gradients train; its others are buffers

    @property
    def rounds(self) -> int:
        """Number of rounds. Raises :class:`UserError` where the method does not ask for the fact ``progress``."""
        if self.total_rounds is None:
            raise UserError(f"{caller()}: federation.rounds must be asked for: facts = ('progress',)")
        return self.total_rounds


@dataclass
class Server:
    """State of the server. Facts and round come with it whenever a method is given it, and need not be handed back."""

    shared: Tensors  # the shared part of the model; empty for a method that shares nothing
    extra: Tensors = field(default_factory=dict)  # whatever else the method keeps, under names of its own
    federation: Federation = Federation(0, 0)
    round: int = 0  # rounds that are done; in Method.update_server with the one that ends by it


@dataclass(frozen=True)
class Update:
    """What one client returns to the server."""

    client: int
    samples: int  # its training samples
    sent: Mapping[str, Tensor]  # its shared and generated entries as it received them
    returned: Mapping[str, Tensor]  # the same entries after local training; personal ones are never among them
    steps: int = 0  # that it took
    changes: frozenset[str] = frozenset()  # those of the returned entries that are changes of what it received

    def before(self, name: str) -> Tensor:
        """Return what a returned entry was before it changed: as it was received, or zero where it is a change."""
        return torch.zeros_like(self.sent[name]) if name in self.changes else self.sent[name]


def weights(updates: Sequence[Update]) -> list[float]:
    """Return each client's share of the cohort's training samples."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


def average(updates: Sequence[Update], names: frozenset[str], shares: Sequence[float] | None = None) -> Tensors:
    """Return the mean of the returned entries in `shares`, by default :func:`weights`; counters are the first's."""
    shares = weights(updates) if shares is None else shares
    first = {name: tensor for name, tensor in updates[0].returned.items() if name in names}
    mean = {name: torch.zeros_like(one) if one.is_floating_point() else one.clone() for name, one in first.items()}
    summed = [name for name, one in first.items() if one.is_floating_point()]
    if not summed:
        return mean
    sums = [mean[name] for name in summed]
    for share, update in zip(shares, updates, strict=True):
        torch._foreach_add_(sums, [update.returned[name] for name in summed], alpha=share)
    return mean
