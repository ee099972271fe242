"""Methods that train parts of a model in turn: FedRep, FedBABU, FedSelect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pflcore.client_view import model_part
from pflcore.groups import Roles, Tensors, add_prefix, pick, strip_prefix
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, Phase, Server, Steps, Update, sgd_step
from pflcore.methods import METHODS
from pflcore.methods._bases import check_exchanged
from pflcore.options import option


@METHODS.register
class FedRep(Method):
    """The last linear layer is personal and trained first, then the shared body under it.

    The first `head_epochs` epochs of a round train the classifier on the received body, the others train the body, each
    from zero momentum; the other part keeps its values to the bit. An epoch has as many steps as a pass over the
    client's samples, also under `training.local_steps`. Clients are weighted equally.
    """

    name = "fedrep"
    citation = "Collins et al., FedRep, ICML 2021, algorithm 1"
    personal = ("head",)
    own_averaging = "uniform"
    plain_sgd = True
    smoke: ClassVar[dict[str, Any]] = {"head_epochs": 0.5}  # smoke runs have a single local epoch
    schedule: str = option("alternating", choices=("alternating", "joint"), help="Head, then body; or both together.")
    head_epochs: float = option(4.0, gt=0, help="Epochs of the head, fewer than local epochs; 0.5 is half a pass.")
    finetune_epochs: int = option(0, ge=0, help="Epochs of tuning the head before a client is measured; not kept.")

    def tuning(self) -> Phase | None:
        tuning = super().tuning()
        return tuning if tuning is None or tuning.groups else replace(tuning, steps=Steps(), roles=("personal",))

    def phases(self) -> tuple[Phase, ...]:
        if self.schedule == "joint":
            return super().phases()
        return Phase(epochs=self.head_epochs, roles=("personal",)), Phase(roles=("shared",))


@METHODS.register
class FedBabu(Method):
    """Rounds train and average only the body; clients tune a copy of the model before they are measured.

    In all rounds the classifier is that of the initial model, neither trained nor sent. The tuning uses a client's own
    training samples and SGD without momentum or decay, and is discarded afterwards. `finetune_groups` replaces
    `finetune_parts`. Clients are weighted equally.
    """

    name = "fedbabu"
    citation = "Oh, Kim and Yun, FedBABU, ICLR 2022, algorithm 1"
    personal = ("head",)
    own_averaging = "uniform"
    untrained = ("head",)
    smoke: ClassVar[dict[str, Any]] = {"finetune_steps": 1}
    finetune_parts: str = option("all", choices=("head", "all"), help="What is tuned: the personal part alone, or all.")
    finetune_steps: int | None = option(None, ge=1, help="Steps of the tuning, on batches drawn anew; null: epochs.")
    finetune_epochs: int = option(5, ge=1, help="Passes of the tuning over a client's samples, without finetune_steps.")
    finetune_lr: float | None = option(None, gt=0, help="Learning rate of the tuning; null is that of the rounds.")

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(roles=("shared",)),)

    def tuning(self) -> Phase | None:
        tuning = super().tuning()
        if tuning is None or tuning.groups:
            return tuning
        return replace(tuning, steps=Steps(), roles=() if self.finetune_parts == "all" else ("personal",))


_VALUES, _MASK, _ROUNDS, _USED = "own/values/", "own/mask/", "own/rounds", "common/mask/"


@METHODS.register
class FedSelect(Method):
    """FedAvg in which the parameters that a client moves most become personal, more of them over time.

    A round begins with the client's values of the parameters in its mask, which is empty at first, and the server's
    values of all others. The client trains only the former in an extra pass, then only the latter (LocalAlt). Every few
    rounds of the client its mask grows: in each weight tensor a share p of the shared entries, those that moved most,
    becomes personal, up to a share α of the tensor. The server takes the plain mean of each parameter over the clients
    that shared it. Buffers are averaged.
    """

    name = "fedselect"
    beyond_mean = "its server averages a parameter over those who share it"
    citation = "Tamirisa et al., FedSelect, CVPR 2024"
    keeps = ("its values of the weights", "a mask of those that are personal")
    exchanges = ("masks of what is personal",)
    own_averaging = "uniform"
    ignores_unlabelled = True
    smoke: ClassVar[dict[str, Any]] = {"every": 1, "alternations": 1}
    rate: float = option(0.25, ge=0, le=1, help="Share p of what is shared in a tensor that goes personal at a time.")
    limit: float = option(0.8, ge=0, le=1, help="Largest share α of a tensor that may become personal; 0 is FedAvg.")
    every: int = option(3, ge=1, help="Rounds of a client after which its mask grows.")
    alternations: int = option(1, ge=1, help="Turns of personal and shared parameters, a pass of each but the last.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        weights = _weights(initial, roles, federation)
        check_exchanged(self, weights)
        masks = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in weights.items()}
        return {**add_prefix("values/", weights), **add_prefix("mask/", masks), "rounds": torch.tensor(0)}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        weights = _weights(initial, roles, federation)
        return {f"mask/{name}": torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in weights.items()}

    def eval_state(self, state: Tensors) -> Tensors:
        return {**model_part(state), **_merge(state)}

    def phases(self) -> tuple[Phase, ...]:
        personal, shared = Phase(Part("personal"), extra=True), Phase(Part("shared"), epochs=1)
        first = Phase(Part("personal", opens=True), extra=True)
        last = Phase(Part("shared", grows=self))
        return (first, *(shared, personal) * (self.alternations - 1), last)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        names = strip_prefix(_USED, server.shared).keys()
        plain = roles.shared - names - {f"{_USED}{name}" for name in names}
        shared = {**server.shared, **self.average(updates, plain)}
        shares = self.shares(updates)
        for name in names:
            total, count = torch.zeros_like(shared[name]), torch.zeros_like(shared[name])
            for share, update in zip(shares, updates, strict=True):
                counts = share * ~update.returned[f"{_USED}{name}"]
                total += counts * update.returned[name]
                count += counts
            shared[name] = torch.where(count > 0, total / torch.where(count > 0, count, 1.0), shared[name])
        return Server(shared)

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return the bytes of shared entries, and upwards also one bit for each entry of the masks."""
        masks = strip_prefix(_USED, update.returned)
        counts = torch.stack([mask.sum() for mask in masks.values()]).tolist()  # one device synchronisation
        down = sum(tensor.nbytes for name, tensor in update.returned.items() if not name.startswith(_USED))
        down -= sum(update.returned[name].itemsize * count for name, count in zip(masks, counts, strict=True))
        return down + sum(-(-mask.numel() // 8) for mask in masks.values()), down


@dataclass(frozen=True)
class Part(Steps):  # steps that train only the personal or only the shared parameters
    ignores_unlabelled = True
    trains: str  # "personal" or "shared"
    opens: bool = False  # whether it is the first phase of a round, which puts the client's values into the model
    grows: FedSelect | None = None  # in the last phase of a round: the method, whose options say how the mask grows

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        if self.opens:
            model = _merge(start)
            # The end of the round compares with these values to see how far it has moved the shared entries.
            values = {name: tensor.clone() for name, tensor in model.items()}
            start = {**start, **model, **add_prefix(_VALUES, values)}
        return super().begin(local, start)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        masks = strip_prefix(_MASK, state["model"])
        trained = masks.keys() if self.trains == "personal" else local.parameters
        after, loss = sgd_step(local, state, lambda params: self.loss(local, params, batch), trained)
        for name, mask in masks.items():  # masked gradients would not do: decay and momentum also move entries
            unchanged = ~mask if self.trains == "personal" else mask
            after["model"][name] = torch.where(unchanged, local.received[name], after["model"][name])
        return after, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        if self.grows is None:
            return state
        model, masks = state["model"], strip_prefix(_MASK, state["model"])
        rounds = model[_ROUNDS] + 1
        grows = rounds % self.grows.every == 0
        grown, values = {}, {}
        for name, mask in masks.items():
            values[name] = model[name].clone()
            moved = (model[name] - model[f"{_VALUES}{name}"]).abs()
            grown[name] = torch.where(grows, grow(mask, moved, self.grows.rate, self.grows.limit), mask)
        entries = {**add_prefix(_VALUES, values), **add_prefix(_MASK, grown), _ROUNDS: rounds}
        # The server averages what was shared in this round, so it receives the mask before it grew.
        return {**state, "model": {**model, **entries, **add_prefix(_USED, masks)}}


def grow(mask: Tensor, moved: Tensor, rate: float, limit: float) -> Tensor:
    """Return the mask and a share `rate` of its free entries, those with most `moved`, up to a share `limit` of all."""
    free = torch.where(mask, -1.0, moved)
    size = mask.sum()
    requested = torch.round(rate * (mask.numel() - size)).to(torch.int64)
    count = torch.minimum(requested, int(limit * mask.numel()) - size)
    ranked = free.flatten().sort(descending=True).values
    threshold = ranked.gather(0, (count - 1).clamp_min(0).unsqueeze(0))
    return mask | ((free >= threshold) & (free > 0) & (count > 0))


def _weights(initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
    trained = roles.shared & federation.parameters
    return {name: tensor for name, tensor in pick(initial, trained).items() if "weight" in name}


def _merge(state: Tensors) -> Tensors:
    values = strip_prefix(_VALUES, state)
    return {name: torch.where(mask, values[name], state[name]) for name, mask in strip_prefix(_MASK, state).items()}
