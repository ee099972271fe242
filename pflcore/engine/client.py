"""What one client does in a round: the steps of its local training, which every executor carries out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pflcore.client_view import CLASS_WEIGHTS, DATA, PROGRESS
from pflcore.data.augmentation import Augmentation
from pflcore.data.federation import FederatedData
from pflcore.engine.batches import LocalBatches
from pflcore.engine.dropout import DropoutBits
from pflcore.engine.forward import Features, autocast
from pflcore.engine.optimizers import learning_rate, make_optimizer
from pflcore.errors import UserError
from pflcore.faults import during
from pflcore.groups import Groups, Roles, Tensors, add_prefix, pick
from pflcore.method import Batch, ClientView, Federation, LocalState, Method, OwnSamples, name_of
from pflcore.seeds import torch_seed
from pflcore.settings import Training
from pflcore.task import Classification, Task

# What is trained: the local steps of rounds, those before a measurement, those before the first round. Phases of rounds
# have the numbers after it.
TRAINING, TUNING, WARMUP = range(3)
Job = tuple[int, Tensors]  # a client and the model state that it receives, which is left as it is
Forward = Callable[[Tensors, Tensor], tuple[Tensor, Tensor]]  # (state, inputs) → (logits, features)


class Diverged(Exception):
    """Local training, or the models it left behind, produced a loss that is not finite."""

    def __init__(self, round_: int, client: int) -> None:
        super().__init__(round_, client)  # all that there is, so that it can pass between processes
        self.round, self.client = round_, client

    def __str__(self) -> str:
        return f"diverged in round {self.round} at client {self.client}: the loss is not finite; try a smaller lr"


@dataclass(frozen=True)
class Outcome:
    """A client after its round: its model state and the mean loss over its local steps."""

    client: int
    model: Tensors
    loss: float


@dataclass
class Unfinished:
    """A client between two of its local steps, with the losses of those before."""

    state: LocalState
    losses: list[Tensor] = field(default_factory=list)


class Trainer:
    """Local training and inference of any client of a federation: one model object, one method, one data set.

    Attributes:
        parameters: Names of the state entries that gradients train; `entries` are all of the model's.
        other_statistics: Whether layers other than batch norm have running statistics.
        resting: Buffers that its forward passes leave as they are.
        mask_ids: What tells the dropout masks of a part from those of a round's steps.
        parts: The trainers of what is not all of a round's local steps, :data:`TUNING`, phases and further views, by
            part; `order` are the parts that a round consists of. Both are given by :mod:`pflcore.engine.phases`.
        seen: Access to what the classifier gets.
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
        self.seen = Features(model, groups)
        self.feature_layer = method.feature_layer  # of parts, too, whose method may be steps alone
        self.task: Task = getattr(model, "task", None) or Classification(data.positions, data.is_text)
        self.local = LocalBatches(data.train, training, seed, bool(norms), pace=pace)
        self.resting: frozenset[str] = frozenset()
        self.mask_ids: tuple[int, ...] = ()
        self.parts: dict[int, Trainer] = {}
        self.order: tuple[int, ...] = (TRAINING,)
        self._class_counts: dict[int, Tensor] = {}  # of clients; they are wanted in every round

    def part(self, part: int) -> Trainer:
        """Return the trainer of rounds, of a phase of theirs, of what precedes a measurement, or of a view."""
        return self if part == TRAINING else self.parts[part]

    @property
    def tuning(self) -> Trainer | None:
        """What is done with a client before it is measured, if anything."""
        return self.parts.get(TUNING)

    # --- training ----------------------------------------------------------------------------------------------------

    def train(self, round_: int, client: int, received: Tensors) -> Outcome:
        """Carry out all of a client's local training. Raises :class:`Diverged`."""
        with during(f"client {client}"):
            done = self.advance(round_, client, received, self.begin(received))
            return self.finish(round_, client, received, done)

    def begin(self, received: Tensors) -> Unfinished:
        """Begin with copies: steps and buffers work in place."""
        start = {name: tensor.clone() for name, tensor in received.items()}
        return Unfinished(self.method.begin(self.view(self.features, received), start))

    def advance(
        self, round_: int, client: int, received: Tensors, unfinished: Unfinished, stop: int | None = None
    ) -> Unfinished:
        """Take the steps up to `stop`, by default all that are left."""
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
        """Return the state after one local step, and the loss before it; each forward pass has masks of its own."""
        calls, samples = itertools.count(), len(batch.labels)

        def noisy(state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
            self.noise.load(self.masks(samples, round_, client, step, next(calls)))
            return self.features(state, inputs)

        features = noisy if self.noise.per_sample else self.features
        return self.step(self.view(features, received, self.learning_rate(round_, client, step)), state, batch)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        """Take the method's step. Raises :class:`UserError` where its loss passes over the run's class weights."""
        made = self.method.step(local, state, batch)
        if CLASS_WEIGHTS in local.received and CLASS_WEIGHTS not in local.used:
            raise no_class_weights(self.method)
        return made

    def finish(self, round_: int, client: int, received: Tensors, unfinished: Unfinished) -> Outcome:
        """End after the last step. Raises :class:`Diverged` when a loss was not finite."""
        model = self.method.end(self.view(self.features, received), unfinished.state)["model"]
        # One look at the device per client, not per step; a loss that is not finite stays so in the mean.
        mean = float(torch.stack(unfinished.losses).mean()) if unfinished.losses else 0.0
        if not math.isfinite(mean):
            raise Diverged(round_, client)
        return Outcome(client, model, mean)

    def learning_rate(self, round_: int, client: int, step: int) -> float:
        """Return that of a client's step, counted from 0."""
        by_step = self.training.schedule_by == "step"
        within = (self.local.first(client) + step) / self.local.whole(client) if by_step else 0.0
        return learning_rate(self.training, max(0, round_ - 1) + within)

    @torch.no_grad()
    def sgd(
        self, params: Tensors, gradients: Tensors, state: Tensors, lr: float | None = None
    ) -> tuple[Tensors, Tensors]:
        """Take one step of the run's optimiser, in place where that is faster; without `lr` at the full rate."""
        return self.optimizer.apply_in_place(params, gradients, state, self.training.lr if lr is None else lr)

    def masks(self, samples: int, round_: int, client: int, step: int, one_pass: int) -> Tensor:
        """Return the random numbers of dropout in one forward pass over a batch."""
        ids = (round_, client, self.local.first(client) + step, one_pass, *self.mask_ids)
        return self.noise.draw(samples, self.seed, *ids)

    def view(self, features: Forward, received: Tensors, lr: float | None = None) -> ClientView:
        """Return what a method sees of a client that makes its forward passes by `features`."""
        return ClientView(
            features=features,
            differentiate=differentiate,
            sgd=partial(self.sgd, lr=lr),
            received=received,
            parameters=self.parameters,
            roles=self.roles,
            rate=lr,
            task=self.task,
            head=self.seen.head,
        )

    # --- inference ---------------------------------------------------------------------------------------------------

    def features(self, state: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of a model state and what the method sees of them, by default what the classifier gets.

        Entries that are not the model's are ignored. The model's mode decides whether it is training.
        """
        state = pick(state, self.entries)
        state |= {name: state[name].clone() for name in self.resting if name in state}
        with autocast(self.training.precision, inputs.device), self.seen:
            logits: Tensor = functional_call(self.model, state, (inputs,))
            features = self.seen.of_memory() if self.feature_layer == "memory" else self.seen.of_classifier()
        return logits.float(), features.float()

    def measured(self, state: Tensors) -> Tensors:
        """Return what of a client's state it is measured with; with its class weights where it is tuned."""
        weights = pick(state, [CLASS_WEIGHTS]) if self.tuning else {}
        return {**self.method.eval_state(state), **weights}

    def predict(self, state: Tensors, inputs: Tensor) -> Tensor:
        """Return the logits that a client is measured by; `state` is from :meth:`measured`."""
        return self.method.predict(self.view(self.features, state), state, inputs)

    def predictor(self, state: Tensors, client: int, size: int) -> Callable[[Tensor], Tensor]:
        """Return what a client is measured by, inputs → logits; of a method that remembers made of all its samples,
        `size` in a forward pass; `state` is from :meth:`measured`."""
        if not self.method.remembers:
            return partial(self.predict, state)

        def noted(forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
            with self.seen:
                return forward(), self.seen.of_memory().float()

        self.model.eval()
        rows = torch.split(self.data.train[client], size)
        samples = OwnSamples(lambda: self.data.batches(rows), self.data.classes, noted)
        with torch.no_grad():
            return self.method.predictor(self.view(self.features, state), state, samples)

    # --- what a method is given --------------------------------------------------------------------------------------

    def federation(self, initial: Tensors) -> Federation:
        """Return what the server is given, by the initial model."""
        data, training, head = self.data, self.training, self.seen.head
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
            generated={name: tuple(it.shape) for name, it in initial.items() if name in self.roles.generated},
            parameters=self.parameters,
        )

    def facts(self, client: int, round_: int) -> Tensors:
        """Return the facts of a client and a round that the method asks for, under names that begin with ``data/``."""
        made: dict[str, Callable[[], Tensor]] = {
            "class_counts": lambda: self.class_counts(client),
            "epoch_steps": lambda: torch.tensor(self.local.epoch_steps(client)),
            "steps": lambda: torch.tensor(self.local.steps(round_, client)),
            "round": lambda: torch.tensor(round_),
            "draws": lambda: torch.tensor(torch_seed(self.seed, "draws", round_, client)),
            PROGRESS: lambda: torch.tensor(round_ / self.training.rounds),
        }
        facts = add_prefix(DATA, {name: made[name]() for name in self.method.facts})
        if self.training.class_weights == "balanced":
            facts[CLASS_WEIGHTS] = balanced(self.class_counts(client))
        return {name: tensor.to(self.data.device) for name, tensor in facts.items()}

    def class_counts(self, client: int) -> Tensor:
        """Return how many training samples of each class a client has: (classes,), counted once."""
        if client not in self._class_counts:
            self._class_counts[client] = self.data.class_counts(client)
        return self._class_counts[client]


def no_class_weights(method: Method) -> UserError:
    """Return the error of a method whose losses know nothing of class weights."""
    why = "none of its losses is a local.cross_entropy"
    return UserError(f"method {name_of(method)} does not go with training.class_weights: {why}")


def differentiate(
    loss: Callable[[Tensors], tuple[Tensor, Tensors]], params: Tensors
) -> tuple[Tensors, Tensor, Tensors]:
    """Return the gradients of a loss function at `params`, by name, its value, and what it returns beside it."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    value, aside = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value, aside


def balanced(counts: Tensor) -> Tensor:
    """Return the weight of each class from its samples: (classes,) of (classes,).

    The samples of each class that occurs have the same total weight, and the mean weight of a sample is 1.
    """
    return torch.where(counts > 0, counts.sum() / counts.count_nonzero() / counts, 0.0)
