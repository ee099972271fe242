"""Averaging of normalised updates."""

from __future__ import annotations

from collections.abc import Sequence

from pflcore.groups import Roles
from pflcore.method import Method, Server, Update
from pflcore.methods import METHODS


@METHODS.register
class FedNova(Method):
    """FedAvg in which clients that take more steps do not pull the model their way.

    A client's update D = w_received − w is divided by the weight a that its gradients have in it: the number of steps,
    or with momentum ρ the sum over steps of (1 − ρ^j) / (1 − ρ). The server takes w − τ · Σ p · D / a with τ = Σ p · a,
    over the sampled clients, p what they count in averages, by default their share of the samples. Running statistics
    are averaged as in FedAvg.
    """

    citation = "Wang et al., FedNova, NeurIPS 2020, equation 7"
    plain_sgd = True

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shares = self.shares(updates)
        norms = [gradient_weight(update.steps, server.federation.momentum) for update in updates]
        effective = sum(share * norm for share, norm in zip(shares, norms, strict=True))
        shared = self.average(updates, roles.shared)
        for name, before in server.shared.items():
            # An entry that training does not change, or that is a counter, is what the average says.
            if not before.is_floating_point():
                continue
            moved = before.clone()
            for share, norm, update in zip(shares, norms, updates, strict=True):
                moved.add_(update.returned[name] - update.sent[name], alpha=effective * share / norm)
            shared[name] = moved
        return Server(shared, server.extra)


def gradient_weight(steps: int, momentum: float) -> float:
    """Return the sum of the weights that a client's gradients have in its update, in units of the learning rate."""
    if not momentum:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
