"""What is said of a fault in somebody's method: the line, and the client, round and step, under every executor."""

import errno
import re
from pathlib import Path

import pytest
from support.mistakes import line_of
from support.tiny import EVERY_ROUND, EXECUTORS, backbone, federation, run, sampled, training

import pflcore
from pflcore.errors import UserError, bounded, describe_os_error
from pflcore.faults import error_line, portable
from pflcore.method import FACTS
from pflcore.methods.simple import FedAvg

# Of client 3 alone, the second batch has four samples, and there are eight tests.
SIZES = ((10, 5, 10, 9), (5, 6, 7, 8))
HALF = training(sample_rate=0.5)
# Client 3 takes part in the second round only.
SEED = next(s for s in range(99) if [3 in sampled(s, round_, 4, HALF) for round_ in (1, 2)] == [False, True])
HERE = f"tests/pflcore/{Path(__file__).name}"


@pytest.fixture(autouse=True)
def two_workers(monkeypatch):
    monkeypatch.setenv("PFL_WORKERS", "2")


def fail(executor, personal=(), **parts):
    """What a run of two rounds of FedAvg with other parts ends with."""
    entry = type("Mine", (FedAvg,), parts)(also_personal=personal)
    arguments = {"training": HALF, "seed": SEED, "evaluation": EVERY_ROUND, "executor": executor}
    with pytest.raises(Exception) as error:
        run(entry, backbone("convnet"), federation(*SIZES), **arguments)
    return error.value


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_fault_in_a_step_names_line_client_round_and_step(executor):
    fault = ValueError("boom")

    def loss(self, local, params, batch):
        if len(batch.labels) == 4:
            raise fault
        return FedAvg.loss(self, local, params, batch)

    error = fail(executor, loss=loss)
    assert type(error) is ValueError and str(error) == "boom"
    together = ", ".join(map(str, sampled(SEED, 2, 4, HALF)))
    place = f"clients {together} stacked; PFL_EXECUTOR=sequential takes one at a time without vmap"
    place = place if executor == "stacked" else "step 2 of 4, client 3"
    assert error_line(error).endswith(f"{place}, round 2, executor {executor})")
    fault = UserError("use a larger batch")
    error = fail(executor, loss=loss)
    assert type(error) is UserError and str(error) == "use a larger batch" and not hasattr(error, "__notes__")


@pytest.mark.parametrize("executor, personal", [("stacked", ()), ("pooled", ()), ("sequential", ("head",))])
def test_a_fault_in_measuring(executor, personal):
    def predict(self, local, state, inputs):
        if len(inputs) in (8, 26):  # client 3's, all clients'
            raise KeyError("boom")
        return FedAvg.predict(self, local, state, inputs)

    line = error_line(fail(executor, personal, predict=predict))
    assert line.startswith("KeyError: 'boom' (") and line.endswith(f"measuring, round 1, executor {executor})")
    assert ("client 3, " in line) == bool(personal)


def test_where_a_function_of_a_method_fails():
    def broken(*_):
        raise ZeroDivisionError("boom")

    for function, executor, note in (
        ("init_server", "sequential", "before the first round"),
        ("update_server", "sequential", "round 1, executor sequential"),
        ("begin", "pooled", r"client \d, round 1, executor pooled"),
        ("step", "pooled", r"step 1 of \d, client \d, round 1, executor pooled"),
    ):
        error = fail(executor, **{function: broken})
        assert type(error) is ZeroDivisionError
        assert re.search(rf"\(pflcore/[\w/.]+:\d+, {note}\)$", error_line(error))


def test_the_line_is_that_of_an_entry():
    """Not that of the engine, though it lies deeper."""
    namespace, place = {}, str(Path(pflcore.__file__).parent / "methods/mine.py")
    exec(compile("\ndef step(call):\n    call()\n", place, "exec"), namespace)
    with pytest.raises(AttributeError) as error:
        namespace["step"](lambda: portable(None))
    assert error_line(error.value).endswith(" (pflcore/methods/mine.py:3)")
    assert error_line(AssertionError()) == "AssertionError"


def test_a_message_has_its_beginning_and_its_end_however_long_it_is():
    assert bounded("a  b\nc") == "a b c" and bounded("x" * 299) == "x" * 299
    assert bounded(f"specs/a.yaml:3: {'k' * 5000} is wrong") == f"specs/a.yaml:3: {'k' * 100}...{'k' * 40} is wrong"
    message = str(UserError(f"specs/a.yaml:3: {'word ' * 2000}do this"))
    assert len(message) <= 4000 and message.startswith("specs/a.yaml:3: word") and message.endswith("do this")


def test_a_file_system_without_locks_is_said_with_what_helps():
    for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
        line = describe_os_error(OSError(number, "No locks", "a/run.lock"))
        assert line == "a/run.lock: No locks; file locks are needed, so work on a local disk"


NEAR = "; did you mean 'data/class_counts'?"
ASK = "; 'data/progress' must be asked for: facts = ('progress',)"


@pytest.mark.parametrize(
    "facts, wanted, hint", [(FACTS, "data/class_count", NEAR), ((), "data/progres", ASK), ((), "x", "")]
)
def test_an_entry_that_was_not_received(facts, wanted, hint):
    def loss(self, local, params, batch):
        assert all(f"data/{fact}" in local.received for fact in facts)
        return local.received[wanted].sum()

    for executor in EXECUTORS if facts else ("sequential",):
        error = fail(executor, facts=facts, loss=loss)
        assert type(error) is UserError
        assert str(error) == f"{HERE}:{loss.__code__.co_firstlineno + 2}: local.received has no entry {wanted!r}{hint}"


def test_what_there_is_not_and_when_there_is_none():
    def begin(self, local, start):
        return {"model": {name: tensor * local.lr for name, tensor in start.items()}}

    line = f"{HERE}:{begin.__code__.co_firstlineno + 1}: local.lr is the learning rate of a step, and this is none"
    assert str(fail("stacked", begin=begin)).startswith(line)
    line = line_of(type, "Mine", (FedAvg,), {"facts": ("progress", "class_count"), "__module__": __name__})
    assert line == f"{HERE}: facts: there is no fact 'class_count'; did you mean 'class_counts'?"
