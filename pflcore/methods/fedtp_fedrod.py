"""FedTP with FedRoD's two classifiers."""

from __future__ import annotations

from pflcore.methods import METHODS
from pflcore.methods.fedrod import FedRoD
from pflcore.methods.fedtp import FedTP


@METHODS.register
class FedTPFedRoD(FedRoD, FedTP):
    """Attention projections are generated as in FedTP; clients have a second classifier as in FedRoD.

    Body, generated projections and generic classifier are trained with balanced softmax; all but the projections are
    averaged, and the hypernetwork follows the change of these. The personal classifier, one linear layer on the class
    token before the last LayerNorm, is trained with the cross-entropy of generic logits + its own, through which
    nothing reaches the rest, and stays on the client. The sum of both logits is what a client is measured with.
    """

    citation = "Li et al., FedTP, TNNLS 2023, extensions; Chen and Chao, FedRoD, ICLR 2022"
