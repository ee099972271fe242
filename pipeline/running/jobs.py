"""What passes between the scheduler and those who execute stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Outcome = Literal["done", "failed", "lost", "memory"]
"""How a stage ended: well; by an error in a spec, data or code; its process vanished; memory did not suffice.

The last two are the machine's doing, and worth another try.
"""


@dataclass(frozen=True)
class Job:
    """A stage to be executed.

    Attributes:
        address: Of the stage.
        command: ``pfl stage …``, as DVC would run it.
        key: Stands for the command and all inputs.
        outs: What it writes, relative to the workspace.
        log: The file that takes its output.
        brief: It takes moments, and does not wait for trainings that occupy all slots.
    """

    address: str
    command: str
    key: str
    outs: tuple[str, ...]
    log: Path
    brief: bool = False


@dataclass(frozen=True)
class Progressed:
    """A round of a run is over. `accuracy` is a share of 1, the last one measured."""

    address: str
    round: int
    rounds: int
    accuracy: float | None


@dataclass(frozen=True)
class Ended:
    """A stage is over. `message` is one line; `diverged` says so of a run that ended well all the same."""

    address: str
    outcome: Outcome
    message: str = ""
    diverged: bool = False


Event = Progressed | Ended


class Pool(Protocol):
    """Who executes stages. It is closed after use, which ends what is under way."""

    @property
    def capacity(self) -> int:
        """How many stages can run at the same time, at present."""

    def start(self, job: Job) -> str | None:
        """Begin a stage; return where, for a reader, or None when there is no room for it now."""

    def events(self, timeout: float) -> list[Event]:
        """Return what has happened; wait for something up to `timeout` seconds."""

    def shrink(self, address: str) -> str:
        """Run fewer where memory did not suffice for this stage; return what was done about it, or ""."""

    def wake(self) -> None:
        """Let a waiting :meth:`events` return, from any thread."""

    def close(self) -> None: ...
