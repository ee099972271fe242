"""One client's model as a module: its network with its weights, and predictions as it was measured by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.detection.task import Detection
from pflcore.engine.dropout import Dropout
from pflcore.engine.evaluate import Both, batch_size, score_client
from pflcore.engine.precision import autocast, use_precision
from pflcore.engine.trainer import Trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import Method


class ClientModel(nn.Module):
    """A client's model, ready to predict, in evaluation mode.

    Calling it takes a network's inputs, normalised images or characters; :meth:`predict` takes samples as they are in
    the dataset. Both give logits as the method measures its clients by: of memories, mixtures and Gaussians the
    logarithms of probabilities, of prototypes negative distances. Their softmax are probabilities in each case but the
    last. Gradients reach the weights, but for what was made of a client's training samples once, such as a memory.

    Attributes:
        net: The network, with all that the method adds to it, and with the client's weights.
        plain: Whether `net` alone predicts.
        beside: What predictions take beside it, a buffer each: prototypes, a second classifier, the samples per class.
            A dot in a name is written as a colon.
        client: Its number.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, trainer: Trainer, state: Tensors, client: int) -> None:
        """Take over a trainer's network; `state` is what the client is measured with."""
        super().__init__()
        self.client, self._trainer = client, trainer
        method, data = trainer.method, trainer.data
        self.plain = type(method).predict is Method.predict and not method.remembers
        own = {name: tensor for name, tensor in state.items() if name in trainer.entries}
        trainer.model.load_state_dict({**trainer.model.state_dict(), **own})
        self.net = trainer.model
        self.beside = _beside({} if self.plain else {name: it for name, it in state.items() if name not in own})
        self._remembered = trainer.predictor(state, client, batch_size(trainer)) if method.remembers else None
        if not data.is_text:
            self.register_buffer("mean", data.mean.clone(), persistent=False)
            self.register_buffer("std", data.std.clone(), persistent=False)
        _usual_dropout(self.net)
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of normalised images (n, channels, height, width) → (n, classes), or of characters (n, length) →
        (n, length, classes)."""
        precision = self._trainer.training.precision
        if self._remembered:
            return self._remembered(inputs)
        if not self.plain:
            return self._trainer.predict(self.state(), inputs)
        with autocast(precision, inputs.device):
            logits: Tensor = self.net(inputs)
        return logits.float()

    def predict(self, samples: Tensor | NDArray[Any]) -> Tensor:
        """Logits of samples as the dataset has them: images in bytes (n, channels, height, width), which are normalised
        and scaled here, or texts (n, length) of character numbers.

        On a CPU it computes on one thread, as in measurements, so that the last bits are the same.

        Raises:
            UserError: They are of another shape or type.
        """
        given = torch.as_tensor(samples)
        self._check(given)
        mode = self.training
        try:
            with torch.no_grad(), use_precision(self._trainer.training.precision), one_thread(self.device):
                self.eval()
                pieces = torch.split(given, batch_size(self._trainer))
                return torch.cat([self(self.prepared(piece.to(self.device))) for piece in pieces])
        finally:
            self.train(mode)

    def prepared(self, samples: Tensor) -> Tensor:
        """The network's inputs of samples as :meth:`predict` takes them."""
        data = self._trainer.data
        if data.is_text:
            return samples.long()
        images = samples.float().div(255).sub(self.mean).div(self.std)
        size = data.size
        return F.interpolate(images, (size, size), mode="bilinear", align_corners=False) if size else images

    def samples(self, split: str = "test") -> tuple[Tensor, Tensor]:
        """The client's own samples as :meth:`predict` takes them, and their labels.

        Args:
            split: ``train``, ``test`` or ``validation``.
        """
        data = self._trainer.data
        parts = {"train": data.train, "test": data.test, "validation": data.validation}
        if split not in parts or not len(parts[split]):
            raise UserError(
                f"split {split!r}: there are {', '.join(name for name, rows in parts.items() if len(rows))}"
            )
        rows = parts[split][self.client]
        inputs = data.inputs[rows.to(data.inputs.device)]
        if data.is_text:
            return inputs[:, :-1].long(), inputs[:, 1:].long()
        return inputs, data.labels[rows.to(data.device)]

    def measure(self) -> Both:
        """What a measurement finds on the client's test samples, as :data:`pflcore.task.Score`; with the noise, where
        the partition has some that is drawn at each use."""
        state = self.state()
        with use_precision(self._trainer.training.precision), one_thread(self.device):
            return score_client(self._trainer, state, self.client)

    def state(self) -> Tensors:
        """All that predictions are made of, by the names that the method has for it."""
        beside = {name.replace(":", "."): tensor for name, tensor in self.beside.named_buffers()}
        return {**self.net.state_dict(keep_vars=True), **beside}

    @property
    def method(self) -> Method:
        """What it was trained by, with its options."""
        return self._trainer.method

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.net.parameters()).device

    def extra_repr(self) -> str:
        return f"client={self.client}, method={self.method.name!r}, plain={self.plain}"

    def _check(self, given: Tensor) -> None:
        data = self._trainer.data
        if data.is_text:
            fine = given.ndim == 2 and given.shape[1] <= data.positions and not given.is_floating_point()
            wanted = f"character numbers (n, up to {data.positions})"
        else:
            channels, height, width = data.inputs.shape[1:]
            sides = (given.shape[2:] == (height, width)) or (given.ndim == 4 and data.size is not None)
            fine = given.dtype == torch.uint8 and given.ndim == 4 and given.shape[1] == channels and sides
            wanted = f"images uint8 (n, {channels}, {height}, {width}) with pixels 0 to 255"
        if not fine:
            kind = str(given.dtype).removeprefix("torch.")
            raise UserError(
                f"predict takes {wanted}, got {kind} {tuple(given.shape)}; call the model itself for others"
            )


def client_model(trainer: Trainer, state: Tensors, client: int) -> ClientModel:
    """The model of a client that is measured with `state`.

    Raises:
        UserError: It detects objects, of which predictions are boxes and no logits.
    """
    if isinstance(trainer.task, Detection):
        raise UserError("a detector's predictions are boxes: there is no model that gives logits of classes")
    with torch.no_grad(), one_thread(trainer.data.device):
        return ClientModel(trainer, state, client)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU one thread, as clients are measured with, so that sums do not depend on how many there are."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _beside(tensors: Mapping[str, Tensor]) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name.replace(".", ":"), tensor.clone())
    return module


def _usual_dropout(module: nn.Module) -> None:
    """Put back PyTorch's dropout, which needs nobody to hand it random numbers."""
    for name, child in module.named_children():
        if isinstance(child, Dropout):
            setattr(module, name, nn.Dropout(child.p))
        else:
            _usual_dropout(child)
