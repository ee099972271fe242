"""Models of clients as modules, and a run taken up again from the weights that it saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F

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

    Calling it takes a network's inputs; :meth:`predict` takes samples as they are in the dataset. Both give logits as
    the method measures its clients by: of memories, mixtures and Gaussians the logarithms of probabilities, of
    prototypes negative distances. Gradients reach the weights, but for what was made of training samples once.

    Attributes:
        net: The network, with all that the method adds to it, and with the client's weights.
        plain: Whether `net` alone predicts.
        beside: What predictions take beside it, a buffer each: prototypes, a second classifier, the samples per class.
            A dot in a name is written as a colon.
    """

    def __init__(self, trainer: Trainer, state: Tensors, client: int) -> None:
        """Take over a trainer's network; `state` is what the client is measured with."""
        super().__init__()
        method = trainer.method
        self.client, self._trainer, self.method = client, trainer, method
        self.plain = type(method).predict is Method.predict and not method.remembers
        own = {name: tensor for name, tensor in state.items() if name in trainer.entries}
        self.net, self.beside = trainer.model, nn.Module()
        self.net.load_state_dict({**self.net.state_dict(), **own})
        for name, tensor in state.items():
            if not self.plain and name not in own:
                self.beside.register_buffer(name.replace(".", ":"), tensor.clone())
        self._remembered = trainer.predictor(state, client, batch_size(trainer)) if method.remembers else None
        trainer.noise.free = True
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of normalised images (n, channels, height, width) or arrays (n, channels, …) → (n, classes), or
        of characters (n, length) → (n, length, classes)."""
        return self._remembered(inputs) if self._remembered else self._trainer.predict(self.state(), inputs)

    def predict(self, samples: Tensor | NDArray[Any]) -> Tensor:
        """Return logits of samples as the dataset has them: images in bytes (n, channels, height, width) and float32
        arrays (n, channels, …), which are normalised and scaled here, or texts (n, length) of character numbers; to the
        last bit those of measurements."""
        given = torch.as_tensor(samples)
        self._check(given)
        mode, device = self.training, self._trainer.data.device
        try:
            with torch.no_grad(), use_precision(self._trainer.training.precision), one_thread(device):
                self.eval()
                return torch.cat([self(self.prepared(some)) for some in torch.split(given, batch_size(self._trainer))])
        finally:
            self.train(mode)

    def prepared(self, samples: Tensor) -> Tensor:
        """Return the network's inputs of samples as :meth:`predict` takes them."""
        data = self._trainer.data
        if data.is_text:
            return samples.to(data.device).long()
        images = data.normalise(samples.to(data.device))
        size = data.size
        return F.interpolate(images, (size, size), mode="bilinear", align_corners=False) if size else images

    def samples(self, split: str = "test") -> tuple[Tensor, Tensor]:
        """Return the client's own samples of a split as :meth:`predict` takes them, and their labels."""
        data = self._trainer.data
        parts = {"train": data.train, "test": data.test, "validation": data.validation}
        held = {name: rows[self.client] for name, rows in parts.items() if len(rows)}
        if split not in held:
            raise UserError(f"split {split!r}: there are {', '.join(held)}")
        inputs = data.inputs[held[split].to(data.inputs.device)]
        if data.is_text:
            return inputs[:, :-1].long(), inputs[:, 1:].long()
        return inputs, data.labels[held[split].to(data.device)]

    def measure(self) -> Score:
        """Return what a measurement finds on the client's test samples."""
        with use_precision(self._trainer.training.precision), one_thread(self._trainer.data.device):
            return score_client(self._trainer, self.state(), self.client)[0]

    def state(self) -> Tensors:
        """Return all that predictions are made of, by the names that the method has for it."""
        beside = {name.replace(":", "."): tensor for name, tensor in self.beside.named_buffers()}
        return {**self.net.state_dict(keep_vars=True), **beside}

    def _check(self, given: Tensor) -> None:
        """Raise :class:`UserError` for samples that are not as those of the dataset."""
        data = self._trainer.data
        if data.is_text:
            fits = given.ndim == 2 and given.shape[1] <= data.positions and not given.is_floating_point()
            wanted = f"character numbers (n, up to {data.positions})"
        else:
            shape = data.inputs.shape[1:]
            # Where images are scaled, only their channels have to be those of the dataset.
            same = given.shape[1:2] == shape[:1] if data.size else given.shape[1:] == shape
            kind = str(data.inputs.dtype).removeprefix("torch.")
            fits = given.dtype == data.inputs.dtype and given.ndim == data.inputs.ndim and same
            wanted = f"{data.kind} {kind} (n, {', '.join(map(str, shape))})"
        if not fits:
            kind = str(given.dtype).removeprefix("torch.")
            raise UserError(f"predict takes {wanted}, got {kind} {tuple(given.shape)}; call the model for others")
        if data.is_text and bool(((given < 0) | (given >= data.classes)).any()):
            least, largest = int(given.min()), int(given.max())
            raise UserError(f"predict takes character numbers 0 to {data.classes - 1}, got {least} to {largest}")


@dataclass(frozen=True)
class Trained:
    """What a run was trained with, and what it left."""

    data: FederatedData
    backbone: Backbone
    method: Method
    training: Training
    seed: int
    rounds: int  # that were trained
    # Final weights, the file of them, or the last checkpoint, without parameters that nobody trains.
    weights: Path | Tensors | Checkpoint
    condition: Condition | None = None

    def client(self, client: int) -> ClientModel:
        """Return a client's model as it was measured after the last round.

        It is tuned first where the method does so, and remembers the client's samples where that is what it predicts
        by. A client that never trained has the entries of its own that all began with. Raises :class:`UserError` where
        there is no such client, it has no model that gives logits, or the weights are of another run.
        """
        if not 0 <= client < self.data.clients:
            raise UserError(f"there is no client {client}: clients are 0 to {self.data.clients - 1}")
        with torch.random.fork_rng(devices=[]), use_precision(self.training.precision), one_thread(self.data.device):
            training = replace(self.training, patience=None)  # how the run ended is known; nothing is measured here
            run = RunState(
                self.data, self.backbone, self.method, training, Evaluation(), self.seed, None, self.condition
            )
            if isinstance(run.trainer.task, Detection):
                raise UserError("a detector's predictions are boxes: there is no model that gives logits of classes")
            self._restore(run, client)
            measured = run.subject(None).measured(client)
            with torch.no_grad():
                return ClientModel(run.trainer, measured, client)

    def _restore(self, run: RunState, client: int) -> None:
        """Set the run to what it was after its last round, as far as this client needs it."""
        if isinstance(self.weights, Checkpoint):
            reason = self._from_checkpoint(self.weights, run, client)
        else:
            reason = self._from_weights(run, client)
        if reason:
            where = f"{self.weights}: " if isinstance(self.weights, Path) else ""
            raise UserError(f"{where}weights of another run ({reason})")

    def _from_checkpoint(self, checkpoint: Checkpoint, run: RunState, client: int) -> str:
        """Set the run to a checkpoint's state, or say what does not fit."""
        apart = "personal/", "history/"  # one client is wanted, and no measurements, whatever was measured
        tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(apart)}
        for first, rows in strip_prefix("personal/", checkpoint.tensors).items():
            row = client - int(first)
            if 0 <= row < len(rows):
                tensors[f"personal/{client}"] = rows[row : row + 1]
        reason = run.misfit(tensors)
        if not reason:
            run.restore(replace(checkpoint, tensors=tensors))
        return reason

    def _from_weights(self, run: RunState, client: int) -> str:
        """Set the run to what saved weights have, or say what does not fit."""
        mine = f"client.{client}."
        found = self._read(mine)
        own = strip_prefix(mine, found)
        extra = strip_prefix("server.", found)
        model = {name: tensor for name, tensor in found.items() if not name.startswith((mine, "server."))}
        reason = compare(model, {**run.fixed, **run.server.shared}) or compare(extra, run.server.extra)
        if own and not reason:  # a client that never trained has none
            reason = compare(own, run.kept)
        if reason:
            return reason
        here = {name: tensor.to(self.data.device, copy=True) for name, tensor in model.items()}
        run.fixed, run.server.shared = split(here, run.fixed)
        run.server.extra = {name: tensor.to(self.data.device, copy=True) for name, tensor in extra.items()}
        if own:
            run.personal[client] = own
        run.round = self.rounds
        return ""

    def _read(self, mine: str) -> Tensors:
        """Return the entries of the weights that are this client's or no single client's."""

        def is_wanted(name: str) -> bool:
            return name.startswith(mine) or not name.startswith("client.")

        if isinstance(self.weights, dict):
            return {name: tensor for name, tensor in self.weights.items() if is_wanted(name)}
        try:
            with safe_open(self.weights, "pt") as file:
                return {name: file.get_tensor(name) for name in file.keys() if is_wanted(name)}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"{self.weights}: not a readable safetensors file ({error})") from None
