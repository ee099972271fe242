"""pFedGP: a shared network, and on each client a tree of Gaussian processes that classifies by its features."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from pflcore.groups import Roles, Tensors
from pflcore.method import OWN, Batch, ClientView, Federation, LocalState, OwnSamples, Phase, sgd_step
from pflcore.methods import METHODS
from pflcore.methods._bases import ClassSums, OwnTuning, add_sums, check_classifier, class_means, zero_sums
from pflcore.operators.gaussian_process import BinaryClassifier, class_tree
from pflcore.options import option
from pflcore.seeds import torch_seed

_MEANS, _COUNTS = "own/means", "own/counts"
_MIN_PROBABILITY = 1e-12  # added to probabilities before their logarithm, as in the authors' code


@METHODS.register
class PFedGP(OwnTuning):
    """A shared network with classifiers that are Gaussian processes of a client's own samples.

    A round begins with a tree of the client's classes, built from the means of their features. In a step, each node
    fits a Gaussian process to half of the batch's samples of each side and predicts the sides of the other half; the
    loss is the sum over nodes of the mean cross-entropy of these predictions. Only the network learns; the kernel is 8
    · exp(−d²/2) of features on the unit sphere. In a measurement tree and processes use all training samples; the
    probability of a class is the product along its path. Clients are weighted equally. Time grows with the cube of a
    batch and of a client's samples, memory with the square: 240 MB per matrix for 1,000 samples and 30 chains.
    """

    citation = "Achituve et al., Personalized Federated Learning with Gaussian Processes, NeurIPS 2021"
    personal = ("head",)
    keeps = ("means of its features",)
    facts = ("draws",)
    remembers = True
    weighs_classes = False
    untrained = ("head",)
    supports_vmap = False
    own_averaging = "uniform"
    smoke: ClassVar[dict[str, Any]] = {"chains": 3, "measured_chains": 4, "gibbs_steps": 2}
    gibbs_steps: int = option(5, ge=1, help="Steps of Gibbs sampling, in training and in measurements.")
    chains: int = option(20, ge=1, help="Chains of Gibbs sampling in a local step.")
    measured_chains: int = option(30, ge=1, help="Chains of Gibbs sampling in a measurement.")

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        check_classifier(self, federation)
        like, classes = next(iter(initial.values())), federation.classes
        return {"means": like.new_zeros(classes, federation.features), "counts": like.new_zeros(classes)}

    def eval_state(self, state: Tensors) -> Tensors:
        return {name: tensor for name, tensor in state.items() if not name.startswith(OWN)}

    def phases(self) -> tuple[Phase, ...]:
        return Phase(ClassSums(_MEANS, means_and_counts), extra=True), Phase()

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        tree = class_tree(start[_MEANS], start[_COUNTS] > 0)
        return {**super().begin(local, start), "tree": {"nodes": tree, "steps": torch.tensor(0)}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        tree = state["tree"]
        draws = stream(local, "step", int(tree["steps"]))
        labels = batch.labels.flatten()

        def loss(params: Tensors) -> Tensor:
            features = local.features(params, batch.inputs)[1].flatten(0, -2)
            total = features.sum() * 0  # the loss of a client with one class, whose tree has no node
            for sides in tree["nodes"][:, labels]:
                training, test = halve(sides, draws)
                if len(test):
                    steps, chains = self.gibbs_steps, self.chains
                    node = BinaryClassifier.fit(features[training], sides[training] > 0, steps, chains, draws)
                    probability = node.probability(features[test])
                    likelihood = torch.where(sides[test] > 0, probability, 1 - probability) + _MIN_PROBABILITY
                    total = total - likelihood.log().mean()
            return total.float()

        after, value = sgd_step(local, state, loss, local.parameters)
        return {**after, "tree": {**tree, "steps": tree["steps"] + 1}}, value

    def predictor(self, local: ClientView, state: Tensors, samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        batches = list(samples.batches())
        features = torch.cat([local.features(state, batch.inputs)[1].flatten(0, -2) for batch in batches])
        labels = torch.cat([batch.labels.flatten() for batch in batches])
        sums = add_sums(zero_sums(features.new_zeros(samples.classes, features.shape[1])), features, labels)
        present = sums["counts"] > 0
        tree = class_tree(class_means(sums), present)
        draws, steps, chains = stream(local, "measurement"), self.gibbs_steps, self.measured_chains
        nodes = []
        for sides in tree[:, labels]:
            rows = sides != 0
            nodes.append(BinaryClassifier.fit(features[rows], sides[rows] > 0, steps, chains, draws))

        def predict(inputs: Tensor) -> Tensor:
            features = local.features(state, inputs)[1]
            probabilities = present.double().expand(features.shape[:-1].numel(), -1)
            for sides, node in zip(tree, nodes, strict=True):
                first = node.probability(features.flatten(0, -2)).unsqueeze(-1)
                probabilities = probabilities * torch.where(sides == 0, 1.0, torch.where(sides > 0, first, 1 - first))
            return (probabilities + _MIN_PROBABILITY).log().float().view(*features.shape[:-1], -1)

        return self.beside_neighbours(predict, samples)


def means_and_counts(seen: Tensors) -> Tensors:
    """Return a client's class means and the number of samples of each class."""
    return {_MEANS: class_means(seen), _COUNTS: seen["counts"]}


def halve(sides: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two random index sets that halve each side, ±1, of `sides` (samples,); the first gets an odd sample."""
    parts = []
    for side in (1, -1):
        rows = (sides == side).nonzero().flatten()
        order = torch.randperm(len(rows), generator=draws).to(rows.device)
        parts.append(torch.split(rows[order], [len(rows) - len(rows) // 2, len(rows) // 2]))
    first, second = (torch.cat(part) for part in zip(*parts, strict=True))
    return first, second


def stream(local: ClientView, purpose: str, *ids: int) -> torch.Generator:
    """Return a random generator on the CPU for one purpose of the client in this round."""
    return torch.Generator().manual_seed(torch_seed(int(local.received["data/draws"]), f"pfedgp {purpose}", *ids))
