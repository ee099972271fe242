"""FedOFA: generated models whose filters are recalibrated by attention, kept apart, and pruned on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pflcore.groups import ALL, Roles, Tensors, add_prefix, split, strip_prefix
from pflcore.method import MOMENTA, Batch, ClientView, Federation, Server, Update
from pflcore.methods import METHODS
from pflcore.methods.pfedhn import HypernetworkMethod
from pflcore.operators.compression import PARTS, masked, masks
from pflcore.operators.filter_attention import KINDS, FilterAttention, orthogonality
from pflcore.operators.hypernetworks import HyperNetwork
from pflcore.options import option

_ATTENTION = "attention/"


@METHODS.register
class FedOFA(HypernetworkMethod):
    """Whole models are generated as in pFedHN, then their filters are recalibrated by attention.

    After attention, pruning (AGPS) sets the smallest weights of convolutions to zero, which clients do not grow again.
    The server takes one SGD step with hypernetwork, embeddings and attention along the gradient of
    Σ p_i · (⟨θ_i, before_i − after_i⟩ + λ · ‖O·Oᵀ − I‖²), θ_i the recalibrated model, p_i the clients' shares of
    the cohort's samples, and the last term the mean over convolutions, whose filters are the rows of O. Everyone is
    measured with the recalibrated and pruned model. ``lam: 0`` is FedOFA*. The paper uses 8 heads for CIFAR-10 (intra
    alone: 2), and for CIFAR-100 2 (intra: 8); one client per round, 5000 rounds of 50 batches.
    """

    citation = "Yang et al., FedOFA, arXiv 2311.12049, 2023, section 3"
    ignores_unlabelled = True
    # Without convolutions there is nothing to recalibrate: a backbone that lacks them is refused.
    generated = ("conv", ALL)
    smoke: ClassVar[dict[str, Any]] = {"embedding": 8, "hidden": 16, "heads": 2}

    kind: str = option("tfa", choices=KINDS, help="Attention by filter (intra), by layer (inter), or both (tfa).")
    heads: int = option(8, ge=1, help="Heads of the attention.")
    mix: float = option(0.5, ge=0, le=1, help="Share of intra in tfa; the rest is inter.")
    scale: bool = option(False, help="Divide attention scores by the root of the vectors' length; the paper does not.")
    bias: bool = option(False, help="Whether the attention has biases; with them training diverges.")
    filter_embedding: str = option(
        "pointwise", choices=("pointwise", "dense"), later=True, help="By a number, which scales filters, or a matrix."
    )
    lam: float = option(1e-4, ge=0, help="Weight λ of orthogonal regularisation; 0: FedOFA*, without.")
    percent: float = option(0.0, ge=0, lt=100, help="Weights of each layer that pruning drops, in percent; 0: none.")
    parts: str = option("conv", choices=PARTS, help="Whether pruning is of convolutions only, or of all tensors.")
    embedding: int | None = option(100, ge=1, help="Width of a client's embedding; null is floor(1 + clients / 4).")

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        server = super().init_server(initial, roles, federation)
        device = next(iter(initial.values())).device
        for name, tensor in self._attention(self.hypernetwork(server)[0]).init(federation.seed).items():
            server.extra[f"{_ATTENTION}{name}"] = tensor.to(device)
            server.extra[f"{MOMENTA}{_ATTENTION}{name}"] = torch.zeros_like(tensor, device=device)
        return server

    def make(self, server: Server, clients: Sequence[int]) -> Tensors:
        hyper, params = self.hypernetwork(server)
        made = self._attention(hyper)(strip_prefix(_ATTENTION, server.extra), hyper(params, clients))
        return masked(made, masks(made, self.percent, self.parts)) if self.percent else made

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        """Return the loss as without pruning; what was zero when it was received has no gradient."""
        if self.percent:
            names = [name for name in params if name in local.roles.generated and self._prunes(params[name])]
            params = masked(params, {name: local.received[name] != 0 for name in names})
        return super().loss(local, params, batch)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        hyper, params = self.hypernetwork(server)
        clients, shares = [update.client for update in updates], self.shares(updates)
        with torch.no_grad():
            generated = hyper(params, clients)
        generated = {name: tensor.requires_grad_() for name, tensor in generated.items()}
        trained = {
            name: tensor.detach().requires_grad_() for name, tensor in strip_prefix(_ATTENTION, server.extra).items()
        }
        recalibrated = self._attention(hyper)(trained, generated)
        # A pruned weight was sent and returned as zero, so its change is zero, as its gradient through a mask would be.
        terms = [
            share * (tensor[row] * (one.sent[name] - one.returned[name])).sum()
            for name, tensor in recalibrated.items()
            for row, (share, one) in enumerate(zip(shares, updates, strict=True))
        ]
        if self.lam:
            for row, share in enumerate(shares):
                own = {name: tensor[row : row + 1] for name, tensor in recalibrated.items()}
                terms.append(self.lam * share * orthogonality(own))
        leaves = {**generated, **add_prefix(_ATTENTION, trained)}
        grads = dict(zip(leaves, torch.autograd.grad(torch.stack(terms).sum(), list(leaves.values())), strict=True))
        self.server_step(server, clients, *split(grads, generated))
        return replace(server, shared=self.average(updates, roles.shared))

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return bytes: of a pruned layer the weights that are left, and downwards a bit per weight that says which."""
        sent, received = super().traffic(update)
        for tensor in update.sent.values():
            left = int(tensor.count_nonzero())
            # Something is left of every pruned tensor; running statistics that begin as zeros are none.
            if self.percent and self._prunes(tensor) and 0 < left < tensor.numel():
                sent += 4 * left - tensor.nbytes
                received += 4 * left + -(-tensor.numel() // 8) - tensor.nbytes
        return sent, received

    def _attention(self, hyper: HyperNetwork) -> FilterAttention:
        dense = self.filter_embedding == "dense"
        return FilterAttention(self.kind, self.heads, self.mix, self.scale, hyper.targets, self.bias, dense)

    def _prunes(self, tensor: Tensor) -> bool:
        return self.parts == "all" or tensor.ndim == 4
