"""What a method sees of one client: its state, in which names tell what an entry is, and what it can do with it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from pflcore.data.federation import Batch
from pflcore.errors import UserError
from pflcore.faults import caller
from pflcore.groups import Roles, Tensors
from pflcore.task import Classification, Task

# A client's state holds the entries of its model under their own names, which have no slash, and others below these.
OWN = "own/"  # kept on the client beside its model
COMMON = "common/"  # exchanged with the server beside the model
DATA = "data/"  # facts about the client's samples and the round, made by the engine
# Facts that a method may ask for: training samples of each class, steps in a pass over them and in the round, the
# number of the round from 1 (in measurements of the one to come), a seed for draws of its own that is another for each
# client and round, and the share of the rounds that are done with it, by which a run depends on how many there are.
PROGRESS = "progress"
FACTS = ("class_counts", "epoch_steps", "steps", "round", "draws", PROGRESS)
# Made by the engine where `training.class_weights` asks for it: (classes,), of the client's training samples.
CLASS_WEIGHTS = f"{DATA}class_weights"
# A learning rate: a number where it is the same in every step; else a tensor of no dimension.
Rate = float | Tensor


class Received(dict[str, Tensor]):
    """The state that a client began with. Raises :class:`UserError` for an entry that it does not have."""

    def __missing__(self, name: str) -> Tensor:
        known = [*self, *(f"{DATA}{fact}" for fact in FACTS)]
        found = difflib.get_close_matches(name, known, n=1)
        hint = ""
        if found and found[0] in self:
            hint = f"; did you mean {found[0]!r}?"
        elif found:
            hint = f"; {found[0]!r} must be asked for: facts = ({found[0].removeprefix(DATA)!r},)"
        raise UserError(f"{caller()}: local.received has no entry {name!r}{hint}")


@dataclass(frozen=True)
class OwnSamples:
    """All training samples of a client, for predictions that are made of them: `batches` are they in order, anew at
    each call; `noted` is (what makes a forward pass) → (what it gives, what memories are made of in that pass)."""

    batches: Callable[[], Iterator[Batch]]
    classes: int
    noted: Callable[[Callable[[], Tensor]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class ClientView:
    """One client's view of its round, made by the executor.

    Attributes:
        features: (state, inputs) → (logits, features), in the mode that the model is in. Features are the classifier's
            input, or what ``Method.feature_layer`` says. In training, running statistics are updated in place.
        differentiate: (function of the trained parameters, those parameters) → (gradients, value, aside). The function
            gives the loss, and further tensors to be handed out, which must be detached.
        sgd: (parameters, gradients, state) → the next parameters and state: a step of the run's optimiser, which is SGD
            unless `training.optimizer` names another. The state is a flat dict, empty at the first step, to be kept as
            it is. A method that looks into it, or whose step is -lr · gradient by definition, declares `plain_sgd`.
        received: The state that the client began the round with, from begin() to end(); in predict() what it is
            measured with. Not to be modified.
        parameters: Names of the model's entries that gradients train; its others are buffers.
        used: Which of the run's settings its loss has made use of.
        head: Names of the classifier's weight and bias, or only of its weight; empty without a classifier.
    """

    features: Callable[[Tensors, Tensor], tuple[Tensor, Tensor]]
    differentiate: Callable[[Callable[[Tensors], tuple[Tensor, Tensors]], Tensors], tuple[Tensors, Tensor, Tensors]]
    sgd: Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]
    received: Mapping[str, Tensor]
    parameters: frozenset[str]
    roles: Roles
    rate: Rate | None = None
    task: Task = field(default_factory=Classification)
    used: set[str] = field(default_factory=set)
    head: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Here, as what vmap hands over must be a plain dict.
        object.__setattr__(self, "received", Received(self.received))

    @property
    def lr(self) -> Rate:
        """The learning rate of the step. Raises :class:`UserError` outside of step(), where there is none."""
        if self.rate is None:
            raise UserError(f"{caller()}: local.lr is the learning rate of a step, and this is none: note it in step()")
        return self.rate

    def forward(self, state: Tensors, inputs: Tensor) -> Tensor:
        """Return logits of a state."""
        return self.features(state, inputs)[0]

    def classify(self, state: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Return logits (…, classes) of the linear classifier in a state, on features (…, features)."""
        weight, *bias = self.head
        return F.linear(features, state[weight], state[bias[0]] if bias else None)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the model's task, with the client's class weights if the run has any: (…, classes), (…) →
        scalar. What a method minimises should come from here; a run with class weights is refused where nothing does.
        """
        self.used.add(CLASS_WEIGHTS)
        return self.task.loss(logits, labels, self.received.get(CLASS_WEIGHTS))

    def gradient(self, loss: Callable[[Tensors], Tensor], params: Tensors) -> tuple[Tensors, Tensor]:
        """Return the gradients of a loss function of the trained parameters at `params`, and its value."""
        gradients, value, _ = self.differentiate(lambda given: (loss(given), {}), params)
        return gradients, value

    def frozen(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return the model of a state for a forward pass that must leave its running statistics as they are."""
        model = model_part(state)
        return {name: tensor if name in self.parameters else tensor.clone() for name, tensor in model.items()}


def model_part(state: Mapping[str, Tensor]) -> Tensors:
    """Return the entries of the model in a client's state."""
    return {name: tensor for name, tensor in state.items() if "/" not in name}
