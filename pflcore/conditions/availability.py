"""Clients that are absent, and clients that are slow."""

import re
from functools import cache

from pflcore.conditions import CONDITIONS, Condition, Draws
from pflcore.errors import UserError
from pflcore.files import csv_rows, find_unchanged
from pflcore.groups import Tensors
from pflcore.method import Method, name_of
from pflcore.options import option

_LINE = re.compile(r"([1-9]\d{0,8}),(\d{1,9})")  # of a file of absences


@CONDITIONS.register
class Availability(Condition):
    """Sampled clients are absent by chance, and stragglers take only a part of their local steps.

    A client that is away neither trains nor sends, and keeps what it has. In a round that all sampled clients miss the
    server keeps its state. Before the first round, and when they are measured, all are there. Who is away is drawn for
    each client and round, or stands in a CSV file: under ``round,client`` a line for each absence, rounds from 1 and
    clients from 0. The file lies in ``specs/`` and is part of the run: another content is another run. A straggler
    stops early; what a method does in passes of their own, beside the local steps of a round, it does in full.
    """

    citation = "stragglers: Li et al., FedProx, MLSys 2020, section 5.2"

    away: float = option(0.5, ge=0, le=1, help="Probability that a sampled client is away in a round.")
    path: str | None = option(None, help="File of absences in place of chance: specs/mnist/away.csv.")
    content: str | None = option(None, later=True, help="The SHA-256 of the file, noted when a spec is compiled.")
    slow: float = option(0.0, ge=0, le=1, help="Share of the clients that are stragglers.")
    redrawn: bool = option(False, help="Whether they are drawn anew in every round, each client by chance.")
    pace: float = option(0.5, gt=0, lt=1, help="Share of its local steps that a straggler does, at least one step.")

    def check(self, method: Method, sent: Tensors) -> None:
        if self.slow and any(phase.epochs and not phase.extra for phase in method.phases()):
            reason = "its round is several phases by passes, of which a straggler would leave out the last"
            raise UserError(f"condition availability: slow does not go with method {name_of(method)}: {reason}")
        if self.path is not None:
            absences(self.path, self.content)

    def attends(self, draws: Draws, round_: int, client: int) -> bool:
        if self.path is not None:
            return (round_, client) not in absences(self.path, self.content)
        return not draws.happens(self.away, "availability", round_, client)

    def share_of_steps(self, draws: Draws, round_: int, client: int) -> float:
        if not round_:
            return 1.0
        if self.redrawn:
            slow = draws.happens(self.slow, "stragglers", round_, client)
        else:
            slow = client in draws.share(self.slow, "stragglers")
        return self.pace if slow else 1.0


@cache
def absences(path: str, content: str | None) -> frozenset[tuple[int, int]]:
    """Return the pairs (round, client) of a file of absences. Raises :class:`UserError` if it is not such a file."""
    pairs = set()
    for where, cells in csv_rows(find_unchanged(path, content), "round,client", f"condition availability: {path}"):
        line = ",".join(cells)
        if not (numbers := _LINE.fullmatch(line)):
            raise UserError(f"{where}: {line[:60]!r} must be a round, from 1, and a client, from 0")
        pairs.add((int(numbers[1]), int(numbers[2])))
    return frozenset(pairs)
