"""A global model, and on each client a memory of its own samples."""

from __future__ import annotations

from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class KNNPer(Method):
    """FedAvg whose predictions are mixed with those of a client's nearest training samples.

    After training, each client stores features and labels of all its training samples. The probability of a class is
    λ · share of the k nearest neighbours + (1 − λ) · softmax; a neighbour weighs exp(−d² / number of features). Nothing
    more is sent than in FedAvg. The authors choose λ and the memory's size for each client by search; here λ is one
    number, as in FedTP+KNN, which is the method fedtp with ``knn: 0.6``, or with ``knn_grid: [0, 0.25, 0.5, 0.75, 1]``
    each client's own. It is then chosen on training samples and never on test samples: each sample is voted on by all
    others, and the λ that is right most often is taken. As the model has learned from these samples, the choice leans
    towards it. In text the samples are characters.
    """

    citation = "Marfoq et al., Personalized Federated Learning through Local Memorization, ICML 2022"
    keeps = ("its samples as a memory",)

    knn: float = option(0.5, gt=0, le=1, help="Weight λ of the nearest neighbours; 1 is without the model's softmax.")
