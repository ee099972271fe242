"""Local training and inference of one client, which every executor uses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.client_view import CLASS_WEIGHTS, DATA, PROGRESS
from pflcore.data.augmentation import Augmentation
from pflcore.data.federation import FederatedData
from pflcore.engine.batches import LocalBatches
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.forward import Features, Stateless, Substitute, autocast
from pflcore.engine.linear import can_be_large, large_linear
from pflcore.engine.optimizers import learning_rate, make_optimizer
from pflcore.errors import UserError
from pflcore.faults import during
from pflcore.groups import Groups, Roles, Tensors, add_prefix, pick
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, OwnSamples, model_part, name_of
from pflcore.seeds import torch_seed
from pflcore.settings import Training
from pflcore.task import Task

# Parts of training: the local steps of rounds, the tuning before a measurement, the warm-up before the first round.
# Phases of rounds have the numbers above.
TRAINING, TUNING, WARMUP = range(3)
Job = tuple[int, Tensors]  # a client and the state that it receives, which is not modified
Forward = Callable[[Tensors, Tensor], tuple[Tensor, Tensor]]  # (state, inputs) → (logits, features)


class Diverged(Exception):
    """A loss in local training or in a measurement is not finite."""

    def __init__(self, round_: int, client: int) -> None:
        super().__init__(round_, client)  # all arguments, so that it can be pickled
        self.round, self.client = round_, client

    def __str__(self) -> str:
        return f"diverged in round {self.round} at client {self.client}: the loss is not finite; try a smaller lr"


@dataclass(frozen=True)
class Outcome:
    """A client after local training: its state and the mean loss over its local steps."""

    client: int
    model: Tensors
    loss: float


@dataclass
class Unfinished:
    """A client between two local steps, with the losses of the earlier steps."""

    state: LocalState
    losses: list[Tensor] = field(default_factory=list)


class Trainer:
    """Local training and inference of any client of a federation: one model object, one method, one dataset.

    Attributes:
        parameters: Names of the state entries that gradients train; `entries` are the names of all model entries.
        other_statistics: Whether layers other than batch norm have running statistics.
        frozen_buffers: Buffers that forward passes must not change.
        mask_ids: Additional ids of the dropout masks, so that the masks of parts and of a round's steps differ.
        extra: Whether a part's steps are passes in addition to the local steps of a round.
        parts: The trainers of :data:`TUNING`, :data:`WARMUP`, phases and views; `order` are the parts of a round.
            :mod:`pflcore.engine.phases` sets both, and :mod:`pflcore.engine.views` adds views.
        captured: Captures the classifier's input.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Groups,
        roles: Roles,
        data: FederatedData,
        method: Method,
        training: Training,
        seed: int,
        pace: Callable[[int, int], float] | None = None,
    ) -> None:
        self.model, self.method, self.training, self.seed = model, method, training, seed
        self.parameters, self.roles = groups.parameters, roles
        self.entries = frozenset(model.state_dict())
        if training.augments:
            changes = training.augment_rotation, training.augment_crop, training.augment_flip
            data = replace(data, augmentation=Augmentation(seed, *changes))
        self.data = data
        self.optimizer = make_optimizer(training)
        norms = {name for name, it in model.named_modules() if isinstance(it, nn.modules.batchnorm._BatchNorm)}
        statistics = (name for name, it in model.named_buffers() if it.is_floating_point() and name in self.entries)
        self.other_statistics = any(name.rpartition(".")[0] not in norms for name in statistics)
        self.noise = DropoutBits(model, data.example())
        self.captured, self.stateless = Features(model, groups), Stateless(model)
        self.large_layers = Substitute({F.linear: large_linear}) if can_be_large(model, data.device) else nullcontext()
        self.feature_layer = method.feature_layer  # kept here, since the method of a part can be a plain `Steps`
        self.task: Task = getattr(model, "task", None) or Task(data.positions, data.is_text, classes=data.classes)
        self.local = LocalBatches(data.train, training, seed, bool(norms), pace=pace)
        self.frozen_buffers: frozenset[str] = frozenset()
        self.mask_ids: tuple[int, ...] = ()
        self.extra = False
        self.parts: dict[int, Trainer] = {}
        self.order: tuple[int, ...] = (TRAINING,)
        self._class_counts: dict[int, Tensor] = {}  # by client; cached, because every round uses them

    def part(self, part: int) -> Trainer:
        """Return the trainer of a part: of rounds, a phase, the tuning, the warm-up, or a view."""
        return self if part == TRAINING else self.parts[part]

    @property
    def tuning(self) -> Trainer | None:
        """The trainer of the tuning before measurements; None if there is no tuning."""
        return self.parts.get(TUNING)

    # --- training ----------------------------------------------------------------------------------------------------

    def train(self, round_: int, client: int, received: Tensors) -> Outcome:
        """Take all local steps of a client. Raises :class:`Diverged` if a loss is not finite."""
        with during(f"client {client}"):
            unfinished = self.advance(round_, client, received, self.begin(received))
            return self.finish(round_, client, received, unfinished)

    def begin(self, received: Tensors) -> Unfinished:
        """Return a client before its first step, with copies, because steps and buffers work in place."""
        start = {name: tensor.clone() for name, tensor in received.items()}
        return Unfinished(self.method.begin(self.view(self.features, received), start))

    def advance(
        self, round_: int, client: int, received: Tensors, unfinished: Unfinished, stop: int | None = None
    ) -> Unfinished:
        """Take the steps up to, but without, `stop`; by default all remaining steps."""
        if not self.model.training:  # otherwise every module would be visited for nothing
            self.model.train()
        state, losses = unfinished.state, list(unfinished.losses)
        batches = self.local.batches(round_, client)[len(losses) : stop]
        steps = [torch.tensor(self.local.first(client) + len(losses) + index) for index in range(len(batches))]
        count = self.local.steps(round_, client)
        for batch in self.data.batches(batches, round_, steps):
            with during(f"step {len(losses) + 1} of {count}"):
                state, loss = self.take_step(round_, client, received, state, batch, len(losses))
            losses.append(loss.detach())
        return Unfinished(state, losses)

    def take_step(
        self, round_: int, client: int, received: Tensors, state: LocalState, batch: Batch, step: int
    ) -> tuple[LocalState, Tensor]:
        """Return the state after one local step, and the loss before it; each forward pass has different masks."""
        calls, samples = itertools.count(), len(batch.labels)

        def noisy(state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
            self.noise.load(self.masks(samples, round_, client, step, next(calls)))
            return self.features(state, inputs)

        features = noisy if self.noise.per_sample else self.features
        return self.step(self.view(features, received, self.learning_rate(round_, client, step)), state, batch)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        """Take the method's step. Raises :class:`UserError` if its loss ignores the run's class weights."""
        after = self.method.step(local, state, batch)
        if CLASS_WEIGHTS in local.received and CLASS_WEIGHTS not in local.used:
            raise no_class_weights(self.method)
        return after

    def finish(self, round_: int, client: int, received: Tensors, unfinished: Unfinished) -> Outcome:
        """Return the client after its last step. Raises :class:`Diverged` if a loss was not finite."""
        model = self.method.end(self.view(self.features, received), unfinished.state)["model"]
        # Copied from the device once per client, not once per step; the mean is not finite if one loss is not.
        mean = float(torch.stack(unfinished.losses).mean()) if unfinished.losses else 0.0
        if not math.isfinite(mean):
            raise Diverged(round_, client)
        return Outcome(client, model, mean)

    def learning_rate(self, round_: int, client: int, step: int) -> float:
        """Return the learning rate of a client's step; steps count from 0."""
        done = float(max(0, round_ - 1))
        if self.training.schedule_by == "step":
            done += (self.local.first(client) + step) / self.local.round_steps(client)
        return learning_rate(self.training, done)

    @torch.no_grad()
    def sgd(
        self, params: Tensors, gradients: Tensors, state: Tensors, lr: float | None = None
    ) -> tuple[Tensors, Tensors]:
        """Take one step of the run's optimiser, in place if that is faster; without `lr` use `training.lr`."""
        return self.optimizer.apply_in_place(params, gradients, state, self.training.lr if lr is None else lr)

    def masks(self, samples: int, round_: int, client: int, step: int, pass_: int) -> Tensor:
        """Return the random numbers of dropout in a forward pass of a step over a batch."""
        ids = (round_, client, self.local.first(client) + step, pass_, *self.mask_ids)
        return self.noise.draw(samples, self.seed, *ids)

    def view(self, features: Forward, received: Tensors, lr: float | None = None) -> ClientView:
        """Return a method's view of a client whose forward passes are calls of `features`."""
        return ClientView(
            features=features,
            differentiate=differentiate,
            sgd=partial(self.sgd, lr=lr),
            received=received,
            parameters=self.parameters,
            roles=self.roles,
            rate=lr,
            task=self.task,
            head=self.captured.head,
        )

    # --- inference ---------------------------------------------------------------------------------------------------

    def features(self, state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features of inputs; features are by default the classifier's input.

        Entries of the state that are not the model's are ignored. The mode (training or evaluation) is the model's.
        """
        if self.frozen_buffers:
            state = {name: it.clone() if name in self.frozen_buffers else it for name, it in state.items()}
        with autocast(self.training.precision, inputs.device), self.captured, self.large_layers:
            logits: Tensor = self.stateless(state, inputs)
            features = self.captured.of_memory() if self.feature_layer == "memory" else self.captured.of_classifier()
        return logits.float(), features.float()

    def measured(self, state: Tensors) -> Tensors:
        """Return the entries of a client's state for its measurement, with class weights if it is tuned first."""
        weights = pick(state, [CLASS_WEIGHTS]) if self.tuning else {}
        measured = self.method.eval_state(state)
        if missing := model_part(state).keys() - measured.keys():
            raise UserError(
                f"method {name_of(self.method)}: eval_state lacks {min(missing)!r}; return all of the model"
            )
        return {**measured, **weights}

    def predict(self, state: Tensors, inputs: Tensor) -> Tensor:
        """Return the logits with which a client is measured; `state` is from :meth:`measured`."""
        return self.method.predict(self.view(self.features, state), state, inputs)

    def predictor(self, state: Tensors, client: int, size: int) -> Callable[[Tensor], Tensor]:
        """Return inputs → logits for a client's measurement; `state` is from :meth:`measured`. If the method remembers,
        this reads all training samples of the client, `size` per forward pass."""
        if not self.method.remembers:
            return partial(self.predict, state)

        def with_memory(forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
            with self.captured:
                return forward(), self.captured.of_memory().float()

        self.model.eval()
        rows = torch.split(self.data.train[client], size)
        samples = OwnSamples(lambda: self.data.batches(rows), self.data.classes, with_memory)
        with torch.no_grad():
            return self.method.predictor(self.view(self.features, state), state, samples)

    # --- facts for the method ----------------------------------------------------------------------------------------

    def federation(self, initial: Tensors) -> Federation:
        """Return the facts about the federation and the initial model."""
        data, training, head = self.data, self.training, self.captured.head
        return Federation(
            clients=data.clients,
            seed=self.seed,
            momentum=training.momentum,
            classes=data.classes,
            features=initial[head[0]].shape[-1] if head else 0,
            head=head,
            local_epochs=None if training.local_steps else training.local_epochs,
            total_rounds=training.rounds if PROGRESS in self.method.facts else None,
            samples=tuple(map(len, data.train)),
            novel=data.novel,
            generated={name: tuple(it.shape) for name, it in initial.items() if name in self.roles.generated},
            parameters=self.parameters,
        )

    def facts(self, client: int, round_: int) -> Tensors:
        """Return a client's facts in a round that the method declares, and class weights if any; names: ``data/…``."""
        facts: dict[str, Callable[[], Tensor]] = {
            "class_counts": lambda: self.class_counts(client),
            "epoch_steps": lambda: torch.tensor(self.local.epoch_steps(client)),
            "steps": lambda: torch.tensor(self.local.steps(round_, client)),
            "round": lambda: torch.tensor(round_),
            "draws": lambda: torch.tensor(torch_seed(self.seed, "draws", round_, client)),
            PROGRESS: lambda: torch.tensor(round_ / self.training.rounds),
        }
        tensors = add_prefix(DATA, {name: facts[name]() for name in self.method.facts})
        if self.training.class_weights == "balanced":
            tensors[CLASS_WEIGHTS] = balanced(self.class_counts(client))
        return {name: tensor.to(self.data.device) for name, tensor in tensors.items()}

    def class_counts(self, client: int) -> Tensor:
        """Return the number of a client's training samples per class: (classes,)."""
        if client not in self._class_counts:
            self._class_counts[client] = self.data.class_counts(client)
        return self._class_counts[client]


def no_class_weights(method: Method) -> UserError:
    """Return the error for a method whose loss ignores class weights."""
    why = "none of its losses is a local.cross_entropy"
    return UserError(f"method {name_of(method)} does not go with training.class_weights: {why}")


def differentiate(
    loss: Callable[[Tensors], tuple[Tensor, Tensors]], params: Tensors
) -> tuple[Tensors, Tensor, Tensors]:
    """Return the gradients of a loss function at `params`, by name, its value, and its auxiliary tensors."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    value, aux = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value, aux


def balanced(counts: Tensor) -> Tensor:
    """Return the weight of each class, (classes,), from the number of samples per class, (classes,).

    All classes that occur have the same total weight, and the mean weight of a sample is 1.
    """
    return torch.where(counts > 0, counts.sum() / counts.count_nonzero() / counts, 0.0)
