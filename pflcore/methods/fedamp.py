"""Clients' own models, each drawn to a mixture of all in which similar ones count most."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.methods._per_client_models import PerClientModels
from pflcore.options import option

# σ where the option leaves it open.
_WIDTH, _SHARPNESS = 1e6, 25.0


@METHODS.register
class FedAMP(PerClientModels):
    """Clients have models w_i of their own; the server sends each a mixture u_i of them to stay near.

    A client minimises loss + λ/(2α) · ‖w − u_i‖², and returns and is measured with the w_i that it ends with. The
    server keeps the last model of every client; u_i = Σ_j ξ_ij · w_j, where for j ≠ i

    - attention by distance: ξ_ij = α/σ · exp(−‖w_i − w_j‖²/σ), and ξ_ii is what is left to 1;
    - attention by cosine, the paper's HeurFedAMP: ξ_ij is in proportion to exp(σ · cos(w_i, w_j)), ξ_ii is set.

    Buffers stay on the client. A client that is not sampled keeps its model, and counts with it. Clients are not
    weighted by samples. With the defaults the pull of λ/α is weak: what clients learn from each other comes from
    beginning at u_i.
    """

    citation = "Huang et al., FedAMP, AAAI 2021, algorithm 1"
    ignores_unlabelled = True
    keeps = ("its model", "buffers")
    own_averaging = None

    attention: str = option("distance", choices=("distance", "cosine"), help="What makes models similar, as above.")
    lam: float = option(1.0, ge=0, help="Weight λ of the distance to the mixture, divided by α.")
    alpha: float = option(1e4, gt=0, help="Step size α of the server, by which λ is divided.")
    sigma: float | None = option(
        None,
        gt=0,
        help="Width σ of attention by distance, null is a million; sharpness σ of that by cosine, null is 25.",
    )
    own_weight: float | None = option(
        None, ge=0, le=1, help="A client's own weight ξ_ii under attention by cosine; null: 1 / number of clients."
    )
    start: str = option(
        "mixture", choices=("mixture", "own"), help="What local training begins with: the mixture u_i or the last w_i."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own_weight is not None and self.attention == "distance":
            raise UserError("method fedamp: own_weight: with attention by distance it is what others leave to 1")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return {name: tensor for name, tensor in initial.items() if name in roles.generated}

    def eval_state(self, state: Tensors) -> Tensors:
        return {**model_part(state), **strip_prefix(OWN, state)}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        """Return a server with every client's model; raises :class:`UserError` where there is no mixture of them."""
        others = federation.clients - 1
        if not roles.generated:
            raise UserError("method fedamp: all of the model is personal, so there is nothing to mix")
        if self.attention == "cosine" and not others:
            raise UserError("method fedamp: attention: cosine: it takes two clients")
        if self.attention == "distance" and self.alpha * others > (self.sigma or _WIDTH):
            raise UserError(
                f"method fedamp: alpha: {self.alpha:g} is more than sigma / {others}, so that {others} others could "
                "leave a client a weight below 0"
            )
        return super().init_server(initial, roles, federation)

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        models = self.models(server)
        shares = self.shares_of(list(models.values()), clients)
        return {name: (shares @ tensor.flatten(1)).view(-1, *tensor.shape[1:]) for name, tensor in models.items()}

    def shares_of(self, models: Sequence[Tensor], clients: Sequence[int]) -> Tensor:
        """Return ξ, what each of all models counts for each of the clients: (clients, all) of the entries (all, …)."""
        chosen, flat = list(clients), [entry.flatten(1) for entry in models]
        places = torch.arange(len(chosen)), torch.tensor(chosen)
        if self.attention == "distance":
            sigma = self.sigma or _WIDTH
            squares = torch.stack([torch.cdist(entry[chosen], entry).square() for entry in flat]).sum(0)
            shares = self.alpha / sigma * torch.exp(-squares / sigma)
            shares[places] = 0
            shares[places] = 1 - shares.sum(1)
            return shares
        products = torch.stack([entry[chosen] @ entry.T for entry in flat]).sum(0)
        norms = torch.stack([entry.square().sum(1) for entry in flat]).sum(0).sqrt()
        scores = (self.sigma or _SHARPNESS) * products / (norms[chosen, None] * norms)
        scores[places] = -torch.inf
        mine = 1 / len(norms) if self.own_weight is None else self.own_weight
        shares = (1 - mine) * scores.softmax(1)
        shares[places] = mine
        return shares

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        last = strip_prefix(OWN, start) if self.start == "own" else {}
        return super().begin(local, {**start, **{name: tensor.clone() for name, tensor in last.items()}})

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        distance = sum(((params[name] - local.received[name]) ** 2).sum() for name in strip_prefix(OWN, params))
        return super().loss(local, params, batch) + 0.5 * self.lam / self.alpha * distance

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        ended = {name: model[name] for name in strip_prefix(OWN, model)}
        return {**state, "model": {**model, **add_prefix(OWN, ended)}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        self.store(server, updates)
        return server
