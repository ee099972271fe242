"""Methods that only declare which groups are personal, which clients train, or how clients are measured."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pflcore.groups import ALL, Groups, Roles
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class FedAvg(Method):
    """One global model: clients train all of it, the server averages it by their training samples."""

    name = "fedavg"
    citation = "McMahan et al., AISTATS 2017"


@METHODS.register
class Local(Method):
    """Each client trains its own model from the common initial weights and never communicates."""

    name = "local"
    citation = "Li et al., FedTP, TNNLS 2023, Table II (Local-T); Sun et al., FedPerfix, ICCV 2023"
    personal = (ALL,)
    own_averaging = None
    smoke: ClassVar[dict[str, Any]] = {"schedule": "when_sampled"}
    schedule: str = option("every_round", choices=("every_round", "when_sampled"), help="Whether all clients train.")

    def participants(self, sampled: Sequence[int], clients: int) -> Sequence[int]:
        return range(clients) if self.schedule == "every_round" else sampled


@METHODS.register
class FedPer(Method):
    """The last linear layer stays on the client, the rest is averaged; both are trained jointly.

    In a Transformer the LayerNorm in front of the classifier is shared, as in FedTP's code.
    """

    name = "fedper"
    citation = "Arivazhagan et al., arXiv 1912.00818, 2019"
    personal = ("head",)


@METHODS.register
class FedBN(Method):
    """Normalisation layers stay on the client, with their statistics; the rest is averaged.

    In a Transformer these are its LayerNorms. Clients are weighted equally, as in the authors' code.
    """

    name = "fedbn"
    citation = "Li et al., FedBN, ICLR 2021; LayerNorm form: Sun et al., FedPerfix, ICCV 2023"
    personal = ("norm",)
    own_averaging = "uniform"


@METHODS.register
class VanillaAttention(Method):
    """The projections to queries, keys and values stay on the client, the rest is averaged.

    FedTP's baseline without a hypernetwork ("Vanilla Personalized-T").
    """

    name = "vanilla_attention"
    citation = "Li et al., FedTP, TNNLS 2023, section III-B"
    personal = ("attention.qkv",)


@METHODS.register
class PersonalGroups(Method):
    """The named groups of the model stay on the client, the rest is averaged.

    With ``[head]`` it is FedPer, with ``[norm]`` and ``averaging: uniform`` FedBN. `pfl describe` names the groups of a
    backbone; a group includes all groups below it, so ``attention`` is the whole of the attention.
    """

    name = "personal_groups"
    citation = "Sun et al., FedPerfix, ICCV 2023, Table 1"
    keeps = ("the groups in its option",)
    groups: tuple[str, ...] = option(("head",), help="The personal groups, as the backbone names them.")

    def roles(self, groups: Groups) -> Roles:
        return Roles.split(groups, (*self.groups, *self.also_personal))


@METHODS.register
class LgFedAvg(Method):
    """The upper layers are averaged, everything below them stays on the client; both are trained jointly.

    The authors share the last two layers: ``[fc2, head]`` of the ConvNet; ``[fc, head]`` is all three linear layers.
    """

    name = "lg_fedavg"
    citation = "Liang et al., LG-FedAvg, arXiv 2001.01523, 2020, algorithm 1"
    keeps = ("all groups but those in its option",)
    own_averaging = "uniform"
    shared: tuple[str, ...] = option(("head",), help="The groups that are averaged; all others stay on the client.")

    def roles(self, groups: Groups) -> Roles:
        shared = groups.select(self.shared) - groups.select(self.also_personal)
        return Roles(shared, frozenset(groups.group_of) - shared, frozenset())


@METHODS.register
class KNNPer(Method):
    """FedAvg whose predictions are mixed with the votes of a client's nearest training samples.

    The probability of a class is λ · share of the k nearest neighbours + (1 − λ) · softmax. A neighbour at distance d
    has weight exp(−d² / number of features). With ``knn_grid: [0, 0.25, 0.5, 0.75, 1]`` each client takes the λ with
    the most correct predictions on its training samples, each voted on by all others. In text, samples are characters.
    """

    name = "knn_per"
    citation = "Marfoq et al., Personalized Federated Learning through Local Memorization, ICML 2022"
    keeps = ("its samples as a memory",)
    knn: float = option(0.5, gt=0, le=1, help="Weight λ of the nearest neighbours; 1 is without the model's softmax.")
