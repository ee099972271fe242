"""A method's view of one client: the client's state, whose names say what an entry is, and operations on it."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from pflcore.data.federation import Batch
from pflcore.errors import UserError
from pflcore.faults import caller
from pflcore.groups import Roles, Tensors
from pflcore.task import Task

# In a client's state, names of model entries have no slash. Names of other entries begin with one of these prefixes.
OWN = "own/"  # personal entries beside the model
COMMON = "common/"  # exchanged with the server beside the model
DATA = "data/"  # facts about the client's samples and the round, computed by the engine
# Facts that a method can declare, in this order: training samples per class; steps in one epoch; steps in the round;
# the round's number from 1 (in measurements, of the next round); a seed for the method's own draws, different for each
# client and round; the share of rounds done at the round's end, which makes results depend on the number of rounds.
PROGRESS = "progress"
FACTS = ("class_counts", "epoch_steps", "steps", "round", "draws", PROGRESS)
# Computed by the engine from the client's training samples if `training.class_weights` is set: (classes,).
CLASS_WEIGHTS = f"{DATA}class_weights"
# A learning rate: a number, or a tensor without dimensions if a vectorised step receives the rate as an input.
Rate = float | Tensor


class Received(dict[str, Tensor]):
    """The state with which a client began. Raises :class:`UserError` for an entry that is missing."""

    def __missing__(self, name: str) -> Tensor:
        hint = ""
        for match in difflib.get_close_matches(name, [*self, *(f"{DATA}{fact}" for fact in FACTS)], n=1):
            hint = f"; {match!r} must be asked for: facts = ({match.removeprefix(DATA)!r},)"
            if match in self:
                hint = f"; did you mean {match!r}?"
        raise UserError(f"{caller()}: local.received has no entry {name!r}{hint}")


@dataclass(frozen=True)
class OwnSamples:
    """All training samples of a client, for predictions that use them. Each call of `batches` iterates over them in
    order. `noted` calls a function with a forward pass; it returns the result and the memory features of the pass."""

    batches: Callable[[], Iterator[Batch]]
    classes: int
    noted: Callable[[Callable[[], Tensor]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class ClientView:
    """A method's view of one client in a round, created by the executor.

    Attributes:
        features: (state, inputs) → (logits, features), in the model's current mode. Features are the classifier's input
            unless ``Method.feature_layer`` says otherwise. In training mode, running statistics are updated in place.
        differentiate: (function of the trained parameters, those parameters) → (gradients, value, aside). The function
            returns the loss and a dict of further tensors, `aside`, which must be detached.
        sgd: (parameters, gradients, state) → the next parameters and state: a step of the run's optimiser, which is SGD
            unless `training.optimizer` names another. The state is a flat dict, empty at the first step; methods must
            not change it. A method that reads it, or whose step is -lr · gradient by definition, declares `plain_sgd`.
        received: The state with which the client began the round, from begin() to end(); in predict() the state with
            which the client is measured. Do not modify it.
        parameters: Names of the model entries that gradients train; others are buffers, or not trained.
        used: The settings of the run that the loss has used so far.
        head: Names of the classifier's weight and bias, or only of its weight; empty without a classifier.
    """

    features: Callable[[Tensors, Tensor], tuple[Tensor, Tensor]]
    differentiate: Callable[[Callable[[Tensors], tuple[Tensor, Tensors]], Tensors], tuple[Tensors, Tensor, Tensors]]
    sgd: Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]
    received: Mapping[str, Tensor]
    parameters: frozenset[str]
    roles: Roles
    rate: Rate | None = None
    task: Task = field(default_factory=Task)
    used: set[str] = field(default_factory=set)
    head: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Converted here, because vmap passes only plain dicts.
        object.__setattr__(self, "received", Received(self.received))

    @property
    def lr(self) -> Rate:
        """The learning rate of the current step. Raises :class:`UserError` outside of step()."""
        if self.rate is None:
            raise UserError(f"{caller()}: local.lr is the learning rate of a step, and this is none: note it in step()")
        return self.rate

    def forward(self, state: Tensors, inputs: Tensor) -> Tensor:
        """Return the logits of the model with a state's entries."""
        return self.features(state, inputs)[0]

    def classify(self, state: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Return the logits (…, classes) of a state's linear classifier on features (…, features)."""
        weight, *bias = self.head
        return F.linear(features, state[weight], state[bias[0]] if bias else None)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the model's task, with the client's class weights if the run has any: (…, classes), (…) →
        scalar. A method's losses should call this function. If none does, a run with class weights is refused.
        """
        self.used.add(CLASS_WEIGHTS)
        return self.task.loss(logits, labels, self.received.get(CLASS_WEIGHTS))

    def gradient(self, loss: Callable[[Tensors], Tensor], params: Tensors) -> tuple[Tensors, Tensor]:
        """Return the gradients and the value, at `params`, of a loss that is a function of the trained parameters."""

        def checked(values: Tensors) -> tuple[Tensor, Tensors]:
            value: object = loss(values)
            if isinstance(value, Tensor) and value.ndim == 0:
                return value, {}
            actual = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"a loss must be a tensor of one number, not {actual}; does the method's loss() return it?")

        gradients, value, _ = self.differentiate(checked, params)
        return gradients, value

    def frozen(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return a state's model entries for a forward pass that must not change the state's running statistics."""
        entries = model_part(state).items()
        return {name: tensor if name in self.parameters else tensor.clone() for name, tensor in entries}


def model_part(state: Mapping[str, Tensor]) -> Tensors:
    """Return the model entries of a client's state."""
    return {name: tensor for name, tensor in state.items() if "/" not in name}
