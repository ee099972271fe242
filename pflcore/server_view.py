"""What a method sees at the server: facts about the federation, the server's state, what clients return, its mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.faults import caller
from pflcore.groups import Tensors

# What names of momenta begin with in the server's further state; they are no parameters.
MOMENTA = "momentum/"


@dataclass(frozen=True)
class Federation:
    """The facts about a federation and its model that a method may build its state from.

    Attributes:
        clients: Number of clients.
        seed: Of the run.
        momentum: Of the clients' SGD.
        classes: Number of classes; of characters for text.
        features: Width of the classifier's input.
        head: Names of the classifier's weight and bias, or only of its weight.
        local_epochs: Passes of a client over its samples in a round; None where steps are counted instead.
        total_rounds: Number of rounds; None for a method that does not ask for the fact ``progress``.
        samples: Of each client, its number of training samples.
        generated: Shapes of the generated entries, by name.
        parameters: Names of the model's entries that gradients train; its others are buffers.
    """

    clients: int
    seed: int
    momentum: float = 0.0
    classes: int = 0
    features: int = 0
    head: tuple[str, ...] = ()
    local_epochs: int | None = None
    total_rounds: int | None = None
    samples: tuple[int, ...] = ()
    generated: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()

    @property
    def rounds(self) -> int:
        """Number of rounds. Runs of methods that use it share no states with longer ones.

        Raises:
            UserError: The method does not ask for the fact ``progress``.
        """
        if self.total_rounds is None:
            raise UserError(f"{caller()}: federation.rounds must be asked for: facts = ('progress',)")
        return self.total_rounds


@dataclass
class Server:
    """State of the server, and what is told with it whenever a method is given it.

    Attributes:
        shared: The shared part of the model; empty for a method that shares nothing.
        extra: Whatever else the method keeps, under names of its own: hypernetworks, momenta, embeddings.
        federation: The facts, as they were before the first round. A method need not hand them back.
        round: Rounds that are done; in ``Method.update_server`` with the one that ends by it. As the facts.
    """

    shared: Tensors
    extra: Tensors = field(default_factory=dict)
    federation: Federation = Federation(0, 0)
    round: int = 0


@dataclass(frozen=True)
class Update:
    """What one client returns to the server.

    Attributes:
        client: Its number.
        samples: Its number of training samples.
        sent: Its shared and generated entries as it received them.
        returned: The same entries after local training. Personal entries are never among them.
        steps: Local steps that it took.
    """

    client: int
    samples: int
    sent: Mapping[str, Tensor]
    returned: Mapping[str, Tensor]
    steps: int = 0


def weights(updates: Sequence[Update]) -> list[float]:
    """Each client's share of the cohort's training samples; sums to 1 over the *sampled* clients."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


def average(updates: Sequence[Update], names: frozenset[str], shares: Sequence[float] | None = None) -> Tensors:
    """Mean of the returned entries in `shares`, by default :func:`weights`; counters come from the first client."""
    shares = weights(updates) if shares is None else shares
    first = {name: tensor for name, tensor in updates[0].returned.items() if name in names}
    mean = {name: torch.zeros_like(one) if one.is_floating_point() else one.clone() for name, one in first.items()}
    summed = [name for name, one in first.items() if one.is_floating_point()]
    sums = [mean[name] for name in summed]
    for share, update in zip(shares, updates, strict=True) if summed else ():
        torch._foreach_add_(sums, [update.returned[name] for name in summed], alpha=share)
    return mean
