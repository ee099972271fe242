"""Methods that train a global model and correct the drift of clients: FedProx, MOON, FedNova, FedDyn, SCAFFOLD."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, pick, split, strip_prefix
from pflcore.method import COMMON, OWN, Batch, ClientView, Federation, LocalState, Method, Server, Update, model_part
from pflcore.methods import METHODS
from pflcore.methods._bases import check_classifier, check_exchanged
from pflcore.options import option


@METHODS.register
class FedProx(Method):
    """FedAvg whose clients stay near the model they received: loss + μ/2 · ‖w − w_received‖².

    The proximal term leaves out entries that stay on the client.
    """

    name = "fedprox"
    citation = "Li et al., MLSys 2020"
    ignores_unlabelled = True
    mu: float = option(0.01, ge=0, help="Weight μ of the proximal term; 0 is FedAvg.")

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        exchanged = local.parameters & local.roles.shared
        distance = sum(((params[name] - local.received[name]) ** 2).sum() for name in params if name in exchanged)
        return super().loss(local, params, batch) + 0.5 * self.mu * distance


@METHODS.register
class Moon(Method):
    """FedAvg whose clients keep features near the global model's, away from their previous model's.

    The loss is the cross-entropy plus μ · mean of −log(e^(s(z, z_g) / τ) / (e^(s(z, z_g) / τ) + e^(s(z, z_p) / τ))). s
    is the cosine similarity; z are features of the model in training, z_g of the received model, z_p of the model with
    which the client ended its last round. Features are the classifier's input. In paper and authors' code they are the
    256 outputs of two linear layers with ReLU between them: ``projection: 256`` adds these as the group ``projection``.
    """

    name = "moon"
    citation = "Li, He and Song, MOON, CVPR 2021"
    keeps = ("its previous model",)
    mu: float = option(1.0, ge=0, help="Weight μ; the authors take 5 on CIFAR-10, 1 on CIFAR-100; 0 is FedAvg.")
    tau: float = option(0.5, gt=0, help="Temperature τ: cosine similarities are divided by it.")
    projection: int | None = option(None, ge=1, later=True, help="Width of a projection before it; paper: 256.")

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        if (width := self.projection) is None:
            return {}
        *_, (name, last) = model.named_modules()
        if not isinstance(last, nn.Linear):
            kind = type(last).__name__
            raise UserError(f"method moon: projection: the backbone ends with {kind}, not a linear layer")
        parent, _, child = name.rpartition(".")
        classifier = nn.Linear(width, last.out_features, bias=last.bias is not None)
        layers = {"hidden": nn.Linear(last.in_features, last.in_features), "relu": nn.ReLU()}
        projection = nn.Sequential(OrderedDict(layers, out=nn.Linear(last.in_features, width)))
        if isinstance(model, nn.Sequential):
            delattr(model, name)
            model.add_module("projection", projection)
            model.add_module(name, classifier)
        else:
            # Hooks that read the classifier's input are registered later, so they see the projection's output.
            classifier.register_forward_pre_hook(partial(_project, projection))
            setattr(model.get_submodule(parent), child, classifier)
            model.add_module("projection", projection)
        return {"projection": r"projection\."}

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation)
        if self.projection is not None and federation.features != self.projection:
            raise UserError("method moon: projection: the backbone's last linear layer is not its classifier")
        return pick(initial, roles.all)

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        logits, z = local.features(params, batch.inputs)
        received, previous = local.frozen(local.received), local.frozen({**params, **strip_prefix(OWN, params)})
        to_received = F.cosine_similarity(z, local.features(received, batch.inputs)[1], dim=-1)
        to_previous = F.cosine_similarity(z, local.features(previous, batch.inputs)[1], dim=-1)
        # The −log of the docstring, without overflow.
        contrast = F.softplus((to_previous - to_received) / self.tau).mean()
        return local.cross_entropy(logits, batch.labels) + self.mu * contrast

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        return {**state, "model": {**model, **add_prefix(OWN, pick(model, strip_prefix(OWN, model)))}}


def _project(projection: nn.Module, classifier: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (projection(inputs[0]),)


@METHODS.register
class FedNova(Method):
    """FedAvg with normalised updates, so that clients with more steps do not pull the model their way.

    A client's update D = w_received − w is divided by a, its number of steps, or with momentum ρ the sum over steps j
    of (1 − ρ^j) / (1 − ρ). The server sets w to w − τ · Σ p · D / a with τ = Σ p · a, p the clients' weights in
    averages. Running statistics are averaged as in FedAvg, since in the same way variances could fall below zero.
    """

    name = "fednova"
    citation = "Wang et al., FedNova, NeurIPS 2020, equation 7"
    beyond_mean = "its server sums changes divided by their steps"
    plain_sgd = True

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        rho, shares = server.federation.momentum, self.shares(updates)
        counts = [update.steps for update in updates]
        norms = [(steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho) for steps in counts]
        effective = sum(share * norm for share, norm in zip(shares, norms, strict=True))
        shared = self.average(updates, roles.shared)
        for name in shared.keys() & server.federation.parameters:
            shared[name] = server.shared[name].clone()
            for share, norm, update in zip(shares, norms, updates, strict=True):
                shared[name].add_(update.returned[name] - update.sent[name], alpha=effective * share / norm)
        return Server(shared, server.extra)


class _Corrected(Method):  # base of methods whose clients keep a tensor per shared parameter, zero at first
    own_averaging = "uniform"

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        corrected = roles.shared & federation.parameters
        check_exchanged(self, corrected)
        return {name: torch.zeros_like(tensor) for name, tensor in pick(initial, corrected).items()}

    def eval_state(self, state: Tensors) -> Tensors:
        return model_part(state)


@METHODS.register
class FedDyn(_Corrected):
    """FedAvg whose clients minimise loss − ⟨g_i, w⟩ + α/2 · ‖w − w_received‖², g_i their correction.

    g_i is zero at first; at the end of a round it becomes g_i − α · (w_i − w_received). The server keeps h, the mean of
    g_i over all N clients. After a round with plain mean w̄ of P clients, h ← h − α · P/N · (w̄ − w), w ← w̄ − h/α.
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
        terms = []
        for name, correction in strip_prefix(OWN, params).items():
            squares = (params[name] - local.received[name]) ** 2
            terms.append((0.5 * self.alpha * squares - correction * params[name]).sum())
        return super().loss(local, params, batch) + sum(terms)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model = state["model"]
        corrections = {}
        for name, correction in strip_prefix(OWN, model).items():
            corrections[OWN + name] = correction - self.alpha * (model[name] - local.received[name])
        return {**state, "model": {**model, **corrections}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shared = self.average(updates, roles.shared)
        extra = {}
        for name, before in strip_prefix("state/", server.extra).items():
            change = len(updates) / server.federation.members * (shared[name] - server.shared[name])
            after = before - self.alpha * change
            extra[f"state/{name}"] = after
            shared[name] = shared[name] - after / self.alpha
        return Server(shared, extra)


@METHODS.register
class Scaffold(_Corrected):
    """FedAvg whose local steps are corrected by how a client's gradients differ from the global ones.

    A client has a control variate c_i, the server c, both zero at first. A local step uses gradient − c_i + c. After K
    steps with learning rate η from x to y, c_i becomes c_i − c + (x − y) / (K η), the paper's second option. The server
    sets x ← x + η_g · mean (y − x), clients weighted equally, and c ← c + Σ change of c_i / N. Momentum and decay act
    on the corrected gradient, and through it on c_i.
    """

    name = "scaffold"
    citation = "Karimireddy et al., SCAFFOLD, ICML 2020, algorithm 1, option II"
    beyond_mean = "its server sums control variates"
    returns_changes = True
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
        trained, rest = split(model, local.parameters)
        grads, loss = local.gradient(lambda params: self.loss(local, {**params, **rest}, batch), trained)
        for name, variate in strip_prefix(OWN, rest).items():
            grads[name] = grads[name] - variate + rest[COMMON + name]
        trained, opt_state = local.sgd(trained, grads, state["opt_state"])
        return {"model": {**model, **trained}, "opt_state": opt_state, "passed": {"rates": rates}}, loss

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        model, passed = state["model"], state["passed"]["rates"]
        variates = {}
        for name, variate in strip_prefix(COMMON, model).items():
            change = (local.received[name] - model[name]) / passed - variate
            variates[COMMON + name] = change
            variates[OWN + name] = model[OWN + name] + change
        return {**state, "model": {**model, **variates}}

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        shared = self.average(updates, roles.shared)
        for name, variate in strip_prefix(COMMON, server.shared).items():
            shared[name] = server.shared[name].lerp(shared[name], self.server_step)
            changes = torch.stack([update.returned[COMMON + name] for update in updates])
            shared[COMMON + name] = variate + changes.sum(0) / server.federation.members
        return Server(shared)
