"""A frozen model as an encoder: the inputs of its classifier for many samples."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Rows
from pflcore.data.workers import parallel_map
from pflcore.engine.device import one_thread
from pflcore.engine.forward import Features, use_precision
from pflcore.errors import UserError
from pflcore.memory import worker_count

_BATCH = 256


class Encoder:
    """A backbone in evaluation mode, with its initial weights or with `trained` ones.

    Raises :class:`UserError` if it has no classifier or does not fit the data.
    """

    def __init__(self, backbone: Backbone, data: FederatedData, trained: Mapping[str, Tensor] | None = None) -> None:
        if data.is_text:
            raise UserError("a text has a label at every position, so it has no features as a whole")
        model, groups = backbone.create(data.shape, data.classes, 0, kind=data.kind)
        self._features = Features(model, groups)
        if not self._features.head:
            raise UserError(f"backbone {backbone.name}: has no group `head`, whose input would be the features")
        if trained:
            model.load_state_dict(trained)
        self._model = model.to(data.device).eval()
        self._data = data

    def encode(self, rows: Tensor | Rows) -> np.ndarray:
        """Return the features of the samples in `rows`, int64 on the host: float32 (rows, features)."""
        with torch.no_grad(), use_precision("fp32"), self._features as seen:
            self._model(self._data.batch(torch.as_tensor(rows)).inputs)
            features: np.ndarray = seen.of_classifier().flatten(1).float().cpu().numpy()
        return features

    def encode_all(self, rows: Rows) -> np.ndarray:
        """Return the features of all samples in `rows`, float32 (rows, features), mapped to a file if they are large.

        On a CPU, every core computes batches on one thread, so the numbers do not depend on the number of cores.
        """
        parts = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
        workers = min(worker_count(), len(parts)) if self._data.device.type == "cpu" else 1
        advance, start = track("encoding", len(rows)), 0
        with one_thread(self._data.device):
            width = self.encode(parts[0][:1]).shape[1]
            filled = allocate((len(rows), 4 * width)).view(np.float32)
            for features in parallel_map(self.encode, parts, workers):
                filled[start : start + len(features)] = features
                start += len(features)
                advance(len(features))
        return filled
