"""A client's model as a program that PyTorch runs by itself: ``torch.export``'s file, from samples to logits."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pflcore.engine.client_model import ClientModel, one_thread
from pflcore.errors import UserError


class _FromSamples(nn.Module):
    """What :meth:`ClientModel.predict` computes, normalisation included."""

    def __init__(self, model: ClientModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: Tensor) -> Tensor:
        logits: Tensor = self.model(self.model.prepared(samples))
        return logits


def program_of(model: ClientModel) -> bytes:
    """The model as a program of samples as :meth:`ClientModel.predict` takes them, any number of them → logits.

    ``torch.export.load`` reads a file of these bytes, and what its ``module()`` gives runs without this project. It has
    been tried: the program predicts the client's test samples as the model does.

    Raises:
        UserError: Why there is no such program.
    """
    if model.method.remembers:
        raise UserError(f"{model.method.name} predicts by what it makes of the client's training samples in Python")
    samples, file = model.samples("test")[0].to(model.device), io.BytesIO()
    expected, example = model.predict(samples), samples[[0, -1]]
    with torch.no_grad(), _quiet(), one_thread(model.device):
        try:
            program = torch.export.export(_FromSamples(model), (example,), dynamic_shapes=({0: torch.export.Dim("n")},))
            torch.export.save(program, file)
            made = torch.export.load(io.BytesIO(file.getvalue())).module()(samples)
        except Exception as error:  # whatever PyTorch's tracing raises: there are many kinds
            raise UserError(f"PyTorch cannot trace it ({type(error).__name__})") from None
    if not torch.allclose(made, expected, rtol=1e-4, atol=1e-5):
        raise UserError(f"what PyTorch traced predicts otherwise, by up to {float((made - expected).abs().max()):.2g}")
    return file.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch tells of its tracing at length."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
