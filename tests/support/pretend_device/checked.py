"""Recorded steps held against called ones: what a graph replays is what a call would do now."""

from __future__ import annotations

from typing import Any

from pflcore.engine.executors.graphs import Replay, Step, copy_tree, signature
from support.pretend_device.tape import Tape
from support.pretend_device.tensors import STATE


class CheckedReplay(Replay):
    """A replay that raises :class:`Stale` where a graph has other numbers than the step would take by now."""

    def __call__(self, key: object, step: Step, *arguments: Any) -> Any:
        before = copy_tree(arguments)  # a state is overwritten by the next
        result = super().__call__(key, step, *arguments)
        recording = self.recordings.get((key, signature(arguments)))
        if recording:
            events, STATE.events = STATE.events, type(STATE.events)()
            STATE.tape = now = Tape()
            try:
                step(*before)
            finally:
                STATE.tape, STATE.events = None, events
            recording.graph.tape.compare(now)
        return result
