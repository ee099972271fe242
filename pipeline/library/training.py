"""Training on your own tensors in one call of the engine, without specs, DVC and files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

import pflcore.engine as engine
from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData, standardisation
from pflcore.data.samples import Inputs, as_floats
from pflcore.engine import Result, select_device, use_threads
from pflcore.engine.trained import ClientModel, Trained
from pflcore.errors import UserError
from pflcore.methods import METHODS
from pflcore.registry import Registry, did_you_mean
from pflcore.settings import Evaluation, Training

Client = tuple[Any, Any]
"""Inputs and labels of a client, as tensors or arrays. Inputs are uint8 images (n, channels, height, width), or floats
with one to three dimensions after n; labels have the shape (n)."""

_CHANNELS = (1, 3, 4)


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Compute with PyTorch's default global settings, and then restore the caller's, such as another default type."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # `torch.backends` has one for each device
        raise UserError("torch.backends: fp32_precision is set for one device alone; set it to 'none'") from None
    deterministic, filling = torch.are_deterministic_algorithms_enabled, torch.utils.deterministic
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with ExitStack() as settings:
        settings.callback(setattr, filling, "fill_uninitialized_memory", filling.fill_uninitialized_memory)  # type: ignore[attr-defined]
        settings.callback(torch.use_deterministic_algorithms, deterministic(), warn_only=warn_only)
        settings.callback(torch.set_num_threads, torch.get_num_threads())
        settings.callback(torch.set_float32_matmul_precision, precision)
        settings.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
        for context in (torch.inference_mode(False), torch.enable_grad()):
            settings.enter_context(context)
        for device in ("cpu", "cuda"):
            settings.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":  # only then, since it slows down each call of PyTorch a little
            settings.enter_context(torch.device("cpu"))
        yield


@dataclass(frozen=True)
class TrainingRun:
    """The result of a training on your own data.

    Attributes:
        results: A row per client and measured round: client, round, accuracy (0 to 1), correct, total, loss and
            train_loss (means over test predictions and over local steps).
        result: The full result of the engine, including cost and weights.
    """

    results: pd.DataFrame
    result: Result
    _trained: Trained

    @torch_defaults()
    def model(self, client: int) -> ClientModel:
        """Return a client's model of the last measurement. Raises :class:`UserError` if the run diverged."""
        if self.result.diverged:
            raise UserError(f"{self.result.diverged}; there is no model")
        return self._trained.client(client)


@torch_defaults()
def train(
    train: Sequence[Client],
    test: Sequence[Client],
    *,
    method: str | Mapping[str, Any] = "fedavg",
    backbone: str | Mapping[str, Any] = "convnet",
    rounds: int,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
    measure_every: int = 1,
    device: str = "auto",
    **training: Any,
) -> TrainingRun:
    """Train a federation whose clients hold the given samples, and measure every client on its own test samples.

    Args:
        train, test: The samples of each client.
        method, backbone: A name, or ``{"name": …}`` with options, as in a spec.
        classes: Number of classes; by default the largest label plus one.
        mean, std: Per channel, of pixels scaled to 0..1 or of floats as given; by default of all training samples.
        measure_every: Rounds between measurements; the last one is always measured.
        training: Further settings of ``training``, such as ``lr`` and ``sample_rate`` (``pfl describe training``).
    """
    for name, clients in (("train", train), ("test", test)):
        if not isinstance(clients, Sequence):
            form = "a list with a pair (images, labels) per client"
            raise UserError(f"{name} is a {type(clients).__name__}; give {form}")
    count = len(train)
    if count != len(test) or not count:
        raise UserError(f"{count} clients have training samples and {len(test)} test samples; give both for each")
    names = [field.name for field in fields(Training)]
    if unknown := [name for name in training if name not in names]:
        raise UserError(f"training has no setting {unknown[0]!r}{did_you_mean(unknown[0], names)}")
    samples = [_samples(client, f"client {index % count}") for index, client in enumerate([*train, *test])]
    measure_every = _check_int("measure_every", measure_every, 0)
    _check_consistent(samples, classes, {"mean": mean, "std": std})
    seed = _check_int("seed", seed, 0)
    inputs, labels = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    ends = np.cumsum([len(client_labels) for _, client_labels in samples])
    rows = np.split(np.arange(len(labels)), ends[:-1])
    means: Sequence[float]
    stds: Sequence[float]
    if inputs.dtype == np.float32:
        means, stds = standardisation(inputs, np.arange(ends[count - 1]))
    else:
        pixels = inputs[: ends[count - 1]] / np.float32(255)
        means, stds = pixels.mean((0, 2, 3)).tolist(), np.maximum(pixels.std((0, 2, 3)), 1e-6).tolist()
    means, stds = means if mean is None else [*map(float, mean)], stds if std is None else [*map(float, std)]
    place, number = select_device(str(device)), classes or int(labels.max()) + 1
    data = FederatedData.from_arrays(inputs, labels, rows[:count], rows[count:], means, stds, number, place)
    use_threads(place, data.shape)
    model, algorithm = _entry(BACKBONES, backbone), _entry(METHODS, method)
    settings, evaluation = Training(rounds=rounds, **training), Evaluation(every=1, window=0, curve_every=measure_every)
    result = engine.train(
        data=data, backbone=model, method=algorithm, training=settings, evaluation=evaluation, seed=seed
    )
    columns = ("client", "round", "correct", "total", "loss", "train_loss")
    frame = pd.DataFrame({name: getattr(result, name) for name in columns})
    frame.insert(2, "accuracy", frame["correct"] / frame["total"])
    return TrainingRun(frame, result, Trained(data, model, algorithm, settings, seed, result.rounds, result.weights))


def _entry(registry: Registry[Any], entry: str | Mapping[str, Any]) -> Any:
    if not isinstance(entry, str | Mapping):
        raise UserError(f"{registry.kind} is a {type(entry).__name__}; give a name, or {{'name': …}} with options")
    record = {"name": entry} if isinstance(entry, str) else entry
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
    return registry.create(str(options.pop("name", "")), **options)


def _check_int(name: str, value: Any, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise UserError(f"{name} = {value!r} must be a whole number, at least {minimum}")
    return int(value)


def _array(values: Any, name: str) -> NDArray[Any]:
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # sparse, or of several lengths
        raise UserError(f"{name}: no array of numbers ({error})") from None


def _samples(client: Client, name: str) -> tuple[Inputs, NDArray[np.int64]]:
    if not isinstance(client, tuple | list) or len(client) != 2:
        raise UserError(f"{name}: give a pair (images, labels)")
    images, labels = (_array(part, name) for part in client)
    floats = images.dtype.kind == "f" and images.ndim in (2, 3, 4)
    if not floats and (images.dtype != np.uint8 or images.ndim != 4):
        form = f"{images.dtype} {images.shape}"
        expected = "images must be uint8 (n, channels, height, width), arrays floats of 2 to 4 dimensions"
        raise UserError(f"{name}: {expected}, got {form}")
    last = images.ndim == 4 and images.shape[-1] in _CHANNELS and images.shape[1] not in _CHANNELS
    if last and (not floats or images.shape[1] == images.shape[2]):
        raise UserError(f"{name}: channels come last in {images.shape}; give images.transpose(0, 3, 1, 2)")
    if floats:
        images = as_floats(images, name)
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),) or labels.min(initial=0) < 0:
        actual = f"{labels.dtype} {labels.shape}"
        raise UserError(f"{name}: labels must be {len(images)} whole numbers from 0 on, got {actual}")
    if not len(images):
        raise UserError(f"{name} has no samples; give at least one to train on and one to test on")
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _check_consistent(
    samples: Sequence[tuple[Inputs, NDArray[np.int64]]],
    classes: int | None,
    by_channel: Mapping[str, Sequence[float] | None],
) -> None:
    """Raise :class:`UserError` unless all samples have the same type and shape, and classes and channels fit them."""
    shapes = sorted({images.shape[1:] for images, _ in samples})
    if len(shapes) > 1:
        raise UserError(f"images must have one shape, got {' and '.join(map(str, shapes))}")
    if len(types := sorted({str(images.dtype) for images, _ in samples})) > 1:
        raise UserError(f"samples must be of one type, got {' and '.join(types)}")
    largest = max(int(labels.max()) for _, labels in samples)
    if classes is None and largest >= sum(len(labels) for _, labels in samples):
        raise UserError(f"a label is {largest}, and there are fewer samples; number classes from 0, or give `classes`")
    if classes is not None and _check_int("classes", classes, 1) <= largest:
        raise UserError(f"classes = {classes}, but a label is {largest}")
    for name, values in by_channel.items():
        if values is None:
            continue
        numbers, low = _array(values, name), 0 if name == "std" else -math.inf
        if numbers.ndim != 1 or numbers.dtype.kind not in "fiu" or not ((numbers > low) & (numbers < math.inf)).all():
            raise UserError(f"{name} = {values!r} must be a list of numbers{', each above 0' if low == 0 else ''}")
        if len(numbers) != shapes[0][0]:
            raise UserError(f"{name} has {len(numbers)} numbers for {shapes[0][0]} channels")
