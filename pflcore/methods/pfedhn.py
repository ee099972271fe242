"""pFedHN: a hypernetwork on the server generates each client's whole model."""

from __future__ import annotations

from typing import Any, ClassVar

from pflcore.groups import ALL
from pflcore.methods import METHODS
from pflcore.methods._hypernetwork_server import HypernetworkMethod


@METHODS.register
class PFedHN(HypernetworkMethod):
    """Whole models are generated per client from a learned embedding; clients keep nothing.

    A round: the server sends the generated parameters θ_i = h(z_i; φ); the client trains them and returns them; the
    hypernetwork and the embedding take one SGD step along the client's change. Everyone is evaluated with h(z_i). The
    hypernetwork is an MLP with a ReLU between two layers and none after the last, then a linear head per tensor of the
    model. For 50 clients and the ConvNet it has 12,271,732 parameters with 10 classes and 13,044,382 with 100.

    The paper prints the change as after − before, descending along which would undo what clients learned; the authors'
    code uses before − after, and so does this. Buffers have no gradients, so they cannot be generated: running
    statistics of batch norm are averaged as in FedAvg, and counters come from the first client.

    The paper trains one client per round, for 5000 rounds of 50 batches, with gradients clipped at 50 on both sides:
    ``local_steps: 50`` and ``clip: 50`` of the training do so on the client's. With several clients their changes are
    averaged by samples, as in FedTP's comparison, which has ``hidden: 150``, ``server_clip: null`` and embeddings as
    wide as FedTP's. pFedHN-PC is ``also_personal: [head]``, with ``server_lr: 0.05``.
    """

    citation = "Shamsian, Navon, Fetaya and Chechik, pFedHN, ICML 2021, algorithm 1"
    generated = (ALL,)
    smoke: ClassVar[dict[str, Any]] = {"hidden": 16}
