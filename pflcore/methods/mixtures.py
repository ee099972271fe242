"""Personal models that the server mixes with those of related clients: FedAMP, FedU, FedCAC."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, pick, strip_prefix
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.methods._bases import PerClientModels, check_exchanged
from pflcore.options import option


@METHODS.register
class FedAMP(PerClientModels):
    """Clients have their own models w_i and stay near mixtures u_i of these, which the server sends.

    A client minimises loss + λ/(2α) · ‖w − u_i‖² and is measured with its w_i at the end. u_i = Σ_j ξ_ij · w_j, over
    the latest models of all clients. With attention by distance ξ_ij = α/σ · exp(−‖w_i − w_j‖²/σ) for j ≠ i, and ξ_ii
    makes the sum 1. With attention by cosine, the paper's HeurFedAMP, ξ_ij is proportional to exp(σ · cos(w_i, w_j)),
    and ξ_ii is set. Buffers stay on the client.
    """

    name = "fedamp"
    citation = "Huang et al., FedAMP, AAAI 2021, algorithm 1"
    ignores_unlabelled = True
    keeps = ("its model", "buffers")
    own_averaging = None
    attention: str = option("distance", choices=("distance", "cosine"), help="What makes models similar, as above.")
    lam: float = option(1.0, ge=0, help="Weight λ of the distance to the mixture, divided by α.")
    alpha: float = option(1e4, gt=0, help="Step size α of the server, by which λ is divided.")
    sigma: float | None = option(None, gt=0, help="Width σ by distance, null: a million; or sharpness, null: 25.")
    own_weight: float | None = option(None, ge=0, le=1, help="ξ_ii by cosine; null: 1 / number of clients.")
    start: str = option("mixture", choices=("mixture", "own"), help="What training begins with: u_i or the last w_i.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own_weight is not None and self.attention == "distance":
            raise UserError("method fedamp: own_weight: with attention by distance it is what others leave to 1")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return pick(initial, roles.generated)

    def eval_state(self, state: Tensors) -> Tensors:
        return {**model_part(state), **strip_prefix(OWN, state)}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        check_exchanged(self, roles.generated)
        others = federation.members - 1
        if self.attention == "cosine" and not others:
            raise UserError("method fedamp: attention: cosine: it takes two clients")
        if self.attention == "distance" and self.alpha * others > self._sigma:
            raise UserError(f"method fedamp: alpha: {self.alpha:g} above sigma / {others} gives weights below 0")
        return super().init_server(initial, roles, federation)

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        index, models, sigma = list(clients), self.models(server), self._sigma
        flat = [entry.flatten(1) for entry in models.values()]
        diagonal, novel = (torch.arange(len(index)), torch.tensor(index)), list(server.federation.novel)
        if self.attention == "distance":
            squares = torch.stack([torch.cdist(entry[index], entry).square() for entry in flat]).sum(0)
            shares = self.alpha / sigma * torch.exp(-squares / sigma)
            shares[:, novel] = 0
            shares[diagonal] = 0
            shares[diagonal] = 1 - shares.sum(1)
        else:
            products = torch.stack([entry[index] @ entry.T for entry in flat]).sum(0)
            norms = torch.stack([entry.square().sum(1) for entry in flat]).sum(0).sqrt()
            scores = sigma * products / (norms[index, None] * norms)
            scores[:, novel] = -torch.inf
            scores[diagonal] = -torch.inf
            own_weight = 1 / server.federation.members if self.own_weight is None else self.own_weight
            shares = (1 - own_weight) * scores.softmax(1)
            shares[diagonal] = own_weight
        return {name: (shares @ tensor.flatten(1)).view(-1, *tensor.shape[1:]) for name, tensor in models.items()}

    @property
    def _sigma(self) -> float:
        return self.sigma or (1e6 if self.attention == "distance" else 25.0)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        last = strip_prefix(OWN, start).items() if self.start == "own" else ()
        return super().begin(local, {**start, **{name: tensor.clone() for name, tensor in last}})

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        distance = sum(((params[name] - local.received[name]) ** 2).sum() for name in strip_prefix(OWN, params))
        return super().loss(local, params, batch) + 0.5 * self.lam / self.alpha * distance

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        return {**state, "model": {**model, **add_prefix(OWN, pick(model, strip_prefix(OWN, model)))}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        self.store(server, updates)
        return server


@METHODS.register
class FedU(PerClientModels):
    """Clients have their own models; after a round the server moves the sampled ones towards each other.

    The server sets w_k ← w_k − strength · Σ_l coupling · (w_k − w_l) over the sampled clients l. ``strength`` stands
    for 0.5 · η · L · β · K of the authors' code. Buffers stay on the client.
    """

    name = "fedu"
    citation = "Dinh et al., FedU, arXiv 2102.07148, 2021, algorithm 1"
    coupling: float = option(0.5, ge=0, help="Relation a of any two clients; 0: each trains alone.")
    strength: float = option(7.5e-4, ge=0, help="Step along the differences; the default is in effect Local.")

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        step = self.strength * self.coupling
        for name, models in self.models(server).items():
            returned = torch.stack([update.returned[name] for update in updates])
            differences = len(updates) * (returned - returned.mean(0))  # Σ_l (w_k − w_l)
            models[[update.client for update in updates]] = returned - step * differences
        return Server(self.average(updates, roles.shared), server.extra)


_CRITICAL, _GLOBAL, _NEIGHBOURS = "critical/", "global/", "friends"


@METHODS.register
class FedCAC(PerClientModels):
    """Critical parameters are averaged over similar clients until round β, all others over all clients.

    The share τ of entries with the largest |Δw · w| in each tensor is critical; m masks it. Two clients overlap by O_ij
    = 1 − |m_i − m_j|₁ / (2 |m_i|₁). After round t all j with O_ij ≥ mean + t/β · (max − mean) of all overlaps are
    neighbours of i. Critical entries of a client are the plain mean of its and its neighbours' latest models, others
    FedAvg's. Buffers stay on the client. The defaults are the authors' for CIFAR-10; for CIFAR-100 τ = 0.4 and β = 170.
    """

    name = "fedcac"
    citation = "Wu et al., Bold but Cautious (FedCAC), ICCV 2023, section 3"
    keeps = ("buffers",)
    tau: float = option(0.5, ge=0, le=1, help="Share τ of critical parameters in each tensor; 0 is FedAvg.")
    beta: int = option(100, ge=0, help="Last round β after which critical parameters are averaged over like clients.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        clients = federation.clients
        for name, stored in self.models(server).items():
            server.extra[f"{_CRITICAL}{name}"] = torch.zeros_like(stored, dtype=torch.bool)
            server.extra[f"{_GLOBAL}{name}"] = initial[name].clone()
        # [i, j]: whether j is a neighbour of i; a client that has trained is its own neighbour.
        server.extra[_NEIGHBOURS] = next(iter(initial.values())).new_zeros(clients, clients).bool()
        return server

    def mix(self, server: Server, clients: Sequence[int]) -> Tensors:
        index, mean = list(clients), strip_prefix(_GLOBAL, server.extra)
        shares = server.extra[_NEIGHBOURS][index].float()
        shares /= shares.sum(1, keepdim=True).clamp_min(1)
        mixed = {}
        for name, models in self.models(server).items():
            custom = (shares @ models.flatten(1)).view(len(index), *mean[name].shape)
            mixed[name] = torch.where(server.extra[f"{_CRITICAL}{name}"][index], custom, mean[name])
        return mixed

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        index = [update.client for update in updates]
        extra = server.extra
        self.store(server, updates)
        for name, mean in self.average(updates, roles.generated).items():
            extra[f"{_GLOBAL}{name}"] = mean
            masks = [critical(update.sent[name], update.returned[name], self.tau) for update in updates]
            extra[f"{_CRITICAL}{name}"][index] = torch.stack(masks)
        has_trained = extra[_NEIGHBOURS].diagonal().clone()
        has_trained[index] = True
        trained = has_trained.nonzero().flatten()
        near = torch.eye(len(trained), dtype=torch.bool, device=trained.device)
        if server.round <= self.beta and len(trained) > 1:
            masks = [mask[trained] for mask in strip_prefix(_CRITICAL, extra).values()]
            near |= neighbours(masks, server.round / self.beta)
        extra[_NEIGHBOURS] = torch.zeros_like(extra[_NEIGHBOURS])
        extra[_NEIGHBOURS][trained.unsqueeze(1), trained] = near
        return Server(server.shared, extra)


def critical(sent: Tensor, returned: Tensor, tau: float) -> Tensor:
    """Return a mask of the share `tau` of entries with the largest sensitivity |Δw · w|, if that is above zero."""
    sensitivity = ((returned - sent) * returned).abs()
    largest = sensitivity.flatten().topk(int(tau * sensitivity.numel())).values
    return (sensitivity >= largest[-1]) & (sensitivity > 0) if len(largest) else torch.zeros_like(sensitivity).bool()


def neighbours(masks: Sequence[Tensor], passed: float) -> Tensor:
    """Return a mask (clients, clients) of neighbours from masks (clients, …) of each tensor, for at least two clients.
    The threshold lies a share `passed` of the way from the mean of all overlaps to the largest one."""
    vectors = (mask.flatten(1).float() for mask in masks)
    common = sum((tensor @ tensor.t() for tensor in vectors), torch.zeros(())).double()  # entries critical for both
    sizes = common.diagonal()
    distance = sizes.unsqueeze(1) + sizes - 2 * common
    overlaps = 1 - distance / (2 * sizes.clamp_min(1)).unsqueeze(1)
    others = overlaps[~torch.eye(len(overlaps), dtype=torch.bool, device=overlaps.device)]
    largest = others.max()
    return overlaps >= torch.minimum(others.mean(), largest).lerp(largest, passed)
