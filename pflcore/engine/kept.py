"""What finished runs leave to others that train alike: states to continue from, and measurements made on the way.

Runs train alike when they differ in their number of rounds, in what acts in measuring alone, and in nothing else; such
runs are a lineage. A state is the same for all of them, so it is kept once; measurements are kept for each way of
measuring. Nothing here is needed: whatever is damaged, removed by another process or does not fit on the disk costs
time and no result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from pflcore.engine.checkpoint import Checkpoint, read, round_of, stored, write
from pflcore.groups import Tensors
from pflcore.room import Room


class KeptStates:
    """The states and measurements of one lineage.

    Args:
        room: The folder of all lineages, and how much they may take.
        lineage: What states depend on; a hash.
        measuring: What measurements depend on beside; a hash.
        every: Whether the states of all rounds that are measured are to be kept; otherwise a run's last one.
        warn: Called with one line for each file that is passed over, and for what cannot be kept.
    """

    def __init__(
        self, room: Room, lineage: str, measuring: str, warn: Callable[[str], None], *, every: bool = False
    ) -> None:
        self.room, self.every, self.warn = room, every, warn
        self._states = room.folder / lineage[:16]
        self._measured = self._states / f"measured-{measuring[:16]}"
        self._lineage, self._measuring = lineage, f"{lineage} {measuring}"
        self._bad: set[Path] = set()

    def measurements(self, misfit: Callable[[Tensors], str]) -> Tensors:
        """Those of all runs of the lineage that were measured alike: round → its table, as in a state of History."""
        found: Tensors = {}
        for path in stored(self._measured):
            if one := self._read(path, self._measuring, misfit):
                found |= one.tensors
        return found

    def way(
        self, rounds: int, due: Collection[int], measured: Container[int], misfit: Callable[[Tensors], str]
    ) -> Iterator[Checkpoint]:
        """The states that a run goes through without training, in order of their rounds.

        The last is the latest to continue from; those before it are of rounds that are to be measured and have not
        been. Both collections may grow in between.

        Args:
            rounds: Of the run.
            due: Rounds that it has to measure.
            measured: Those that it has measurements of.
            misfit: Why tensors cannot be a state of the run; empty when they can.
        """
        at = 0
        while ahead := self._ahead(at, rounds, due, measured):
            found = (self._read(path, self._lineage, misfit) for path in self._paths(ahead[0]))
            if checkpoint := next(filter(None, found), None):
                at = checkpoint.round
                yield checkpoint

    def keep(self, round_: int, state: Mapping[str, Tensor]) -> None:
        """Keep the state after a round, unless it is there or there is no room."""
        if not self._paths(round_):
            self._write(self._states, self._lineage, round_, state)

    def note(self, round_: int, measurements: Tensors, misfit: Callable[[Tensors], str]) -> None:
        """Keep the measurements of a run that ended with a round, together with those of runs before it."""
        before = stored(self._measured)
        together = {**self.measurements(misfit), **measurements}
        if path := self._write(self._measured, self._measuring, round_, together):
            for other in before:
                if other != path:
                    other.unlink(missing_ok=True)

    def _ahead(self, at: int, rounds: int, due: Collection[int], measured: Container[int]) -> list[int]:
        """The rounds that :meth:`way` goes through after round `at`, as far as one can tell without reading files."""
        there = {round_of(path) for path in stored(self._states) if path not in self._bad}
        reachable = sorted(round_ for round_ in there if at < round_ <= rounds)
        for last in reversed(reachable):
            lacking = {round_ for round_ in due if at < round_ <= last and round_ not in measured}
            if lacking <= there:
                return sorted({*lacking, last})
        return []

    def _paths(self, round_: int) -> list[Path]:
        return [path for path in stored(self._states) if round_of(path) == round_ and path not in self._bad]

    def _read(self, path: Path, identity: str, misfit: Callable[[Tensors], str]) -> Checkpoint | None:
        try:
            reason, checkpoint = read(path, identity, misfit)
            if checkpoint and checkpoint.round != round_of(path):
                reason, checkpoint = "its content does not match its name", None
            if checkpoint:
                with suppress(OSError):
                    os.utime(path)  # the longest unused go first
                return checkpoint
        except FileNotFoundError:  # another process has made room
            reason = ""
        except OSError as error:
            reason = str(error.strerror or error)
        self._bad.add(path)
        if reason:
            self.warn(f"{path}: {reason}; passed over")
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return None

    def _write(self, folder: Path, identity: str, round_: int, tensors: Mapping[str, Tensor]) -> Path | None:
        try:
            if self.room.make(sum(tensor.nbytes for tensor in tensors.values())):
                folder.mkdir(parents=True, exist_ok=True)
                return write(folder, identity, round_, tensors)
            reason = f"larger than PFL_KEEP, {self.room.limit} bytes"
        except (OSError, SafetensorError) as error:
            reason = str(error)
        self.warn(f"{folder}: round {round_} is not kept for longer runs ({reason})")
        return None
