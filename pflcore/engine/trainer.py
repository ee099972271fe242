"""What one client does in a round: the steps of its local training, which every executor carries out."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pflcore.client_view import CLASS_WEIGHTS
from pflcore.data.federation import FederatedData
from pflcore.engine.divergence import Diverged
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.features import Features
from pflcore.engine.local_batches import LocalBatches, augmented
from pflcore.engine.optimizers import make_optimizer
from pflcore.engine.precision import autocast
from pflcore.engine.schedules import learning_rate
from pflcore.errors import UserError
from pflcore.faults import during, locate
from pflcore.groups import Groups, Tensors, pick
from pflcore.method import Batch, ClientView, LocalState, OwnSamples, name_of
from pflcore.methods import Method
from pflcore.ownership import roles_of
from pflcore.settings import Training
from pflcore.task import Classification, Task

# What is trained: the local steps of rounds, those before a measurement, those before the first round. Phases of rounds
# have the numbers after it.
TRAINING, TUNING, OPENING = range(3)
# A client and the model state that it receives; the latter is left as it is.
Job = tuple[int, Tensors]


@dataclass(frozen=True)
class Outcome:
    """A client after its round: its model state and the mean loss over its local steps."""

    client: int
    model: Tensors
    loss: float


@dataclass
class Unfinished:
    """A client between two of its local steps."""

    state: LocalState
    losses: list[Tensor] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return len(self.losses)


class Trainer:
    """Local training and inference of any client of a federation: one model object, one method, one data set.

    Attributes:
        model: The module; its dropout layers are replaced by those of :mod:`pflcore.engine.dropout`.
        parameters: Names of the state entries that gradients train.
        optimizer: What a step does with gradients.
        roles: Who owns the entries.
        batch_norm: Whether the model has batch norm, which cannot train on a batch of one sample.
        local: The batches of local steps.
        resting: Buffers that its forward passes leave as they are.
        parts: The trainers of what is not all of a round's local steps, :data:`TUNING` and phases, by part; as
            `order`, the parts that a round consists of, given by :mod:`pflcore.engine.parts`.
        seen: Access to what the classifier gets.
        feature_layer: Which features the method sees.
        task: What the model is to predict.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Groups,
        data: FederatedData,
        method: Method,
        training: Training,
        seed: int,
    ) -> None:
        self.model = model
        self.parameters = groups.parameters
        self.roles = roles_of(method, groups)
        self.entries = frozenset(model.state_dict())
        self.data = augmented(data, training, seed)
        self.method = method
        self.training = training
        self.optimizer = make_optimizer(training)
        self.seed = seed
        self.batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        self.noise = DropoutBits(model, data.example())
        self.seen = Features(model, groups)
        self.feature_layer = method.feature_layer
        self.task: Task = getattr(model, "task", None) or Classification(data.positions, data.is_text)
        self.local = LocalBatches(self.data.train, training, seed, self.batch_norm)
        self.resting: frozenset[str] = frozenset()
        self.mask_ids: tuple[int, ...] = ()
        self.when = "round"
        self.parts: dict[int, Trainer] = {}
        self.order: tuple[int, ...] = (TRAINING,)

    @property
    def tuning(self) -> Trainer | None:
        """What is done with a client before it is measured, if anything."""
        return self.parts.get(TUNING)

    def steps(self, client: int) -> int:
        """Local steps of a client. Raises as :meth:`batches`."""
        return self.local.steps(client)

    def batches(self, round_: int, client: int) -> list[Tensor]:
        """The rows of each local step. Raises :class:`UserError` where batch norm has a single sample to normalise."""
        return self.local.batches(round_, client)

    def number(self, client: int, step: int) -> int:
        """The place of a step in the client's round, both from 0."""
        return self.local.first(client) + step

    def begin(self, received: Tensors) -> Unfinished:
        """Before the first step. Steps and buffers work in place, so the client starts from copies."""
        start = {name: tensor.clone() for name, tensor in received.items()}
        return Unfinished(self.method.begin(self._local(self.features, received), start))

    def advance(
        self, round_: int, client: int, received: Tensors, unfinished: Unfinished, stop: int | None = None
    ) -> Unfinished:
        """Take the steps up to `stop`, by default all that are left."""
        self.model.train()
        state, losses = unfinished.state, list(unfinished.losses)
        batches = self.batches(round_, client)[unfinished.step : stop]
        try:
            steps = [torch.tensor(self.number(client, unfinished.step + index)) for index in range(len(batches))]
            for batch in self.data.batches(batches, round_, steps):
                state, loss = self.take_step(round_, client, received, state, batch, len(losses))
                losses.append(loss.detach())
        except Exception as error:
            locate(error, step=f"step {len(losses) + 1} of {self.steps(client)}")
            raise
        return Unfinished(state, losses)

    def take_step(
        self, round_: int, client: int, received: Tensors, state: LocalState, batch: Batch, step: int
    ) -> tuple[LocalState, Tensor]:
        """The state after one local step, and the loss before it."""
        features = self._noisy(len(batch.labels), round_, client, step)
        lr = self.learning_rate(round_, client, step)
        return self.step(self._local(features, received, lr), state, batch)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        """The method's step. Raises :class:`UserError` where its loss passes over the run's class weights."""
        made = self.method.step(local, state, batch)
        if CLASS_WEIGHTS in local.received and CLASS_WEIGHTS not in local.used:
            raise passed_over(self.method)
        return made

    def finish(self, round_: int, client: int, received: Tensors, unfinished: Unfinished) -> Outcome:
        """After the last step. Raises :class:`Diverged` when a loss was not finite."""
        model = self.method.end(self._local(self.features, received), unfinished.state)["model"]
        # One look at the device per client, not per step; a loss that is not finite stays so in the mean.
        mean = float(torch.stack(unfinished.losses).mean()) if unfinished.losses else 0.0
        if not math.isfinite(mean):
            raise Diverged(round_, client)
        return Outcome(client, model, mean)

    def train(self, round_: int, client: int, received: Tensors) -> Outcome:
        """All of a client's local training. Raises :class:`Diverged`."""
        with self.at(round_, client):
            done = self.advance(round_, client, received, self.begin(received))
            return self.finish(round_, client, received, done)

    def at(self, round_: int, client: int) -> AbstractContextManager[None]:
        """Let an error in the block know that it is of this client's training."""
        return during(who=f"client {client}", when=f"{self.when} {round_}")

    def features(self, state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of a model state and what the method sees of them, by default what the classifier gets.

        Both are computed in the run's precision.
        The model's mode decides whether it is training. Entries that are not the model's are passed over.
        """
        state = pick(state, self.entries)
        state |= {name: state[name].clone() for name in self.resting if name in state}
        with autocast(self.training.precision, inputs.device), self.seen:
            logits: Tensor = functional_call(self.model, state, (inputs,))
            features = self.seen.memory() if self.feature_layer == "memory" else self.seen.classifiers()
        return logits.float(), features.float()

    def predictor(self, state: Tensors, client: int, size: int) -> Callable[[Tensor], Tensor]:
        """What a client is measured by, inputs → logits; of a method that remembers made of all its training samples.

        Args:
            state: What the method calls personalised.
            size: Samples per forward pass.
        """
        if not self.method.remembers:
            return partial(self.predict, state)
        self.model.eval()
        with torch.no_grad():
            return self.method.predictor(self._local(self.features, state), state, self.samples(client, size))

    def samples(self, client: int, size: int) -> OwnSamples:
        """A client's training samples, `size` in a forward pass."""

        def noted(forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
            with self.seen:
                return forward(), self.seen.memory().float()

        rows = torch.split(self.data.train[client], size)
        return OwnSamples(lambda: self.data.batches(rows), self.data.classes, noted)

    def measured(self, state: Tensors) -> Tensors:
        """What of a client's state it is measured with, by the method; with its class weights where it is tuned."""
        weights = pick(state, [CLASS_WEIGHTS]) if self.tuning else {}
        return {**self.method.eval_state(state), **weights}

    def predict(self, state: Tensors, inputs: Tensor) -> Tensor:
        """The logits that a client is measured by; `state` is what the method's ``eval_state`` gives."""
        return self.method.predict(self._local(self.features, state), state, inputs)

    def masks(self, samples: int, round_: int, client: int, step: int, one_pass: int) -> Tensor:
        """The random numbers of dropout in one forward pass over a batch."""
        ids = (round_, client, self.number(client, step), one_pass, *self.mask_ids)
        return self.noise.draw(samples, self.seed, *ids)

    def learning_rate(self, round_: int, client: int, step: int) -> float:
        """That of a client's step, counted from 0."""
        training = self.training
        within = self.number(client, step) / self.local.whole(client) if training.schedule_by == "step" else 0.0
        return learning_rate(training, max(0, round_ - 1) + within)

    def _local(
        self,
        features: Callable[[Tensors, Tensor], tuple[Tensor, Tensor]],
        received: Tensors,
        lr: float | None = None,
    ) -> ClientView:
        sgd = self.sgd if lr is None else partial(self.sgd, lr=lr)
        return ClientView(
            features, differentiate, sgd, received, self.parameters, self.roles, lr, self.task, head=self.seen.head
        )

    def _noisy(
        self, samples: int, round_: int, client: int, step: int
    ) -> Callable[[Tensors, Tensor], tuple[Tensor, Tensor]]:
        """:meth:`features` in training mode; each call within the step has dropout masks of its own."""
        if not self.noise.per_sample:
            return self.features
        calls = iter(range(1 << 31))

        def features(state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
            self.noise.load(self.masks(samples, round_, client, step, next(calls)))
            return self.features(state, inputs)

        return features

    @torch.no_grad()
    def sgd(
        self, params: Tensors, gradients: Tensors, state: Tensors, lr: float | None = None
    ) -> tuple[Tensors, Tensors]:
        """One step of the run's optimiser, in place where that is faster; without `lr` at the full learning rate."""
        return self.optimizer.apply_in_place(params, gradients, state, self.training.lr if lr is None else lr)


def passed_over(method: Method) -> UserError:
    """Say that a method's losses know nothing of class weights."""
    return UserError(
        f"method {name_of(method)} does not go with training.class_weights: none of its losses is a local.cross_entropy"
    )


def chosen(trainer: Trainer, part: int) -> Trainer:
    """The trainer of a part: of rounds, of a phase of theirs, or of what precedes a measurement."""
    return trainer if part == TRAINING else trainer.parts[part]


def differentiate(
    loss: Callable[[Tensors], tuple[Tensor, Tensors]], params: Tensors
) -> tuple[Tensors, Tensor, Tensors]:
    """The gradients of a loss function at `params`, by name, its value, and what it gives beside it."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    value, aside = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value, aside
