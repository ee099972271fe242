"""Personal representations under shared upper layers."""

from __future__ import annotations

from pflcore.groups import Groups, Roles
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class LgFedAvg(Method):
    """The upper layers are averaged, everything below them stays on the client; both are trained jointly.

    Only the groups in `shared` are sent, by default the last linear layer, as in PFLlib. The authors share the last two
    layers: for the ConvNet `[fc2, head]`, while `[fc, head]` shares all three of its linear layers. Clients begin with
    a common initial model, and one that has never been sampled is measured with its initial lower layers. The authors
    begin with a model that FedAvg has trained, here training begins from scratch; clients count alike in the average,
    as in their code. FL-bench has it the other way round: its lowest layer is shared.
    """

    citation = "Liang et al., LG-FedAvg, arXiv 2001.01523, 2020, algorithm 1"
    keeps = ("all groups but those in its option",)
    own_averaging = "uniform"

    shared: tuple[str, ...] = option(
        ("head",), help="The groups that are averaged, as the backbone names them; all others stay on the client."
    )

    def roles(self, groups: Groups) -> Roles:
        """Everything personal that is not in `shared`. Raises :class:`UserError` for a group the backbone lacks."""
        shared = groups.select(self.shared) - groups.select(self.also_personal)
        return Roles(shared, frozenset(groups.of) - shared, frozenset())
