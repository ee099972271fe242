"""Any parameter groups personal: the sensitivity study."""

from __future__ import annotations

from pflcore.groups import Groups, Roles
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class PersonalGroups(Method):
    """The named groups of the model stay on the client, the rest is averaged.

    With ``[head]`` it is FedPer, with ``[norm]`` and ``averaging: uniform`` FedBN, with ``[attention.qkv]`` vanilla
    personalised attention.
    FedPerfix's study makes one kind of layer of a Transformer personal at a time, alone or with the classifier.
    `pfl describe` names the groups of a backbone; a group stands for all groups below it, so ``attention`` is the whole
    of the attention.
    """

    citation = "Sun et al., FedPerfix, ICCV 2023, Table 1"
    keeps = ("the groups in its option",)

    groups: tuple[str, ...] = option(("head",), help="The personal groups, as the backbone names them.")

    def roles(self, groups: Groups) -> Roles:
        """The chosen groups personal. Raises :class:`UserError` for one that the backbone lacks."""
        return Roles.split(groups, (*self.groups, *self.also_personal))
