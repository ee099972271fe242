"""Roles of parameters, checks of settings against the method and the data, and the trainers of a run: for whole rounds,
phases, the warm-up and the tuning."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from torch import Tensor, nn

from pflcore.data.federation import FederatedData
from pflcore.data.samples import IMAGES
from pflcore.engine.client import TRAINING, TUNING, WARMUP, Trainer, no_class_weights
from pflcore.engine.optimizers import make_optimizer
from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles, Tensors
from pflcore.method import OWN, Batch, ClientView, LocalState, Method, Phase, Steps, name_of, sgd_step
from pflcore.settings import DEPENDENT_SETTINGS, Training

_BEYOND = ("optimizer", "momentum", "nesterov", "weight_decay", "clip", "schedule", "schedule_by", "warmup")
_PLAIN_SGD: dict[str, Any] = {name: getattr(Training, name) for name in (*_BEYOND, *DEPENDENT_SETTINGS)}


def roles_of(method: Method, groups: Groups) -> Roles:
    """Return the method's roles without fixed entries. Raises :class:`UserError` if the backbone lacks a group."""
    with _naming_groups(method):
        return method.roles(groups).without(groups.fixed)


def groups_of(method: Method, groups: Groups) -> Groups:
    """Return the groups with the parameters that the method trains. Raises like :func:`roles_of`, and if none are."""
    names = method.trained()
    with _naming_groups(method):
        trained = groups.training(names) if names else groups
    untrained = {name for name, group in groups.group_of.items() if group in method.untrained}
    if groups.parameters and not trained.parameters - untrained:
        if not names:
            part = ", ".join(method.untrained)
            raise UserError(f"method {name_of(method)}: its rounds do not train {part}, which is all of the backbone")
        which = "parameters that its rounds train" if trained.parameters else "parameters"
        raise UserError(f"method {name_of(method)}: train_only: there are no {which} in {', '.join(names)}")
    return trained


@contextmanager
def _naming_groups(method: Method) -> Iterator[None]:
    """Add to an error about an unknown group which option or attribute of the method names the group."""
    try:
        yield
    except UserError as error:
        for name in ("personal", "generated", *(field_.name for field_ in fields(method))):
            value = getattr(method, name)
            groups = value if isinstance(value, tuple) else ()
            if any(f"no parameter group {group!r}" in str(error) for group in groups):
                raise UserError(f"method {name_of(method)}: {name}: {error}") from None
        raise


def check_settings(method: Method, training: Training, data: FederatedData, detects: bool) -> None:
    """Raise :class:`UserError` if the settings do not fit the method or the data, or if these do not fit a detector."""
    name = f"method {name_of(method)}:"
    augment = "training.augment_crop, _flip and _rotation"
    if training.augments and data.kind != IMAGES:
        raise UserError(f"{augment} are of images; the dataset is of {data.kind}")
    if training.class_weights != "none" and not method.weighs_classes:
        raise no_class_weights(method)
    if method.plain_sgd and (other := training.beyond_sgd):
        raise UserError(f"{name} its local steps are plain SGD by definition; leave out training.{other}")
    if not detects:
        return
    changed = [part for part in ("predict", "predictor") if getattr(type(method), part) is not getattr(Method, part)]
    if "class_counts" in method.facts or changed or method.remembers:
        why = "makes predictions of its own" if changed else "knows samples by their one class"
        raise UserError(f"{name} it {why}, so it does not go with a detector")
    if training.augments:
        raise UserError(f"{augment} do not move boxes, so do not go with a detector")
    if training.class_weights != "none":
        raise UserError("training.class_weights are of one label per sample, so they do not go with a detector")


def make_trainer(
    model: nn.Module,
    groups: Groups,
    data: FederatedData,
    method: Method,
    training: Training,
    seed: int,
    pace: Callable[[int, int], float] | None = None,
) -> Trainer:
    """Return the trainer of a run, with those of its method's parts; `pace` is that of its batches."""
    trainer = Trainer(model, groups, roles_of(method, groups), data, method, training, seed, pace)
    if tuning := method.tuning():
        trainer.parts[TUNING] = _tuner(trainer, groups, tuning)
    trainer.order = tuple(_phases(trainer))
    if not trainer.order:
        raise UserError(f"method {name_of(trainer.method)}: phases() names no phase; return (Phase(),) to train once")
    for number, part in enumerate(trainer.order, 1):
        batches = trainer.part(part).local
        if not batches.training.local_steps and batches.before >= batches.training.local_epochs:
            raise _no_step(trainer, number)
    return trainer


def check_steps(trainer: Trainer) -> None:
    """Raise :class:`UserError` if a part of a round has no step for any client, with the samples that these have."""
    members = [client for client in range(trainer.data.clients) if client not in trainer.data.novel]
    for number, part in enumerate(trainer.order, 1):
        batches = trainer.part(part).local
        if not any(batches.steps(0, client) for client in members):
            raise _no_step(trainer, number)


def _no_step(trainer: Trainer, number: int) -> UserError:
    where = f"method {name_of(trainer.method)}: in part {number} of {len(trainer.order)} of its round"
    return UserError(
        f"{where} no client takes a local step; change how many epochs the method gives to each part, or "
        "training.local_epochs, local_steps or batch_size"
    )


def _tuner(trainer: Trainer, groups: Groups, tuning: Phase) -> Trainer:
    """Return the trainer with the steps and batches of the method's tuning."""
    where = f"method {name_of(trainer.method)}: finetune_groups:"
    try:
        part = groups.select(tuning.groups or (ALL,))
    except UserError as error:
        raise UserError(f"{where} {error}") from None
    tuner = _separate(trainer, TUNING, tuning, "tuning", lr=tuning.lr or trainer.training.lr, **_PLAIN_SGD)
    tuner.parameters = groups.parameters & part
    if groups.parameters and not tuner.parameters:
        raise UserError(f"{where} train_only leaves nothing to train in them")
    _restrict(tuner, tuning)
    # A part only calls the functions of Steps, so its `method` can be a plain Steps.
    tuner.method = cast(Method, tuning.steps or FineTuning(host=trainer.method, moving=part - groups.parameters))
    tuner.parts = {}
    tuner.data = replace(trainer.data, augmentation=None)
    tuner.optimizer = make_optimizer(tuner.training)
    return tuner


def _separate(trainer: Trainer, part: int, phase: Phase, stream: str, **settings: Any) -> Trainer:
    """Return a copy of the trainer whose passes or steps are extra to those of a round, with other settings."""
    trainer = copy.copy(trainer)
    passes = int(phase.epochs or 1)  # not used if `local_steps` is set
    trainer.training = replace(trainer.training, local_epochs=passes, local_steps=phase.count, **settings)
    trainer.local = replace(trainer.local, training=trainer.training, stream=stream, share=phase.share, pace=None)
    trainer.mask_ids = (part,)
    return trainer


def _restrict(trainer: Trainer, phase: Phase) -> None:
    """Let the trainer of a part train only what has the phase's roles. Raises :class:`UserError` if that is nothing."""
    if not phase.roles:
        return
    trained = frozenset[str]().union(*(getattr(trainer.roles, role) for role in phase.roles))
    trainer.frozen_buffers = trainer.entries - trainer.parameters - trained
    if trainer.parameters and not trainer.parameters & trained:
        roles = f"what is {' and '.join(phase.roles)}, and there is nothing of that to train"
        why = "with this backbone, train_only and also_personal"
        raise UserError(f"method {name_of(trainer.method)}: one of its phases trains {roles} {why}")
    trainer.parameters &= trained


def _phases(trainer: Trainer) -> Iterator[int]:
    """Create the trainers of the warm-up and of the phases; yield the parts of a round in order."""
    passes = 0.0
    if warmup := trainer.method.warmup():
        trainer.parts[WARMUP] = _phase(trainer, WARMUP, replace(warmup, extra=True), 0.0)
    for part, phase in enumerate(trainer.method.phases(), WARMUP + 1):
        if phase == Phase() and not passes:
            yield TRAINING
            continue
        trainer.parts[part] = _phase(trainer, part, phase, passes)
        if not phase.extra:
            passes += phase.epochs or math.inf
        yield part


def _phase(trainer: Trainer, part: int, phase: Phase, before: float) -> Trainer:
    """Return the trainer with the steps and batches of a phase that begins after `before` passes of the round."""
    if phase.extra:
        trainer = _separate(trainer, part, phase, f"phase {part}")
    else:
        trainer = copy.copy(trainer)
        trainer.local = replace(trainer.local, before=before, passes=phase.epochs)
    _restrict(trainer, phase)
    trainer.method, trainer.extra = cast(Method, phase.steps or trainer.method), phase.extra
    return trainer


@dataclass(frozen=True)
class FineTuning(Steps):
    """Steps that tune a client: on the cross-entropy of the predictions with which the method `host` is measured.

    They train the trainer's parameters, and personal entries with the prefix ``own/`` and the same names, like FedRoD's
    second classifier. Buffers in `moving` are updated by the batches; all other entries do not change.
    """

    ignores_unlabelled = True

    host: Method
    moving: frozenset[str]

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        trained = {name for name in model if name.removeprefix(OWN) in local.parameters}
        frozen = {name: tensor.clone() for name, tensor in model.items() if name not in trained | self.moving}

        def loss(params: Tensors) -> Tensor:
            return local.cross_entropy(self.host.predict(local, {**params, **frozen}, batch.inputs), batch.labels)

        return sgd_step(local, state, loss, trained)
