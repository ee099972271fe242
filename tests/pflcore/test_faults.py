"""What is told of a fault in somebody's method: the line, and the client, round and step, under every executor."""

from __future__ import annotations

import inspect
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
from pflcore.faults import in_a_line, portable, shown
from pflcore.groups import Tensors
from pflcore.method import FACTS, Batch, ClientView, LocalState, Phase, Steps
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


def printed(error: Exception) -> list[str]:
    """The lines that Python prints of it."""
    return "".join(traceback.format_exception(error)).splitlines()


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


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_fault_in_a_step_names_client_round_and_step(executor: str) -> None:
    error = fail(in_loss(), executor)
    lines = printed(error)
    assert type(error) is ValueError and str(error) == "boom"
    assert lines[-2:] == ["ValueError: boom", f"client 3, round 2, step 2 of 4, executor {executor}"]
    last = [line for line in lines if line.startswith("  File ")][-1]
    assert Path(__file__).name in last and last.endswith("in loss")
    assert sum("vmap" in line for line in lines) == 0  # of the client alone
    assert in_a_line(error).endswith(f"; client 3, round 2, step 2 of 4, executor {executor})")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("personal", [(), ("head",)])
def test_a_fault_in_measuring(executor: str, personal: tuple[str, ...]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class InPredict(FedAvg):
        def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
            if len(inputs) in (8, 26):  # client 3's, all clients'
                raise KeyError("boom")
            return super().predict(local, state, inputs)

    error = fail(InPredict(also_personal=personal), executor)
    who = "client 3" if personal else "predict()"  # one model for all is measured on all samples at once
    assert printed(error)[-2:] == ["KeyError: 'boom'", f"{who}, measured after round 1, executor {executor}"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_fault_in_tuning(executor: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class InTuning(FedAvg):
        def tuning(self) -> Phase:
            return Phase(in_loss())

    error = fail(InTuning(), executor)
    assert printed(error)[-1] == f"client 3, tuned after round 1, step 2 of 2, executor {executor}"


_ALL = {**vars(Steps), **vars(Method)}
FUNCTIONS = [name for name, value in _ALL.items() if inspect.isfunction(value) and not name.startswith("_")]
CLIENTS = ("begin", "end", "loss", "step")
WITHIN = {"average": "update_server", "shares": "update_server"}  # helpers of a function that the engine calls
BEFORE = ("extend", "trained", "roles", "init_client", "init_shared", "init_server", "tuning", "phases", "warmup")


@pytest.mark.parametrize(
    ("executor", "function"),
    [
        pytest.param(kind, one, marks=[] if kind == "sequential" or one in ("step", "predict") else pytest.mark.matrix)
        for kind in EXECUTORS
        for one in FUNCTIONS
    ],
)
def test_every_function_of_a_method_is_named_or_its_client(function: str, executor: str) -> None:
    def broken(self: Method, *_: object, **__: object) -> None:
        raise ZeroDivisionError("boom")

    broken.__code__ = broken.__code__.replace(co_name=function)
    # Else nobody asks for these.
    remembers, opens = function in ("predictor", "beside_neighbours"), function == "end_warmup"
    more = {"remembers": remembers, **({"warmup": lambda _: Phase()} if opens else {})}
    error = fail(type("Broken", (FedAvg,), {function: broken, **more})(), executor)
    lines = printed(error)
    assert type(error) is ZeroDivisionError and lines[-2] == "ZeroDivisionError: boom"
    if function in CLIENTS:
        assert re.match(rf"client \d, round 1, (step 1 of \d, )?executor {executor}$", lines[-1])
    elif function in BEFORE:
        assert lines[-1] == f"{function}(), before the first round"
    elif opens:
        assert lines[-1] == f"end_warmup(), before the first round, executor {executor}"
    elif remembers:
        assert re.match(rf"client \d, measured after round 1, executor {executor}$", lines[-1])
    else:
        measured = "measured after " if function in ("predict", "eval_state") else ""
        assert lines[-1] == f"{WITHIN.get(function, function)}(), {measured}round 1, executor {executor}"


def test_a_stack_is_named_when_no_client_of_it_fails_alone() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Deciding(FedAvg):
        def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
            value = super().loss(local, params, batch)
            return value if value.item() > 0 else -value

    run(Deciding(), backbone("convnet"), federation(*SIZES), training=HALF, executor="sequential")
    error = fail(Deciding(), "stacked")
    first = ", ".join(map(str, sampled(SEED, 1, 4, HALF)))
    assert "vmap" in str(error)
    assert printed(error)[-1].startswith(f"clients {first} stacked, round 1, executor stacked, PFL_EXECUTOR=sequential")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_meant_for_a_user_says_nothing_else(executor: str) -> None:
    error = fail(in_loss(lambda: UserError("use a larger batch")), executor)
    assert type(error) is UserError and printed(error)[-1] == "pflcore.errors.UserError: use a larger batch"
    assert not hasattr(error, "__notes__")


IN_BLOCKS = """
def blocks(call):
    call()
"""
IN_MINE = """
def step(call):
    call()
def bad():
    raise AssertionError
"""


def test_the_line_is_that_of_an_entry() -> None:
    """Neither that of code which entries share, nor that of the engine, though they lie deeper."""
    root = Path(pflcore.__file__).parent
    shared: dict[str, Any] = {}
    mine: dict[str, Any] = {}
    exec(compile(IN_BLOCKS, str(root / "methods/_blocks.py"), "exec"), shared)
    exec(compile(IN_MINE, str(root / "methods/mine.py"), "exec"), mine)
    deep = mine["bad"]
    for call, line in (
        (lambda: mine["step"](lambda: shared["blocks"](lambda: portable(None))), "methods/mine.py:3"),
        (lambda: shared["blocks"](deep), "methods/mine.py:5"),
        (lambda: shared["blocks"](lambda: shown(None)), "methods/_blocks.py:3"),
    ):
        with pytest.raises(Exception) as error:
            call()
        assert f" (pflcore/{line})" in in_a_line(error.value)
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
