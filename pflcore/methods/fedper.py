"""A shared body with personal classifiers."""

from __future__ import annotations

from pflcore.method import Method
from pflcore.methods import METHODS


@METHODS.register
class FedPer(Method):
    """The last linear layer stays on the client, the rest is averaged; both are trained jointly.

    In a Transformer only the classifier is personal: the LayerNorm in front of it is shared, as in FedTP's code. A
    client that has never been sampled keeps the initial classifier.
    """

    citation = "Arivazhagan et al., arXiv 1912.00818, 2019"
    personal = ("head",)
