"""Data that a server and its clients exchange: facts of the federation, the server's state, updates, their mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.faults import caller
from pflcore.groups import Tensors, pick

MOMENTA = "momentum/"  # prefix of momenta in the server's `extra`; they do not count as parameters


@dataclass(frozen=True)
class Federation:
    """Facts about a federation and its model, from which a method can build its state."""

    clients: int
    seed: int
    momentum: float = 0.0  # of the clients' SGD
    classes: int = 0  # for text the number of different characters
    features: int = 0  # width of the classifier's input
    head: tuple[str, ...] = ()  # names of the classifier's weight and bias, or only of its weight
    local_epochs: int | None = None  # None if the run sets `training.local_steps`
    total_rounds: int | None = None  # None for a method that does not declare the fact `progress`
    samples: tuple[int, ...] = ()  # number of training samples of each client
    novel: frozenset[int] = frozenset()  # clients that never train
    generated: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of the generated entries
    parameters: frozenset[str] = frozenset()  # model entries that gradients train; the others are buffers, or fixed

    @property
    def members(self) -> int:
        """Number of clients that take part in training."""
        return self.clients - len(self.novel)

    @property
    def rounds(self) -> int:
        """Number of rounds. Raises :class:`UserError` if the method does not declare the fact ``progress``."""
        if self.total_rounds is None:
            raise UserError(f"{caller()}: federation.rounds must be asked for: facts = ('progress',)")
        return self.total_rounds


@dataclass
class Server:
    """State of the server. The engine sets `federation` and `round` before it passes a server to a method."""

    shared: Tensors  # shared entries, of the model and beside it; empty for a method that shares nothing
    extra: Tensors = field(default_factory=dict)  # other state of the method on the server
    federation: Federation = Federation(0, 0)
    round: int = 0  # number of rounds done; in Method.update_server, this includes the round that it ends


def check_server(method: str, before: Server, after: object) -> None:
    """Raise :class:`UserError` unless `after` is a server whose shared entries have the names, shapes and types that
    they had `before`: clients would train with what they get, or fail much later."""
    where = f"method {method}: update_server"
    if not isinstance(after, Server) or not isinstance(after.shared, dict):
        actual = type(after.shared if isinstance(after, Server) else after).__name__
        raise UserError(f"{where} returned {actual}; return dataclasses.replace(server, shared=...)")
    for name in {**before.shared, **after.shared}:
        old, new = (
            f"{value.dtype} {list(value.shape)}".removeprefix("torch.") if isinstance(value, Tensor) else "no tensor"
            for value in (before.shared.get(name), after.shared.get(name))
        )
        if old != new:
            raise UserError(f"{where} returned {new} as {name!r}; it was {old}")


@dataclass(frozen=True)
class Update:
    """What one client returns to the server after its local training."""

    client: int
    samples: int  # number of the client's training samples
    # The shared and generated entries that the server sent to the client, by Method.origin those that it then trained.
    sent: Mapping[str, Tensor]
    returned: Mapping[str, Tensor]  # the same entries after local training; never personal ones
    steps: int = 0  # number of local steps
    changes: frozenset[str] = frozenset()  # names of returned entries that are changes and not new values

    def before(self, name: str) -> Tensor:
        """Return the value of an entry before local training: the value sent, or zeros if the entry is a change."""
        return torch.zeros_like(self.sent[name]) if name in self.changes else self.sent[name]


def weights(updates: Sequence[Update]) -> list[float]:
    """Return each client's share of the cohort's training samples."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


def average(updates: Sequence[Update], names: frozenset[str], shares: Sequence[float] | None = None) -> Tensors:
    """Return the mean of returned entries, weighted by `shares` or :func:`weights`; integers are the first client's."""
    shares = weights(updates) if shares is None else shares
    mean = {}
    for name, tensor in pick(updates[0].returned, names).items():
        mean[name] = torch.zeros_like(tensor) if tensor.is_floating_point() else tensor.clone()
    summed = [name for name, tensor in mean.items() if tensor.is_floating_point()]
    if not summed:
        return mean
    sums = [mean[name] for name in summed]
    for share, update in zip(shares, updates, strict=True):
        torch._foreach_add_(sums, [update.returned[name] for name in summed], alpha=share)
    return mean
