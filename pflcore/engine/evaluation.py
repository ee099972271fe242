"""Measurements of the clients' personalised models on their own test samples and their validation samples, if any.

Both splits are measured in one pass, first test and then validation.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcore.engine.client import Trainer
from pflcore.faults import during
from pflcore.groups import Tensors
from pflcore.task import Measured, Score

COLUMNS = ("correct", "total", "loss", "last")
"""Names of the first numbers of a :data:`pflcore.task.Score`."""
SplitScores = tuple[Score, ...]
"""The scores of a client: on its test samples and, if the data has any, on its validation samples."""

Scored = NDArray[np.float64]
"""The scores of clients: [splits, columns, clients], in which counts are exact up to 2^53. Splits are test and, if the
data has any, validation samples, and the same for each further view. Columns are :data:`COLUMNS` and the task's further
numbers. All numbers are NaN for a client that is not measured in a view."""


def join(scores: Iterable[SplitScores]) -> Scored:
    """Join the scores of clients, in order."""
    return np.ascontiguousarray(np.moveaxis(np.array(list(scores), np.float64), 0, -1))


def batch_size(trainer: Trainer) -> int:
    """Return the number of samples per forward pass: enough to use the device well, few enough for its memory."""
    return trainer.task.batch_limit(4096 if trainer.data.device.type == "cuda" else 256)


def score_client(trainer: Trainer, state: Tensors, client: int, size: int | None = None) -> SplitScores:
    """Score a client's model on its own test and validation samples; a forward pass has `size` samples, if given."""
    size = size or batch_size(trainer)
    with during(f"client {client}"):
        predict = trainer.predictor(state, client, size)
        chunks = torch.split(trainer.data.evaluation_rows(client), size)
        return by_split(trainer, client, _joined(_measure(trainer, predict, chunks)))


def score_shared_model(trainer: Trainer, state: Tensors, size: int | None = None) -> Scored:
    """Score one model that all clients share in one pass over their samples; `size` as for :func:`score_client`."""
    return client_scores(trainer, measure_chunks(trainer, state, pooled_chunks(trainer, size)))


def pooled_chunks(trainer: Trainer, size: int | None = None) -> tuple[Tensor, ...]:
    """Return the rows on which all clients are measured, client after client, in chunks of one forward pass."""
    rows = torch.cat([trainer.data.evaluation_rows(client) for client in range(trainer.data.clients)])
    return torch.split(rows, size or batch_size(trainer))


def measure_chunks(trainer: Trainer, state: Tensors, chunks: Sequence[Tensor]) -> list[Measured]:
    """Return the measurements of one model on each row of each chunk; losses are float64."""
    return _measure(trainer, partial(trainer.predict, state), chunks)


def client_scores(trainer: Trainer, parts: Iterable[Measured]) -> Scored:
    """Return the scores of all clients from the results of :func:`measure_chunks` for all pooled chunks."""
    data = trainer.data
    ends = np.cumsum([len(data.evaluation_rows(client)) for client in range(data.clients)])[:-1]
    clients = zip(*(np.split(part, ends) for part in _joined(parts)), strict=True)
    return join(by_split(trainer, client, measured) for client, measured in enumerate(clients))


def by_split(trainer: Trainer, client: int, measured: Measured) -> SplitScores:
    """Return the scores of a client from measurements of its test samples followed by its validation samples."""
    tested = len(trainer.data.test[client])
    splits = [slice(tested), slice(tested, None)] if trainer.data.validation else [slice(None)]
    return tuple(trainer.task.score(tuple(part[split] for part in measured)) for split in splits)


@torch.no_grad()
def _measure(trainer: Trainer, predict: Callable[[Tensor], Tensor], chunks: Sequence[Tensor]) -> list[Measured]:
    trainer.model.eval()
    results = [trainer.task.measure(predict(batch.inputs), batch.labels) for batch in trainer.data.batches(chunks)]
    # Copied to the host after all chunks, because the first copy waits for the device.
    return [tuple(part.cpu().numpy() for part in result) for result in results]


def _joined(parts: Iterable[Measured]) -> Measured:
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))
