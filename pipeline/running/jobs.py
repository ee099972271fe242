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
    """Who executes stages: `start` returns where, or None when there is no room now; `events` waits up to `timeout`
    seconds, or until `wake` is called from any thread; `shrink` runs fewer where memory did not suffice for a stage and
    returns what it did about it; `close` ends what is under way."""

    @property
    def capacity(self) -> int: ...
    def start(self, job: Job) -> str | None: ...
    def events(self, timeout: float) -> list[Event]: ...
    def shrink(self, address: str) -> str: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...
