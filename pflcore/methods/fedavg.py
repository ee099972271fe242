"""Federated averaging."""

from __future__ import annotations

from pflcore.method import Method
from pflcore.methods import METHODS


@METHODS.register
class FedAvg(Method):
    """One global model: clients train the whole of it, the server averages it by training samples.

    Averages run over the sampled clients, normalised to one, whatever a paper's formula prints. Buffers such as
    batch-norm statistics are averaged as well. Every client is evaluated with the global model.
    """

    citation = "McMahan et al., AISTATS 2017"
