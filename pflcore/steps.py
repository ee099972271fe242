"""Local steps of a client, and the phases that they form."""

from __future__ import annotations

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

    A method is one; a part of its round that does something else has another, made by the method with what it needs.
    """

    # Whether steps see samples through the cross-entropy alone, so that one whose label this passes over changes
    # nothing. Whoever overrides `loss` or `step` has to say it anew.
    ignores_unlabelled: ClassVar[bool] = True
    # False for steps with control flow that depends on data: where others are stacked, its clients are trained in turn.
    supports_vmap: ClassVar[bool] = True

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        """Return what a client minimises on one batch, a scalar."""
        return local.cross_entropy(local.forward(params, batch.inputs), batch.labels)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        """Return the state before the first step; ``"model"`` is what the client ends with, `start` its own copy of
        what it received, on which steps may work in place."""
        return {"model": start, "opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        """Take one local step; return the next state and the loss before it."""
        return sgd_step(local, state, lambda params: self.loss(local, params, batch), local.parameters)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        """Return the state after the last step."""
        return state


@dataclass(frozen=True)
class Phase:
    """A part of a client's training from begin() to end(): of a round, before the first one, or before measurements.

    What a phase of a round changes is kept; the next begins with it, as its `local.received`, with a new optimiser.
    """

    # Its local steps; None: the method's own, and before measurements steps on what the client predicts with.
    steps: Steps | None = None
    # Passes over the client's samples, in the batches of the round that are left, rounded down to whole steps; None is
    # all that are left, or one where they are extra: whole passes in batches of its own, beside those of the round.
    epochs: float | None = None
    extra: bool = False
    share: float = 1.0  # of the client's samples that extra passes see, drawn anew in each round
    # Whose parameters are trained, of "shared", "personal" and "generated"; none named: all. The others rest, with
    # their running statistics.
    roles: tuple[str, ...] = ()
    # Before measurements: steps instead of passes, on batches drawn anew; the learning rate of plain SGD, by default
    # that of training; the groups that are trained, by default all.
    count: int | None = None
    lr: float | None = None
    groups: tuple[str, ...] = ()


def name_of(method: Steps) -> str:
    """Return what a method is called, also one that is not registered."""
    name: str = getattr(method, "name", type(method).__name__)
    return name


def sgd_step(
    local: ClientView, state: LocalState, loss: Callable[[Tensors], Tensor], trained: Collection[str]
) -> tuple[LocalState, Tensor]:
    """Take one step of the run's optimiser on the entries in `trained`; return the next state and the loss before it,
    which is a function of all entries of the model, buffers among them."""
    moving, rest = split(state["model"], trained)
    gradients, value = local.gradient(lambda params: loss({**params, **rest}), moving)
    moving, opt_state = local.sgd(moving, gradients, state["opt_state"])
    return {**state, "model": {**state["model"], **moving}, "opt_state": opt_state}, value
