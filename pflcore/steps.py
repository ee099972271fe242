"""Local steps of a client, and phases of local training."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pflcore.client_view import ClientView
from pflcore.data.federation import Batch
from pflcore.groups import Tensors, split

LocalState = dict[str, Tensors]


class Steps:
    """Local steps of a client: begin(), step() for each batch, end(); by default SGD on the model's cross-entropy.

    A method is itself a `Steps`. A phase with other steps has another instance, which the method creates.
    """

    # Whether samples act only through the cross-entropy, so that a sample with an ignored label changes nothing.
    # A class that overrides `loss` or `step` must state it again.
    ignores_unlabelled: ClassVar[bool] = True
    # False for steps with control flow that depends on data: the executor `stacked` then trains clients in turn.
    supports_vmap: ClassVar[bool] = True

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        """Return the loss that a client minimises on one batch, a scalar."""
        return local.cross_entropy(local.forward(params, batch.inputs), batch.labels)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        """Return the state before the first step. `start` is a copy of the received state, which steps may change in
        place. After :meth:`end`, the entry ``"model"`` is the client's new state."""
        return {"model": start, "opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        """Take one local step; return the next state and the loss before the step."""
        return sgd_step(local, state, lambda params: self.loss(local, params, batch), local.parameters)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        """Return the state after the last step."""
        return state


@dataclass(frozen=True)
class Phase:
    """A part of local training from begin() to end(): in a round, before the first round, or before measurements.

    The next phase of a round begins with the state that this one ends with (`local.received`), and a new optimiser.
    """

    # The local steps; None: the method's own, or before measurements steps on the client's predictions.
    steps: Steps | None = None
    # Passes over the client's samples. They use the batches of the round that are left, rounded down to whole steps;
    # None is all that are left. With `extra`, they are whole passes with further batches; None is one pass.
    epochs: float | None = None
    extra: bool = False
    share: float = 1.0  # share of the client's samples in extra passes, drawn again in each round
    # The roles whose parameters are trained: "shared", "personal", "generated"; empty: all. Other parameters and their
    # running statistics do not change.
    roles: tuple[str, ...] = ()
    # Only before measurements: number of steps in place of passes, each on a new batch; the learning rate of plain
    # SGD, by default that of training; the groups that are trained, by default all.
    count: int | None = None
    lr: float | None = None
    groups: tuple[str, ...] = ()


def name_of(method: Steps) -> str:
    """Return the name of a method; if it is not registered, the name of its class."""
    return str(getattr(method, "name", type(method).__name__))


def sgd_step(
    local: ClientView, state: LocalState, loss: Callable[[Tensors], Tensor], trained: Collection[str]
) -> tuple[LocalState, Tensor]:
    """Take one step of the run's optimiser on the entries in `trained`; return the next state and the loss before it.
    `loss` is a function of all entries of the model, including buffers."""
    moving, rest = split(state["model"], trained)
    gradients, value = local.gradient(lambda params: loss({**params, **rest}), moving)
    moving, opt_state = local.sgd(moving, gradients, state["opt_state"])
    return {**state, "model": {**state["model"], **moving}, "opt_state": opt_state}, value
