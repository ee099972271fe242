"""Parameters that matter to a client are averaged over the clients for whom the same ones matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors, strip_prefix
from pflcore.method import Federation, Server, Update
from pflcore.methods import METHODS
from pflcore.methods._per_client_models import PerClientModels
from pflcore.options import option

_CRITICAL, _GLOBAL, _NEIGHBOURS = "critical/", "global/", "friends"


@METHODS.register
class FedCAC(PerClientModels):
    """What is critical to a client is averaged over clients like it until round β, all else over all.

    A parameter's sensitivity in a round is |Δw · w|. Those of the largest sensitivity, a share τ of each tensor, are
    the client's critical ones. With masks m of them, two clients overlap by O_ij = 1 − |m_i − m_j|₁ / (2 |m_i|₁). After
    round t clients j with O_ij ≥ mean + t / β · (max − mean), of all pairs' overlaps, are neighbours of i. A client
    receives the plain mean of its own and its neighbours' latest models where it is critical, and elsewhere FedAvg's
    mean. Buffers stay on the client. The defaults are the authors' for CIFAR-10; for CIFAR-100 τ = 0.4 and β = 170.
    """

    citation = "Wu et al., Bold but Cautious (FedCAC), ICCV 2023, section 3"
    keeps = ("buffers",)

    tau: float = option(0.5, ge=0, le=1, help="Share τ of critical parameters in each tensor; 0 is FedAvg.")
    beta: int = option(100, ge=0, help="Last round β after which critical parameters are averaged over like clients.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server, clients = super().init_server(initial, roles, federation), federation.clients
        for name, stored in self.models(server).items():
            server.extra[f"{_CRITICAL}{name}"] = torch.zeros_like(stored, dtype=torch.bool)
            server.extra[f"{_GLOBAL}{name}"] = initial[name].clone()
        device = next(iter(initial.values())).device
        # Who has trained is a neighbour of its own.
        server.extra[_NEIGHBOURS] = torch.zeros(clients, clients, dtype=torch.bool, device=device)
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
        index, extra = [update.client for update in updates], server.extra
        self.store(server, updates)
        for name, mean in self.average(updates, roles.generated).items():
            extra[f"{_GLOBAL}{name}"] = mean
            masks = [critical(update.sent[name], update.returned[name], self.tau) for update in updates]
            extra[f"{_CRITICAL}{name}"][index] = torch.stack(masks)
        trained = extra[_NEIGHBOURS].diagonal().clone()
        trained[index] = True
        known = trained.nonzero().flatten()
        near = torch.eye(len(known), dtype=torch.bool, device=known.device)
        if server.round <= self.beta and len(known) > 1:
            masks = [mask[known] for mask in strip_prefix(_CRITICAL, extra).values()]
            near |= neighbours(masks, server.round / self.beta)
        extra[_NEIGHBOURS] = torch.zeros_like(extra[_NEIGHBOURS])
        extra[_NEIGHBOURS][known.unsqueeze(1), known] = near
        return Server(server.shared, extra)


def critical(sent: Tensor, returned: Tensor, tau: float) -> Tensor:
    """Return which entries are among the share `tau` of largest sensitivity, above zero: booleans of their shape."""
    sensitivity = ((returned - sent) * returned).abs()
    count = int(tau * sensitivity.numel())
    if not count:
        return torch.zeros_like(sensitivity, dtype=torch.bool)
    return (sensitivity >= sensitivity.flatten().topk(count).values[-1]) & (sensitivity > 0)


def neighbours(masks: Sequence[Tensor], passed: float) -> Tensor:
    """Return whose masks (clients, …), of each tensor, are enough like whose: (clients, clients), of at least two.

    `passed` is how much of the way from the mean of all overlaps to the largest one the threshold has gone.
    """
    clients = len(masks[0])
    flat = (mask.flatten(1).float() for mask in masks)
    both = sum((one @ one.t() for one in flat), torch.zeros(())).double()
    own = both.diagonal()
    distance = own.unsqueeze(1) + own - 2 * both
    overlaps = 1 - distance / (2 * own.clamp_min(1)).unsqueeze(1)
    others = overlaps[~torch.eye(clients, dtype=torch.bool, device=overlaps.device)]
    largest = others.max()
    return overlaps >= torch.minimum(others.mean(), largest).lerp(largest, passed)
