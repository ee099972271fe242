"""Global models whose clients or server correct for the drift of clients: FedNova, FedDyn, SCAFFOLD."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import COMMON, OWN, Batch, ClientView, Federation, LocalState, Method, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.methods._features import need_exchanged
from pflcore.options import option


@METHODS.register
class FedNova(Method):
    """FedAvg in which clients that take more steps do not pull the model their way.

    A client's update D = w_received − w is divided by the weight a that its gradients have in it: the number of steps,
    or with momentum ρ the sum over steps of (1 − ρ^j) / (1 − ρ). The server takes w − τ · Σ p · D / a with τ = Σ p · a,
    over the sampled clients, p what they count in averages. Running statistics are averaged as in FedAvg.
    """

    name = "fednova"
    citation = "Wang et al., FedNova, NeurIPS 2020, equation 7"
    plain_sgd = True

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shares = self.shares(updates)
        norms = [gradient_weight(update.steps, server.federation.momentum) for update in updates]
        effective = sum(share * norm for share, norm in zip(shares, norms, strict=True))
        shared = self.average(updates, roles.shared)
        for name, before in server.shared.items():
            if before.is_floating_point():  # else a counter
                shared[name] = before.clone()
                for share, norm, update in zip(shares, norms, updates, strict=True):
                    shared[name].add_(update.returned[name] - update.sent[name], alpha=effective * share / norm)
        return Server(shared, server.extra)


def gradient_weight(steps: int, momentum: float) -> float:
    """Return the sum of the weights that a client's gradients have in its update, in units of the learning rate."""
    if not momentum:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class _Corrected(Method):
    """The base of methods whose clients keep a tensor beside each shared parameter, zero at first."""

    own_averaging = "uniform"

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        corrected = roles.shared & federation.parameters
        need_exchanged(self, corrected)
        return {name: torch.zeros_like(tensor) for name, tensor in initial.items() if name in corrected}

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)


@METHODS.register
class FedDyn(_Corrected):
    """FedAvg whose clients minimise loss − ⟨g_i, w⟩ + α/2 · ‖w − w_received‖², g_i their correction.

    At the end of a round g_i, zero at first, becomes g_i − α · (w_i − w_received). The server has h, the mean of g_i
    over all N clients. It takes h ← h − α · P/N · (w̄ − w), w̄ the mean of what P clients returned, all counting alike,
    and then w ← w̄ − h/α. A small α is a weak hold and a long step of the server.
    """

    name = "feddyn"
    citation = "Acar et al., FedDyn, ICLR 2021, algorithm 1"
    keeps = ("a correction of its gradients",)
    ignores_unlabelled = True

    alpha: float = option(0.01, gt=0, help="Weight α of the hold; the paper takes the best of 0.1, 0.01 and 0.001.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        server.extra = add_prefix("state/", self.init_client(initial, roles, federation))
        return server

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        hold = sum(
            (0.5 * self.alpha * (params[name] - local.received[name]) ** 2 - correction * params[name]).sum()
            for name, correction in strip_prefix(OWN, params).items()
        )
        return super().loss(local, params, batch) + hold

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        corrections = {
            name: correction - self.alpha * (model[name] - local.received[name])
            for name, correction in strip_prefix(OWN, model).items()
        }
        return {**state, "model": {**model, **add_prefix(OWN, corrections)}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shared, extra = self.average(updates, roles.shared), {}
        for name, before in strip_prefix("state/", server.extra).items():
            moved = len(updates) / server.federation.clients * (shared[name] - server.shared[name])
            extra[f"state/{name}"] = after = before - self.alpha * moved
            shared[name] = shared[name] - after / self.alpha
        return Server(shared, extra)


@METHODS.register
class Scaffold(_Corrected):
    """FedAvg whose local steps are corrected by how the client's gradients differ from all clients'.

    A client keeps a control variate c_i, the server has c, both zero at first. A local step descends on gradient
    − c_i + c. After K steps at learning rate η from the received x to y, c_i becomes c_i − c + (x − y) / (K η), the
    second of the paper's two options. The server takes x ← x + η_g · mean (y − x), all clients counting alike, and
    c ← c + Σ change of c_i / N, N all clients. Momentum and decay act on the corrected gradient, and so on c_i.
    """

    name = "scaffold"
    citation = "Karimireddy et al., SCAFFOLD, ICML 2020, algorithm 1, option II"
    keeps = ("a control variate",)
    exchanges = ("control variates",)
    plain_sgd = True
    ignores_unlabelled = True

    server_step: float = option(1.0, gt=0, help="The server's step size η_g; 1 is the mean of what clients return.")

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        return self.init_client(initial, roles, federation)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        variate = next(iter(strip_prefix(COMMON, start).values()))
        return {**super().begin(local, start), "passed": {"rates": torch.zeros_like(variate.flatten()[0])}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model, rates = state["model"], state["passed"]["rates"] + local.lr
        moving, rest = split(model, local.parameters)
        grads, loss = local.gradient(lambda params: self.loss(local, {**params, **rest}, batch), moving)
        for name, variate in strip_prefix(OWN, rest).items():
            grads[name] = grads[name] - variate + rest[COMMON + name]
        moving, opt_state = local.sgd(moving, grads, state["opt_state"])
        return {"model": {**model, **moving}, "opt_state": opt_state, "passed": {"rates": rates}}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, passed = state["model"], state["passed"]["rates"]
        changes = {
            name: (local.received[name] - model[name]) / passed - variate
            for name, variate in strip_prefix(COMMON, model).items()
        }
        variates = {name: variate + changes[name] for name, variate in strip_prefix(OWN, model).items()}
        return {**state, "model": {**model, **add_prefix(OWN, variates), **add_prefix(COMMON, changes)}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shared = self.average(updates, roles.shared)
        for name, variate in strip_prefix(COMMON, server.shared).items():
            shared[name] = server.shared[name].lerp(shared[name], self.server_step)
            changes = torch.stack([update.returned[COMMON + name] for update in updates])
            shared[COMMON + name] = variate + changes.sum(0) / server.federation.clients
        return Server(shared)
