"""Clients that attack the others by what they send."""

from collections.abc import Sequence

from torch import Tensor

from pflcore.conditions import CONDITIONS, Condition, Draws
from pflcore.conditions._base import change_entries, normal_noise, relabel
from pflcore.data.federation import FederatedData
from pflcore.errors import UserError
from pflcore.exchange import Update
from pflcore.options import option

_STRENGTHS = {"sign_flip": 1.0, "scale": 10.0, "gaussian": 1.0}


@CONDITIONS.register
class Attack(Condition):
    """A share of the clients, the same in all rounds, attacks; only the others are measured.

    An attacker received g and trained w. For every floating-point entry that its method sends, including running
    statistics, it sends g − s · (w − g) (sign_flip), g + s · (w − g) (scale), or g plus normal noise of standard
    deviation s (gaussian). With label_flip it sends w, trained on labels C − 1 − y in place of y of C classes. Counters
    and masks are sent as they are, and entries that an attacker keeps do not change.
    """

    citation = "Li et al., RSA, AAAI 2019; label_flip: Fang et al., USENIX Security 2020, section 5"

    share: float = option(0.2, gt=0, le=0.5, help="Share of the clients that attack, rounded, at least one.")
    kind: str = option("sign_flip", choices=(*_STRENGTHS, "label_flip"), help="What attackers do.")
    strength: float | None = option(None, gt=0, help="Strength s; null: 1, with scale 10.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength is not None and self.kind == "label_flip":
            raise UserError("attack.strength says nothing of label_flip, which sends what was trained")

    def data(self, draws: Draws, data: FederatedData) -> FederatedData:
        if self.kind != "label_flip":
            return data
        return relabel(data, self.attackers(draws), lambda client, labels: data.classes - 1 - labels)

    def attackers(self, draws: Draws) -> frozenset[int]:
        attackers = draws.share(self.share, "attackers")
        if len(attackers) == len(draws.members):
            raise UserError("condition attack: needs two clients that train, as the others alone are measured")
        return attackers

    def sent(self, draws: Draws, round_: int, updates: Sequence[Update]) -> list[Update]:
        attackers = self.attackers(draws) if self.kind != "label_flip" else frozenset()
        return [self._attack(draws, round_, update) if update.client in attackers else update for update in updates]

    def _attack(self, draws: Draws, round_: int, update: Update) -> Update:
        strength = self.strength or _STRENGTHS[self.kind]
        stream = draws.stream("attack", round_, update.client)

        def harmful(received: Tensor, returned: Tensor) -> Tensor:
            if self.kind == "gaussian":
                return received + strength * normal_noise(received, stream)
            return received + (-strength if self.kind == "sign_flip" else strength) * (returned - received)

        return change_entries(update, harmful)
