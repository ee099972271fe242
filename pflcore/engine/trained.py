"""Models of clients as modules, from the saved weights or the last checkpoint of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pflcore.backbones import Backbone
from pflcore.conditions import Condition
from pflcore.data.federation import FederatedData
from pflcore.detection.task import Detection
from pflcore.engine.checkpoint import Checkpoint, compare
from pflcore.engine.client import Trainer
from pflcore.engine.device import one_thread
from pflcore.engine.evaluation import batch_size, score_client
from pflcore.engine.forward import use_precision
from pflcore.engine.run import RunState
from pflcore.errors import UserError
from pflcore.groups import Tensors, split, strip_prefix
from pflcore.method import Method
from pflcore.settings import Evaluation, Training
from pflcore.task import Score


class ClientModel(nn.Module):
    """A client's model, ready to predict, in evaluation mode.

    A call takes inputs of the network; :meth:`predict` takes samples as in the dataset. Both return the logits with
    which the method is measured: for memories, mixtures and Gaussians the logarithms of probabilities, for prototypes
    negative distances. Gradients reach the weights, but not what was computed from training samples at creation.

    Attributes:
        net: The network, including modules that the method adds, with the client's weights.
        plain: Whether `net` alone predicts.
        beside: Further state for predictions, as buffers: prototypes, a second classifier, the samples per class. A dot
            in a name is written as a colon.
    """

    def __init__(self, trainer: Trainer, state: Tensors, client: int) -> None:
        """Take over a trainer's network; `state` is the one with which the client is measured."""
        super().__init__()
        method = trainer.method
        self.client, self._trainer, self.method = client, trainer, method
        self.plain = type(method).predict is Method.predict and not method.remembers
        entries = {name: tensor for name, tensor in state.items() if name in trainer.entries}
        self.net, self.beside = trainer.model, nn.Module()
        self.net.load_state_dict({**self.net.state_dict(), **entries})
        for name, tensor in state.items():
            if not self.plain and name not in entries:
                self.beside.register_buffer(name.replace(".", ":"), tensor.clone())
        self._remembered = trainer.predictor(state, client, batch_size(trainer)) if method.remembers else None
        trainer.noise.free = True
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits: of normalised images (n, channels, height, width) or arrays (n, channels, …) → (n, classes),
        of characters (n, length) → (n, length, classes)."""
        return self._remembered(inputs) if self._remembered else self._trainer.predict(self.state(), inputs)

    def predict(self, samples: Tensor | NDArray[Any]) -> Tensor:
        """Return logits of samples as in the dataset: uint8 images (n, channels, height, width) or float32 arrays (n,
        channels, …), which are normalised and scaled here, or texts (n, length) of character numbers. The logits equal
        those of measurements to the last bit. Raises :class:`UserError` for other samples."""
        inputs = torch.as_tensor(samples)
        self._check(inputs)
        mode, device = self.training, self._trainer.data.device
        try:
            with torch.no_grad(), use_precision(self._trainer.training.precision), one_thread(device):
                self.eval()
                batches = torch.split(inputs, batch_size(self._trainer))
                return torch.cat([self(self.prepared(batch)) for batch in batches])
        finally:
            self.train(mode)

    def prepared(self, samples: Tensor) -> Tensor:
        """Return the network's inputs for samples as in :meth:`predict`."""
        data = self._trainer.data
        return data.prepare(samples.to(data.device))

    def samples(self, split: str = "test") -> tuple[Tensor, Tensor]:
        """Return inputs for :meth:`predict` and labels of a split; raise :class:`UserError` if the client lacks it."""
        data = self._trainer.data
        parts = {"train": data.train, "test": data.test, "validation": data.validation}
        splits = {name: rows[self.client] for name, rows in parts.items() if len(rows)}
        if split not in splits:
            raise UserError(f"split {split!r}: there are {', '.join(splits)}")
        inputs = data.inputs[splits[split].to(data.inputs.device)]
        if data.is_text:
            return inputs[:, :-1].long(), inputs[:, 1:].long()
        return inputs, data.labels[splits[split].to(data.device)]

    def measure(self) -> Score:
        """Return the score of the client on its test samples, as in a measurement."""
        with use_precision(self._trainer.training.precision), one_thread(self._trainer.data.device):
            return score_client(self._trainer, self.state(), self.client)[0]

    def state(self) -> Tensors:
        """Return the state that predictions use, with the method's names."""
        buffers = {name.replace(":", "."): tensor for name, tensor in self.beside.named_buffers()}
        return {**self.net.state_dict(keep_vars=True), **buffers}

    def _check(self, samples: Tensor) -> None:
        """Raise :class:`UserError` if samples do not have the shape, type and values of the dataset's samples."""
        data = self._trainer.data
        if data.is_text:
            fits = samples.ndim == 2 and samples.shape[1] <= data.positions and not samples.is_floating_point()
            expected = f"character numbers (n, up to {data.positions})"
        else:
            shape = data.inputs.shape[1:]
            # If images are scaled, only the number of channels must be that of the dataset.
            fits = samples.shape[1:2] == shape[:1] if data.size else samples.shape[1:] == shape
            fits = fits and samples.dtype == data.inputs.dtype and samples.ndim == data.inputs.ndim
            kind = str(data.inputs.dtype).removeprefix("torch.")
            expected = f"{data.kind} {kind} (n, {', '.join(map(str, shape))})"
        if not fits:
            kind = str(samples.dtype).removeprefix("torch.")
            raise UserError(f"predict takes {expected}, got {kind} {tuple(samples.shape)}; call the model for others")
        if data.is_text and bool(((samples < 0) | (samples >= data.classes)).any()):
            smallest, largest = int(samples.min()), int(samples.max())
            raise UserError(f"predict takes character numbers 0 to {data.classes - 1}, got {smallest} to {largest}")


@dataclass(frozen=True)
class Trained:
    """A trained run: the objects with which it was trained, and its final weights."""

    data: FederatedData
    backbone: Backbone
    method: Method
    training: Training
    seed: int
    rounds: int  # number of rounds trained
    # Final weights, their file, or the last checkpoint, which lacks parameters that are never trained.
    weights: Path | Tensors | Checkpoint
    condition: Condition | None = None

    def client(self, client: int) -> ClientModel:
        """Return a client's model as it was measured after the last round.

        The model is tuned if the method tunes, and has the memory of the client's samples if the method remembers. A
        client that never trained has the initial personal entries. Raises :class:`UserError` if there is no such
        client, if the model is a detector, or if the weights belong to another run.
        """
        if not 0 <= client < self.data.clients:
            raise UserError(f"there is no client {client}: clients are 0 to {self.data.clients - 1}")
        with torch.random.fork_rng(devices=[]), use_precision(self.training.precision), one_thread(self.data.device):
            training = replace(self.training, patience=None)  # nothing is measured here
            run = RunState(
                self.data, self.backbone, self.method, training, Evaluation(), self.seed, None, self.condition
            )
            if isinstance(run.trainer.task, Detection):
                raise UserError("a detector's predictions are boxes: there is no model that gives logits of classes")
            restore = self._from_checkpoint if isinstance(self.weights, Checkpoint) else self._from_weights
            if reason := restore(run, client):
                where = f"{self.weights}: " if isinstance(self.weights, Path) else ""
                raise UserError(f"{where}weights of another run ({reason})")
            measured = run.subject(None).measured(client)
            with torch.no_grad():
                return ClientModel(run.trainer, measured, client)

    def _from_checkpoint(self, run: RunState, client: int) -> str:
        """Set the run to a checkpoint's state, as far as a client needs it; return the reason if it does not fit."""
        checkpoint = self.weights
        assert isinstance(checkpoint, Checkpoint)
        skipped = "personal/", "history/"  # only one client and no measurements are needed
        tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(skipped)}
        for first, rows in strip_prefix("personal/", checkpoint.tensors).items():
            row = client - int(first)
            if 0 <= row < len(rows):
                tensors[f"personal/{client}"] = rows[row : row + 1]
        reason = run.misfit(tensors)
        if not reason:
            run.restore(replace(checkpoint, tensors=tensors))
        return reason

    def _from_weights(self, run: RunState, client: int) -> str:
        """Set the run to saved weights, as far as a client needs them; return the reason if they do not fit."""
        prefix = f"client.{client}."
        weights = self._read(prefix)
        personal = strip_prefix(prefix, weights)
        extra = strip_prefix("server.", weights)
        model = {name: tensor for name, tensor in weights.items() if not name.startswith((prefix, "server."))}
        reason = compare(model, {**run.fixed, **run.server.shared}) or compare(extra, run.server.extra)
        if personal and not reason:  # a client that never trained has no entries
            reason = compare(personal, run.initial_personal)
        if reason:
            return reason
        copies = {name: tensor.to(self.data.device, copy=True) for name, tensor in model.items()}
        run.fixed, run.server.shared = split(copies, run.fixed)
        run.server.extra = {name: tensor.to(self.data.device, copy=True) for name, tensor in extra.items()}
        if personal:
            run.personal[client] = personal
        run.round = self.rounds
        return ""

    def _read(self, prefix: str) -> Tensors:
        """Return the saved weights without the entries of other clients; `prefix` is that of this client's."""

        def is_wanted(name: str) -> bool:
            return name.startswith(prefix) or not name.startswith("client.")

        if isinstance(self.weights, dict):
            return {name: tensor for name, tensor in self.weights.items() if is_wanted(name)}
        try:
            with safe_open(self.weights, "pt") as file:
                return {name: file.get_tensor(name) for name in file.keys() if is_wanted(name)}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"{self.weights}: not a readable safetensors file ({error})") from None
