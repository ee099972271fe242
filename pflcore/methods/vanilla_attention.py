"""Personal attention projections, stored on the client."""

from __future__ import annotations

from pflcore.method import Method
from pflcore.methods import METHODS


@METHODS.register
class VanillaAttention(Method):
    """The projections to queries, keys and values stay on the client, the rest is averaged.

    FedTP's own baseline without a hypernetwork ("Vanilla Personalized-T"). Output projections of the attention, MLPs,
    norms, embeddings and the head are shared. Clients are evaluated with the projections of the last round in which
    they were sampled.
    """

    citation = "Li et al., FedTP, TNNLS 2023, section III-B"
    personal = ("attention.qkv",)
