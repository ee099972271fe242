"""A shared network, and on each client a tree of Gaussian processes that tells its classes apart by their features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from pflcore.errors import UserError
from pflcore.groups import Roles, Tensors, add_prefix, strip_prefix
from pflcore.method import DATA, OWN, Batch, ClientView, Federation, LocalState, Method, OwnSamples, Phase, sgd_step
from pflcore.methods import METHODS
from pflcore.methods._features import ClassSums, add_sums, class_means, need_classifier, no_sums
from pflcore.operators.class_tree import class_tree
from pflcore.operators.gaussian_process import BinaryClassifier
from pflcore.options import option
from pflcore.seeds import torch_seed

_DRAWS = f"{DATA}draws"
# What the authors add to probabilities before their logarithm.
_MIN_PROBABILITY = 1e-12


@METHODS.register
class PFedGP(Method):
    """A shared network under classifiers that are Gaussian processes of a client's own samples.

    All but the backbone's classifier is averaged, clients alike; the classifier is not used. In a round a client first
    sees all of its samples and makes a tree of its classes from the means of their features. In a step the batch goes
    through the tree: at each node, of the samples of its classes one half of either side tells a Gaussian process which
    side the other half is of, and the loss is the sum over nodes of the mean cross-entropy on these others. Only the
    network learns; the kernel, 8 · exp(−d²/2) of features on the unit sphere, is fixed. For a measurement tree and
    processes are made of all of the client's training samples. The probability of a class is the product along its
    path; 10^−12 is added before the logarithm, which is all that classes have of which the client has no sample.

    The authors take all of a client's samples in every step, one in a round: here a `batch_size` that no client
    exceeds, with `local_steps`. Features are the classifier's input; positions of text count as samples. Time grows
    with the cube of a batch and of a client's samples, memory with the square: with 1,000 samples and 30 chains, a
    quarter of a GiB for each matrix.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tunes:
            raise UserError(
                "method pfedgp: finetune_*: its predictions read no classifier, and processes are fitted anew"
            )

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        need_classifier(self, federation)
        like = next(iter(initial.values()))
        return {
            "means": like.new_zeros(federation.classes, federation.features),
            "counts": like.new_zeros(federation.classes),
        }

    def eval_state(self, state: Tensors) -> Tensors:
        return {name: tensor for name, tensor in state.items() if not name.startswith(OWN)}

    def phases(self) -> tuple[Phase, ...]:
        return Phase(SeeClasses(f"{OWN}means"), extra=True), Phase()

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        seen = strip_prefix(OWN, start)
        tree = class_tree(seen["means"], seen["counts"] > 0)
        return {**super().begin(local, start), "tree": {"nodes": tree, "steps": torch.tensor(0)}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        tree = state["tree"]
        draws, labels = stream(local, "step", int(tree["steps"])), batch.labels.flatten()

        def loss(params: Tensors) -> Tensor:
            features = local.features(params, batch.inputs)[1].flatten(0, -2)
            return self.tree_loss(tree["nodes"], features, labels, draws)

        after, value = sgd_step(local, state, loss, local.parameters)
        return {**after, "tree": {**tree, "steps": tree["steps"] + 1}}, value

    def tree_loss(self, tree: Tensor, features: Tensor, labels: Tensor, draws: torch.Generator) -> Tensor:
        """Return the sum over the nodes of a tree (nodes, classes) that have samples to predict."""
        total = features.sum() * 0  # a client of one class has nothing to learn
        for sides in tree[:, labels]:
            given, held = halved(sides, draws)
            if len(held):
                node = BinaryClassifier.fitted(features[given], sides[given] > 0, self.gibbs_steps, self.chains, draws)
                first = node.probability(features[held])
                total = total - (torch.where(sides[held] > 0, first, 1 - first) + _MIN_PROBABILITY).log().mean()
        return total.float()

    def predictor(self, local: ClientView, state: Tensors, samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        seen = [
            (local.features(state, one.inputs)[1].flatten(0, -2), one.labels.flatten()) for one in samples.batches()
        ]
        features, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        sums = add_sums(no_sums(features.new_zeros(samples.classes, features.shape[1])), features, labels)
        present = sums["counts"] > 0
        tree, draws, nodes = class_tree(class_means(sums), present), stream(local, "measurement"), []
        for sides in tree[:, labels]:
            here = sides != 0
            node = BinaryClassifier.fitted(
                features[here], sides[here] > 0, self.gibbs_steps, self.measured_chains, draws
            )
            nodes.append(node)

        def predict(inputs: Tensor) -> Tensor:
            given = local.features(state, inputs)[1]
            probabilities = present.double().expand(given.shape[:-1].numel(), -1)
            for sides, node in zip(tree, nodes, strict=True):
                first = node.probability(given.flatten(0, -2)).unsqueeze(-1)
                probabilities = probabilities * torch.where(sides == 0, 1.0, torch.where(sides > 0, first, 1 - first))
            return (probabilities + _MIN_PROBABILITY).log().float().view(*given.shape[:-1], -1)

        return self.beside_neighbours(predict, samples)


class SeeClasses(ClassSums):
    """Steps that train nothing; at their end a client has the means of its classes' features."""

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        means = {"means": class_means(state["seen"]), "counts": state["seen"]["counts"]}
        return {**state, "model": {**state["model"], **add_prefix(OWN, means)}}


def halved(sides: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return places of samples by their sides (samples,), those of side 0 left out, as two parts.

    The second part is a half of either side, rounded down.
    """
    parts = []
    for side in (1, -1):
        places = (sides == side).nonzero().flatten()
        order = torch.randperm(len(places), generator=draws).to(places.device)
        parts.append(torch.split(places[order], [len(places) - len(places) // 2, len(places) // 2]))
    given, held = (torch.cat(part) for part in zip(*parts, strict=True))
    return given, held


def stream(local: ClientView, purpose: str, *ids: int) -> torch.Generator:
    """Return the random numbers of a client in a round, for one of its purposes; on the CPU."""
    return torch.Generator().manual_seed(torch_seed(int(local.received[_DRAWS]), f"pfedgp {purpose}", *ids))
