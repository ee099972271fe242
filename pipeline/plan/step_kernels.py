"""Of how many kernels a step of a run consists on a GPU: counted, on tensors that have a shape and no content."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine.executors.cohort import stack_states
from pflcore.engine.executors.filling import can_fill
from pflcore.engine.executors.vectorised import Step, vectorisable
from pflcore.engine.run_state import RunState
from pflcore.errors import UserError
from pflcore.groups import Groups
from pflcore.method import Batch, Method
from pflcore.methods import METHODS
from pipeline.plan.estimate import dataset_of
from pipeline.spec.run import Run

CLASSES = 10  # of a dataset of which only the data tell
_CLIENTS, _SAMPLES = 2, 4  # batch norm needs two samples, and a method may split a batch
_PASSES = 64  # dropout masks are there for so many forward passes of a step
# What reserves or renames memory, and starts nothing on the device.
_FREE = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach"})


@dataclass(frozen=True)
class StepKernels:
    """What a stacked step of some runs is made of.

    Attributes:
        step: Kernels of a step, forward, backward and update, for all clients of a cohort together.
        forward: Kernels of a forward pass that measures.
        fills: Whether small batches are filled up, so that no client waits for another.
        batch_norm: Whether a last batch of one sample is left out.
        entries: Tensors of a client's state.
        groups: Which of them belong to which part of the model.
    """

    step: int
    forward: int
    fills: bool
    batch_norm: bool
    entries: int
    groups: Groups


class Kernels:
    """Counts by what they depend on: runs that differ in learning rate, clients or data share one.

    A method that leaves the step to :class:`~pflcore.method.Method` has that of federated averaging, whatever its
    server does, which is then not even built. So has, since nothing else can be counted without values, one whose
    clients are trained one at a time.
    """

    def __init__(self) -> None:
        self._known: dict[str, StepKernels | None] = {}
        self._forms: dict[Any, Any] = {}

    def of(self, run: Run) -> StepKernels | None:
        """None for a model that does not fit the data, which training will say."""
        kind = METHODS.get(run.method)
        plain = kind.one_by_one or _is_plain(kind)
        name, options = ("fedavg", {}) if plain else (run.method, run.options("method"))
        training = run.training
        structure = {key: value for key, value in options.items() if not isinstance(value, float)}
        update = training.optimizer, training.nesterov, training.momentum > 0, training.weight_decay > 0, training.clip
        key = json.dumps([name, structure, run.record["backbone"], len(dataset_of(run).shape), update], sort_keys=True)
        if key not in self._known:
            made: Method = METHODS.create(name, **options)
            self._known[key] = _count(run, made, self._forms)
        return self._known[key]


def _is_plain(method: type[Method]) -> bool:
    return all(getattr(method, part) is getattr(Method, part) for part in ("loss", "begin", "step", "end", "extend"))


def _count(run: Run, method: Method, forms: dict[Any, Any]) -> StepKernels | None:
    try:
        return _counted(run, method, forms)
    except UserError:
        return None


def _counted(run: Run, method: Method, forms: dict[Any, Any]) -> StepKernels:
    # No step asks for the server, which may hold more than all clients.
    object.__setattr__(method, "init_server", partial(Method.init_server, method))
    training = replace(run.training, patience=None)
    with torch.device("meta"):
        data = _federation(run)
        backbone: Any = BACKBONES.create(run.backbone, **run.options("backbone"))
        state = RunState(data, backbone, method, training, run.evaluation, 0, None)
        trainer = state.trainer
        received = stack_states([state.carried] * _CLIENTS)
        places = (_CLIENTS, _SAMPLES)
        kind = torch.int64 if data.is_text else torch.float32
        labels = torch.zeros(*places, *(data.shape if data.is_text else ()), dtype=torch.int64)
        batch = Batch(torch.zeros(*places, *data.shape, dtype=kind), labels)
        per_pass = trainer.noise.per_sample * _SAMPLES
        masks = torch.zeros(_CLIENTS, _PASSES, per_pass, dtype=torch.int16) if per_pass else torch.empty(_CLIENTS, 0)
        step = Step(trainer)
        trainer.model.train()
    with torch.device("meta"), vectorisable():
        before = vmap(step.begin)(received)
        with _Started(forms) as started:
            vmap(step)(before, received, batch.inputs, batch.labels, masks, torch.empty(_CLIENTS, 0))
        trainer.model.eval()
        with torch.no_grad(), _Started(forms) as measured:
            vmap(trainer.predict)(received, batch.inputs)
    return StepKernels(
        step=started.count,
        forward=measured.count,
        fills=can_fill(trainer),
        batch_norm=trainer.batch_norm,
        entries=len(state.carried),
        groups=state.groups,
    )


class _Shapes(FederatedData):
    """Samples of which nobody can ask what they are."""

    def class_counts(self, client: int) -> Tensor:
        return torch.ones(self.classes, device=self.device)


def _federation(run: Run) -> FederatedData:
    """As many clients with as many samples as a count needs."""
    dataset = dataset_of(run)
    shape, rows = dataset.shape, [np.arange(_SAMPLES)] * _CLIENTS
    text = len(shape) == 1
    inputs = np.zeros((_SAMPLES, shape[0] + 1) if text else (_SAMPLES, *shape), np.uint8)
    channels = 0 if text else shape[0]
    return _Shapes.from_arrays(
        inputs,
        np.zeros(_SAMPLES, np.int64),
        rows,
        rows,
        [0.0] * channels,
        [1.0] * channels,
        dataset.classes or CLASSES,
        torch.device("meta"),
    )


class _Started(TorchDispatchMode):
    """Counts the operations that start a kernel.

    What an operation gives without content is found out once for each form of its arguments, as PyTorch takes long to
    do so, and models consist of equal layers.

    Args:
        known: Operation and forms of its arguments → forms of what it gives; filled.
    """

    def __init__(self, known: dict[Any, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self._known = known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            return func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _FREE:
            self.count += 1
        if func._schema.is_mutable:
            return func(*args, **(kwargs or {}))
        key = func, _form(args), _form(tuple((kwargs or {}).items()))
        if key not in self._known:
            made = func(*args, **(kwargs or {}))
            self._known[key] = _form(made)
            return made
        return _made(self._known[key])


def _form(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return Tensor, tree.shape, tree.stride(), tree.dtype
    if isinstance(tree, tuple | list):
        return type(tree), *map(_form, tree)
    return type(tree), tree  # 1, 1.0 and True are not the same


def _made(form: Any) -> Any:
    kind, *rest = form
    if kind is Tensor:
        shape, stride, dtype = rest
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return kind(map(_made, rest)) if issubclass(kind, tuple | list) else rest[0]
