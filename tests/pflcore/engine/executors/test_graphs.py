"""Replaying a recorded step: on CUDA the same numbers as calling it, without CUDA simply a call."""

from __future__ import annotations

import pytest
import torch
from support.cohorts import trainer
from support.tape import Graph, Recorded, Tape, record_on_tape
from support.tiny import assert_states_close
from torch import Tensor

from pflcore.engine.executors.graphs import Replay, copy_tree
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.executors.stacked import Stacked


def test_without_cuda_a_function_is_called() -> None:
    replay = Replay(torch.device("cpu"))
    assert not replay.on
    assert replay(0, lambda one, two: (one, two), 1, 2) == (1, 2)


# --- recording on a tape, which has CUDA's rules and runs on a CPU ---------------------------------------------------


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return record_on_tape(monkeypatch)


def recording() -> Replay:
    replay = Replay(torch.device("cpu"))
    replay.on = True
    return replay


def square(tree: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    return {"x": tree["x"] ** 2}, tree["x"].sum()


def grown(state: dict[str, Tensor], by: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return a state with an entry that, as momenta, is there after the first step."""
    moved = {"x": state["x"] + by, "before": state["x"].clone()}
    return moved, moved["x"].sum()


def test_a_state_is_handed_on_where_it_lies(tape: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = recording()
    state, by = {"x": torch.zeros(3), "before": torch.zeros(3)}, torch.tensor([1.0, 2.0, 4.0])
    for _ in range(3):
        replay(0, grown, {"x": torch.zeros(3)}, by)
        replay(0, grown, state, by)
    state, _ = replay(0, grown, {"x": torch.ones(3)}, by)  # by one recording, and on by the other
    kept = copy_tree(state)
    for step in range(2, 5):
        state, total = replay(0, grown, state, by)
        assert state["x"].tolist() == [1 + step, 1 + 2 * step, 1 + 4 * step] and float(total) == 3 + 7 * step
        assert state["before"].tolist() == [step, 2 * step - 1, 4 * step - 3]
    assert kept["x"].tolist() == [2, 3, 5] and kept["before"].tolist() == [1, 1, 1]
    assert len(tape.captures) == 2
    seen = Graph()
    monkeypatch.setattr(Graph, "replay", lambda self: None)
    with Tape(seen):
        replay(0, grown, state, by)
    copies = [operation for operation, *_ in seen.tape if "copy" in str(operation) or "clone" in str(operation)]
    assert len(copies) == 2  # of what is added, and of the sum


def test_other_shapes_and_other_steps_have_recordings_of_their_own(tape: Recorded) -> None:
    replay = recording()
    for width in (2, 9):
        for turn in range(4):
            assert replay(0, square, {"x": torch.full((width,), float(turn))})[0]["x"].tolist() == [turn**2] * width
    assert replay(0, square, {"x": torch.full((2,), 3.0)})[0]["x"].tolist() == [9, 9]
    assert len(tape.captures) == 2
    for _ in range(4):
        assert replay(1, lambda tree: (tree, tree["x"].sum()), {"x": torch.ones(2)})[0]["x"].tolist() == [1, 1]
    assert len(tape.captures) == 3 and tape.pools == 1


def test_what_cannot_be_captured_is_called_on_the_stream_before(tape: Recorded) -> None:
    replay = recording()
    tape.failures.append(RuntimeError("operation not permitted when stream is capturing\nmore"))
    for _ in range(2):
        replay(0, square, {"x": torch.ones(2)})
    with pytest.warns(UserWarning, match=r"not recorded \(operation not permitted when stream is capturing\); slower"):
        assert replay(0, square, {"x": torch.full((2,), 3.0)})[0]["x"].tolist() == [9, 9]
    assert tape.current == "main" and not replay.on


def test_memory_that_ends_a_recording_is_told_and_recording_goes_on(tape: Recorded) -> None:
    def large(x: Tensor) -> tuple[Tensor, Tensor]:
        if tape.captures:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return x, x.sum()

    replay = recording()
    for _ in range(2):
        replay(0, large, torch.ones(2))
    tape.failures.append(RuntimeError("CUDA error: operation failed due to a previous error during capture"))
    with pytest.raises(torch.OutOfMemoryError):
        replay(0, large, torch.ones(2))
    assert replay.on and tape.current == "main"
    tape.captures.clear()
    tape.failures.append(RuntimeError("CUDA error: out of memory\nmore"))  # when a graph is made of what was captured
    with pytest.raises(RuntimeError, match="out of memory"):
        replay(0, large, torch.ones(2))
    assert replay.on


@pytest.mark.parametrize(
    ("name", "net"), [pytest.param("fedavg", "tiny_vit", marks=pytest.mark.matrix), ("ditto", "convnet")]
)
def test_a_stack_that_is_recorded_agrees_with_single_clients(name: str, net: str, tape: Recorded) -> None:
    reference, state = trainer(name, net, momentum=0.5, local_epochs=4)
    stacked = Stacked(reference, 8)
    stacked.replay.on = True
    companions = {f"own/{key}": tensor for key, tensor in state.items()} if name == "ditto" else {}
    jobs = [(client, {**state, **companions}) for client in (0, 2, 4)]
    for round_ in (1, 2):
        expected = list(Sequential(reference).train(round_, jobs))
        for one, other in zip(stacked.train(round_, jobs), expected, strict=True):
            assert_states_close(one.model, other.model)
    assert len(tape.captures) == 2  # of steps that all clients take, and that only some do
