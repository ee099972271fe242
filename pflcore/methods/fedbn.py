"""Personal normalisation layers."""

from __future__ import annotations

from pflcore.method import Method
from pflcore.methods import METHODS


@METHODS.register
class FedBN(Method):
    """Normalisation layers stay on the client, with their statistics; the rest is averaged.

    In a network with batch norm these are weight, bias and running statistics, as in the authors' code; in a
    Transformer they are its LayerNorms, as FedPerfix uses it. Clients count alike, 1/N each, as in the authors' code;
    the specs of FedTP and FedPerfix, whose codes weight by samples, say `averaging: samples`. FedTP's code keeps weight
    and bias only and averages the statistics.
    """

    citation = "Li et al., FedBN, ICLR 2021; LayerNorm form: Sun et al., FedPerfix, ICCV 2023"
    personal = ("norm",)
    own_averaging = "uniform"
