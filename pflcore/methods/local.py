"""Training without any exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pflcore.groups import ALL
from pflcore.method import Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class Local(Method):
    """Each client trains its own model and never communicates: the yardstick of personalisation.

    All clients start from the same initial model. How much a client trains depends on `schedule`: FedTP's code trains
    every client in every round, FedPerfix's only the sampled ones, and their figures for Local differ accordingly.
    """

    citation = "Li et al., FedTP, TNNLS 2023, Table II (Local-T); Sun et al., FedPerfix, ICCV 2023"
    personal = (ALL,)
    own_averaging = None
    smoke: ClassVar[dict[str, Any]] = {"schedule": "when_sampled"}

    schedule: str = option(
        "every_round",
        choices=("every_round", "when_sampled"),
        help="Whether all clients train in every round (FedTP) or only those that are sampled (FedPerfix).",
    )

    def participants(self, sampled: Sequence[int], clients: int) -> Sequence[int]:
        return range(clients) if self.schedule == "every_round" else sampled
