"""Which runs are trained side by side in one process: those of a company, which differ in seeds and numbers alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.compile.graph import Graph
from pipeline.running.board import OVER, StageState
from pipeline.spec.run import Run, short_hash

MOST = 8  # runs side by side on a GPU, when nobody says how many
_MOMENTS = ("guard", "data", "partition")  # kinds of stages that are worth waiting for


def company(run: Run) -> str:
    """Equal for runs that can be trained together (:mod:`pflcore.engine.executors.alike`)."""
    record = {key: part for key, part in run.record.items() if key not in ("seed", "partition", "clients")}
    record["training"] = {**record["training"], "lr": None}
    record["method"] = {name: None if isinstance(value, float) else value for name, value in record["method"].items()}
    return short_hash(record)


@dataclass(frozen=True)
class Companies:
    """The companies of a call of ``pfl run``.

    Attributes:
        most: Runs side by side; with 1 every run is alone.
        of: The company of each run, by the address of its stage.
    """

    most: int = 1
    of: Mapping[str, str] = field(default_factory=dict)

    def split(self, prepared: Iterable[str], board: Mapping[str, StageState]) -> list[list[str]]:
        """Stages that are prepared, those together that are to be started together, in order.

        A run that has ended badly before is tried again without others.
        """
        parts: dict[str, list[str]] = {}
        for address in prepared:
            alone = self.most == 1 or address not in self.of or board[address].attempts
            parts.setdefault(address if alone else self.of[address], []).append(address)
        split = []
        for members in parts.values():
            size = -(-len(members) // -(-len(members) // self.most))  # as even as can be
            split += [members[start : start + size] for start in range(0, len(members), size)]
        return split

    def join(self, chosen: Collection[str]) -> bool:
        """Whether any of these may have company."""
        return self.most > 1 and any(address in self.of for address in chosen)

    def wanted(self, chosen: Collection[str], ready: Iterable[str]) -> list[str]:
        """Which of those that are ready are to keep those company that are chosen."""
        if not self.join(chosen):
            return []
        places = {company: self.most for company in (self.of.get(address) for address in chosen) if company}
        for address in chosen:
            if address in self.of:
                places[self.of[address]] -= 1
        joining = []
        for address in ready:
            company = self.of.get(address)
            if company and places.get(company, 0) > 0:
                places[company] -= 1
                joining.append(address)
        return joining

    def awaited(self, members: list[str], graph: Graph, board: Mapping[str, StageState]) -> bool:
        """Whether others of the company will be ready in a moment, so that these had better wait for them."""
        own = self.of.get(members[0])
        if self.most == 1 or not own or len(members) >= self.most or board[members[0]].attempts:
            return False
        others = (address for address, its in self.of.items() if its == own and address not in members)
        return any(
            board[address].state == "queued" and not board[address].attempts and _soon(address, graph, board)
            for address in others
        )


def _soon(address: str, graph: Graph, board: Mapping[str, StageState]) -> bool:
    """Whether nothing that takes long has to be done before a stage."""
    before = [other for other in graph.upstream[address] if other in board and board[other].state not in OVER]
    return all(board[other].kind in _MOMENTS and _soon(other, graph, board) for other in before)
