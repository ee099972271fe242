"""What is told of a fault in somebody's method: the line, and the client, round and step, under every executor."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.tiny import EVERY_ROUND, EXECUTORS, backbone, federation, method, run, sampled, training
from torch import Tensor

import pflcore
from pflcore.errors import UserError
from pflcore.faults import in_a_line, portable
from pflcore.groups import Tensors
from pflcore.method import FACTS, Batch, ClientView, LocalState
from pflcore.methods import Method
from pflcore.methods.simple import FedAvg

SIZES = (
    (10, 5, 10, 9),
    (5, 6, 7, 8),
)  # of client 3 alone, the second batch has four samples, and there are eight tests
HALF = training(sample_rate=0.5)
# Client 3 takes part in the second round only.
SEED = next(s for s in range(99) if [3 in sampled(s, round_, 4, HALF) for round_ in (1, 2)] == [False, True])


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_WORKERS", "2")


def fail(entry: Method, executor: str, **changes: Any) -> Exception:
    """What a run of two rounds ends with."""
    arguments = {"training": HALF, "seed": SEED, "evaluation": EVERY_ROUND, "executor": executor, **changes}
    with pytest.raises(Exception) as error:
        run(entry, backbone("convnet"), federation(*SIZES), **arguments)
    assert isinstance(error.value, Exception)
    return error.value


@dataclass(frozen=True, kw_only=True)
class InLoss(FedAvg):
    """Fails in the small batch of client 3."""

    make: ClassVar[Callable[[], Exception]]

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        if len(batch.labels) == 4:
            raise type(self).make()
        return super().loss(local, params, batch)


def in_loss(make: Callable[[], Exception] = lambda: ValueError("boom")) -> Method:
    return type("InLoss", (InLoss,), {"make": staticmethod(make)})()


def known(error: Exception) -> tuple[str, str]:
    """Return the file and line of an error in a line, and what else it says was at hand."""
    line = in_a_line(error)
    place, _, rest = line[line.rindex("(") + 1 : -1].partition(", ")
    return place, rest


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_fault_in_a_step_names_line_client_round_and_step(executor: str) -> None:
    error = fail(in_loss(), executor)
    assert type(error) is ValueError and str(error) == "boom"
    together = ", ".join(str(one) for one in sampled(SEED, 2, 4, HALF))
    who = f"clients {together} stacked; PFL_EXECUTOR=sequential takes one at a time without vmap"
    who = who if executor == "stacked" else "step 2 of 4, client 3"
    assert in_a_line(error).endswith(f"{who}, round 2, executor {executor})")
    assert "in loss" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("personal", [(), ("head",)])
def test_a_fault_in_measuring(executor: str, personal: tuple[str, ...]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class InPredict(FedAvg):
        def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
            if len(inputs) in (8, 26):  # client 3's, all clients'
                raise KeyError("boom")
            return super().predict(local, state, inputs)

    line = in_a_line(fail(InPredict(also_personal=personal), executor))
    assert line.startswith("KeyError: 'boom' (") and line.endswith(f"measuring, round 1, executor {executor})")
    assert ("client 3, " in line) == (bool(personal) and executor != "stacked")


def broken(self: Method, *_: object, **__: object) -> None:
    raise ZeroDivisionError("boom")


@pytest.mark.parametrize(
    ("function", "executor", "told"),
    [
        *((one, "sequential", "before the first round") for one in ("extend", "init_shared", "init_server", "phases")),
        *((one, "sequential", "round 1, executor sequential") for one in ("participants", "generate", "update_server")),
        ("begin", "pooled", r"client \d, round 1, executor pooled"),
        ("end", "sequential", r"client \d, round 1, executor sequential"),
        ("step", "pooled", r"step 1 of \d, client \d, round 1, executor pooled"),
    ],
)
def test_where_a_function_of_a_method_fails(function: str, executor: str, told: str) -> None:
    error = fail(type("Broken", (FedAvg,), {function: broken})(), executor)
    assert type(error) is ZeroDivisionError
    place, rest = known(error)
    assert place.startswith("pflcore/") and re.fullmatch(told, rest)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_meant_for_a_user_says_nothing_else(executor: str) -> None:
    error = fail(in_loss(lambda: UserError("use a larger batch")), executor)
    assert type(error) is UserError and str(error) == "use a larger batch" and not hasattr(error, "__notes__")


IN_MINE = """
def step(call):
    call()
"""


def test_the_line_is_that_of_an_entry() -> None:
    """Not that of the engine, though it lies deeper."""
    mine: dict[str, Any] = {}
    exec(compile(IN_MINE, str(Path(pflcore.__file__).parent / "methods/mine.py"), "exec"), mine)
    with pytest.raises(AttributeError) as error:
        mine["step"](lambda: portable(None))  # type: ignore[arg-type]
    assert in_a_line(error.value).endswith(" (pflcore/methods/mine.py:3)")
    assert in_a_line(AssertionError()) == "AssertionError"


# --- what a method asks for ----------------------------------------------------------------------------------------


def test_a_fact_that_there_is_not() -> None:
    with pytest.raises(UserError) as error:
        type("Mine", (FedAvg,), {"facts": ("progress", "class_count"), "__module__": __name__})
    here = f"tests/pflcore/{Path(__file__).name}"
    assert str(error.value) == f"{here}: facts: there is no fact 'class_count'; did you mean 'class_counts'?"


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("facts", "wanted", "hint"),
    [
        (FACTS, "data/class_count", "; did you mean 'data/class_counts'?"),
        ((), "data/class_counts", "; 'data/class_counts' must be asked for: facts = ('class_counts',)"),
        ((), "data/progres", "; 'data/progress' must be asked for: facts = ('progress',)"),
        ((), "haed.weight", "; did you mean 'head.weight'?"),
        ((), "x", ""),
    ],
)
def test_an_entry_that_was_not_received(facts: tuple[str, ...], wanted: str, hint: str, executor: str) -> None:
    def loss(self: Method, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        assert all(f"data/{fact}" in local.received for fact in facts)
        return local.received[wanted].sum()

    error = fail(type("Mine", (FedAvg,), {"facts": facts, "loss": loss})(), executor)
    line = loss.__code__.co_firstlineno + 2
    here = f"tests/pflcore/{Path(__file__).name}:{line}"
    assert type(error) is UserError
    assert str(error) == f"{here}: local.received has no entry {wanted!r}{hint}"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_there_is_no_learning_rate_outside_of_a_step(executor: str) -> None:
    def begin(self: Method, local: ClientView, start: Tensors) -> LocalState:
        return {"model": {name: tensor * local.lr for name, tensor in start.items()}}

    error = fail(type("Mine", (FedAvg,), {"begin": begin})(), executor)
    here = f"tests/pflcore/{Path(__file__).name}:{begin.__code__.co_firstlineno + 1}"
    assert str(error) == f"{here}: local.lr is the learning rate of a step, and this is none: note it in step()"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            lambda: FedAvg(also_personal=("head", "atention")),
            "also_personal: the backbone has no parameter group 'atention'; did you mean 'attention",
        ),
        (
            lambda: FedAvg(also_personal=("blocks.13",)),
            "also_personal: the backbone has no parameter group 'blocks.13'; did you mean 'blocks.1'?",
        ),
        (
            lambda: type("Mine", (FedAvg,), {"personal": ("hed",)})(),
            "personal: the backbone has no parameter group 'hed'; did you mean 'head'?",
        ),
        (
            lambda: method("personal_groups", groups=("norn",)),
            "groups: the backbone has no parameter group 'norn'; did you mean 'norm'?",
        ),
    ],
)
def test_a_group_or_module_that_the_backbone_lacks(entry: Callable[[], Method], told: str) -> None:
    asking = entry()
    with pytest.raises(UserError) as error:
        run(asking, backbone("tiny_vit"))
    assert str(error.value).startswith(f"method {asking.name}: {told}")
