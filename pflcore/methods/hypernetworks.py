"""Methods whose server generates clients' models by a hypernetwork: pFedHN, FedOFA, FedTP; and FedTP+FedRoD."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import MOMENTA, Batch, ClientView, Federation, Method, Server, Update
from pflcore.methods import METHODS
from pflcore.methods.classifiers import FedRoD
from pflcore.operators.filter_attention import KINDS, PARTS, FilterAttention, masked, masks, orthogonality
from pflcore.operators.hypernetworks import HyperNetwork
from pflcore.options import option

_HYPER = "hyper/"


@dataclass(frozen=True, kw_only=True)
class HypernetworkMethod(Method):
    """Base of methods whose server generates W_i = h(z_i; φ) from an embedding z_i per client.

    The server averages shared entries. It takes one SGD step with the gradient of Σ p_i · ⟨h(z_i; φ), before_i −
    after_i⟩ with respect to φ and all embeddings; p_i are the clients' weights in averages. ``Server.extra`` has the
    parameters of the hypernetwork h as ``hyper/…`` and their momenta as ``momentum/…``.
    """

    beyond_mean: ClassVar[str] = "its server trains a hypernetwork by the sum of changes"

    embedding: int | None = option(None, ge=1, help="Width of a client's embedding; null is floor(1 + clients / 4).")
    hidden: int = option(100, ge=1, help="Width of the hypernetwork's hidden layers.")
    layers: int = option(4, ge=1, help="Linear layers of the hypernetwork before its heads.")
    server_lr: float = option(0.01, gt=0, help="Learning rate of the hypernetwork's SGD.")
    server_momentum: float = option(0.9, ge=0, lt=1, help="Momentum of the hypernetwork's SGD.")
    server_weight_decay: float = option(1e-3, ge=0, help="L2 coefficient of the hypernetwork's SGD.")
    server_clip: float | None = option(50.0, gt=0, help="Largest norm of the hypernetwork's gradient; null: any.")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        width = self.embedding or 1 + federation.clients // 4
        hyper = HyperNetwork(federation.clients, width, self.hidden, self.layers, federation.generated)
        device = next(iter(initial.values())).device
        for name, tensor in hyper.init(federation.seed).items():
            server.extra[f"{_HYPER}{name}"] = tensor.to(device)
            server.extra[f"{MOMENTA}{name}"] = torch.zeros_like(tensor, device=device)
        return server

    def make(self, server: Server, clients: Sequence[int]) -> Tensors:
        """Return the generated entries of some clients, with gradients: name → (clients, \\*shape)."""
        hyper, params = self.hypernetwork(server)
        return hyper(params, clients)

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        with torch.no_grad():
            generated = self.make(server, clients)
        return [{name: tensor[row] for name, tensor in generated.items()} for row in range(len(clients))]

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        pairs = list(zip(self.shares(updates), updates, strict=True))
        changes = {}
        for name in server.federation.generated:
            terms = [share * (update.sent[name] - update.returned[name]) for share, update in pairs]
            changes[name] = torch.stack(terms)
        self.server_step(server, [update.client for update in updates], changes)
        return replace(server, shared=self.average(updates, roles.shared))

    def hypernetwork(self, server: Server) -> tuple[HyperNetwork, Tensors]:
        """Return the hypernetwork and its parameters."""
        # Sorted: the rounding of sums depends on the order of entries.
        params = dict(sorted(strip_prefix(_HYPER, server.extra).items()))
        targets = dict(sorted(server.federation.generated.items()))
        clients, width = params["embedding"].shape
        return HyperNetwork(clients, width, self.hidden, self.layers, targets), params

    def server_step(
        self, server: Server, clients: Sequence[int], upstream: Tensors, gradients: Tensors | None = None
    ) -> None:
        r"""Take one step of the server's SGD, in place.

        `upstream` has the gradients of generated entries, (clients, \*shape), `gradients` those of other entries of
        ``server.extra``, whose momenta have names that begin with ``momentum/``.
        """
        hyper, params = self.hypernetwork(server)
        grads = dict(sorted((gradients or {}).items()))
        if self.server_clip is not None:
            squares = [grad.square().sum() for grad in grads.values()]
            norm = torch.stack([hyper.squared_norm(params, clients, upstream), *squares]).sum().sqrt()
            factor = (self.server_clip / (norm + 1e-6)).clamp(max=1)  # as in PyTorch's clip_grad_norm_
            grads = {name: grad * factor for name, grad in grads.items()}
            upstream = {name: grad * factor for name, grad in upstream.items()}
        lr, rho, decay = self.server_lr, self.server_momentum, self.server_weight_decay
        momenta = strip_prefix(MOMENTA, server.extra)
        hyper.sgd_step(params, momenta, clients, upstream, lr=lr, momentum=rho, weight_decay=decay)
        with torch.no_grad():
            for name, grad in grads.items():
                param = server.extra[name]
                param.add_(momenta[name].mul_(rho).add_(grad).add_(param, alpha=decay), alpha=-lr)


@METHODS.register
class PFedHN(HypernetworkMethod):
    """Whole models are generated per client from a learned embedding; clients keep nothing.

    A client trains θ_i = h(z_i; φ). h, an MLP with a linear head per tensor, and the embeddings take one SGD step along
    the client's change. All clients are measured with h(z_i). Buffers are averaged. The paper trains one client per
    round, for 5000 rounds of 50 batches, with gradients clipped at 50 on both sides; FedTP's comparison has ``hidden:
    150, server_clip: null``. pFedHN-PC is ``also_personal: [head]``.
    """

    name = "pfedhn"
    citation = "Shamsian, Navon, Fetaya and Chechik, pFedHN, ICML 2021, algorithm 1"
    generated = (ALL,)
    smoke: ClassVar[dict[str, Any]] = {"hidden": 16}


_ATTENTION = "attention/"


@METHODS.register
class FedOFA(HypernetworkMethod):
    """Whole models are generated as in pFedHN, then their filters are recalibrated by attention.

    After attention, pruning (AGPS) sets the smallest weights of convolutions to zero; clients do not train these. The
    server's step uses the gradient of Σ p_i · (⟨θ_i, before_i − after_i⟩ + λ · ‖O·Oᵀ − I‖²). θ_i is the recalibrated
    model, the last term the mean over convolutions, with filters as the rows of O; ``lam: 0`` is FedOFA*. Clients are
    measured with the pruned model. The paper uses 8 heads for CIFAR-10 (intra alone: 2) and 2 for CIFAR-100 (intra: 8).
    """

    name = "fedofa"
    citation = "Yang et al., FedOFA, arXiv 2311.12049, 2023, section 3"
    ignores_unlabelled = True
    # Names 'conv', so that a backbone without convolutions is refused: it has nothing to recalibrate.
    generated = ("conv", ALL)
    smoke: ClassVar[dict[str, Any]] = {"embedding": 8, "hidden": 16, "heads": 2}
    kind: str = option("tfa", choices=KINDS, help="Attention by filter (intra), by layer (inter), or both (tfa).")
    heads: int = option(8, ge=1, help="Heads of the attention.")
    mix: float = option(0.5, ge=0, le=1, help="Share of intra in tfa; the rest is inter.")
    scale: bool = option(False, help="Divide attention scores by the root of the vectors' length; the paper does not.")
    bias: bool = option(False, help="Whether the attention has biases; with them training diverges.")
    filter_embedding: str = option(
        "pointwise", choices=("pointwise", "dense"), later=True, help="By a number or matrix."
    )
    lam: float = option(1e-4, ge=0, help="Weight λ of orthogonal regularisation; 0: FedOFA*, without.")
    percent: float = option(0.0, ge=0, lt=100, help="Weights of each layer that pruning drops, in percent; 0: none.")
    parts: str = option("conv", choices=PARTS, help="Whether pruning is of convolutions only, or of all tensors.")
    embedding: int | None = option(100, ge=1, help="Width of a client's embedding; null is floor(1 + clients / 4).")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        of_convolutions = self.kind != "none" or self.lam or (self.percent and self.parts == "conv")
        if of_convolutions and not any(len(shape) == 4 for shape in federation.generated.values()):
            remedy = "use a backbone with convolutions, or kind: none, lam: 0 and parts: all"
            raise UserError(f"method fedofa: no convolution is generated; {remedy}")
        server = super().init_server(initial, roles, federation)
        device = next(iter(initial.values())).device
        for name, tensor in self._attention(self.hypernetwork(server)[0]).init(federation.seed).items():
            server.extra[f"{_ATTENTION}{name}"] = tensor.to(device)
            server.extra[f"{MOMENTA}{_ATTENTION}{name}"] = torch.zeros_like(tensor, device=device)
        return server

    def make(self, server: Server, clients: Sequence[int]) -> Tensors:
        hyper, params = self.hypernetwork(server)
        generated = self._attention(hyper)(strip_prefix(_ATTENTION, server.extra), hyper(params, clients))
        return masked(generated, masks(generated, self.percent, self.parts)) if self.percent else generated

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        """Return the loss as without pruning; weights that the client received as zeros have no gradient."""
        if self.percent:
            names = [name for name in params if name in local.roles.generated and self._prunes(params[name])]
            params = masked(params, {name: local.received[name] != 0 for name in names})
        return super().loss(local, params, batch)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        hyper, params = self.hypernetwork(server)
        clients = [update.client for update in updates]
        shares = self.shares(updates)
        with torch.no_grad():
            generated = hyper(params, clients)
        generated = {name: tensor.requires_grad_() for name, tensor in generated.items()}
        attention = strip_prefix(_ATTENTION, server.extra)
        trained = {name: tensor.detach().requires_grad_() for name, tensor in attention.items()}
        recalibrated = self._attention(hyper)(trained, generated)
        # A pruned weight was sent and returned as zero, so its change is zero, as its gradient through a mask would be.
        terms = [
            share * (tensor[row] * (update.sent[name] - update.returned[name])).sum()
            for name, tensor in recalibrated.items()
            for row, (share, update) in enumerate(zip(shares, updates, strict=True))
        ]
        if self.lam:
            for row, share in enumerate(shares):
                model = {name: tensor[row : row + 1] for name, tensor in recalibrated.items()}
                terms.append(self.lam * share * orthogonality(model))
        leaves = {**generated, **add_prefix(_ATTENTION, trained)}
        grads = dict(zip(leaves, torch.autograd.grad(torch.stack(terms).sum(), list(leaves.values())), strict=True))
        self.server_step(server, clients, *split(grads, generated))
        return replace(server, shared=self.average(updates, roles.shared))

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return bytes: of a pruned tensor the remaining weights, and downwards a bit per weight that marks them."""
        sent, received = super().traffic(update)
        for tensor in update.sent.values():
            remaining = int(tensor.count_nonzero())
            # Every pruned tensor has weights left; one of zeros only is not pruned: running statistics begin so.
            if self.percent and self._prunes(tensor) and 0 < remaining < tensor.numel():
                sent += 4 * remaining - tensor.nbytes
                received += 4 * remaining + -(-tensor.numel() // 8) - tensor.nbytes
        return sent, received

    def _attention(self, hyper: HyperNetwork) -> FilterAttention:
        dense = self.filter_embedding == "dense"
        return FilterAttention(self.kind, self.heads, self.mix, self.scale, hyper.targets, self.bias, dense)

    def _prunes(self, tensor: Tensor) -> bool:
        return self.parts == "all" or tensor.ndim == 4


_QKV = "attention.qkv"
# Choices of `generated_part` and their groups; except for the projections, only entries in Transformer blocks.
_PARTS = {_QKV: _QKV, "mlp": "mlp", "norm": "norm", "encoder": ALL}
_IN_BLOCK = re.compile(r"(.+\.)?blocks\.\d+\.")


@METHODS.register
class FedTP(HypernetworkMethod):
    """Attention projections are generated per client from a learned embedding; the rest is averaged.

    A client trains the shared part ξ and W_i = h(z_i; φ) jointly and is measured with the new ξ and W_i. Embeddings of
    clients that were not sampled still move through momentum and decay, as in the code. ``also_personal: [head]`` is
    FedTP+FedPer, ``knn: 0.6`` FedTP+KNN; ``generated_part`` is the paper's ablation.
    """

    name = "fedtp"
    citation = "Li et al., FedTP, TNNLS 2023 (arXiv 2211.01572), section III"
    generated = (_QKV,)
    smoke: ClassVar[dict[str, Any]] = {"hidden": 16}
    generated_part: str = option(_QKV, choices=tuple(_PARTS), help="What is generated of blocks; encoder is all.")
    embedding: int = option(32, ge=1, help="Width of a client's embedding.")
    hidden: int = option(150, ge=1, help="Width of the hypernetwork's hidden layers.")
    server_clip: float | None = option(None, gt=0, help="Largest norm of the hypernetwork's gradient; null: any.")

    def roles(self, groups: Groups) -> Roles:
        if self.generated_part == _QKV:
            return super().roles(groups)
        roles = Roles.split(groups, (*self.personal, *self.also_personal), (_PARTS[self.generated_part],))
        generated = frozenset(name for name in roles.generated if _IN_BLOCK.match(name))
        if not generated:
            problem = f"{self.name}: generated_part {self.generated_part!r} lies in the blocks of a Transformer"
            remedy = "use tiny_vit, vit or language_transformer"
            raise UserError(f"{problem}, and this backbone has none, or it is all personal; {remedy}")
        return replace(roles, shared=roles.shared | (roles.generated - generated), generated=generated)


@METHODS.register
class FedTPFedRoD(FedRoD, FedTP):
    """Attention projections are generated as in FedTP; clients have a second classifier as in FedRoD.

    This classifier reads the class token before the last LayerNorm. A client is measured with the sum of both logits.
    """

    name = "fedtp_fedrod"
    citation = "Li et al., FedTP, TNNLS 2023, extensions; Chen and Chao, FedRoD, ICLR 2022"
