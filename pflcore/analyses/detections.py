"""What detectors find on some images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch

from pflcore.analyses import ANALYSES
from pflcore.detection.decoding import distinct
from pflcore.detection.task import Detection
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.errors import UserError
from pflcore.options import option


@ANALYSES.register
class Detections(Analysis):
    """What personalised detectors find on some test images, beside the objects that are there.

    Needs a detector, such as ``mobilenetv2_ssd``.
    """

    citation = "none: a look at the boxes"
    title = "Detections"
    smoke: ClassVar[dict[str, Any]] = {"images": 1}
    client_options = ("clients",)

    clients: tuple[int, ...] = option((0, 1), ge=0, help="Clients whose test images are looked at.")
    images: int = option(2, ge=1, help="Test images of each of them, spread evenly over its test samples.")
    least: float = option(0.3, ge=0, le=1, help="Score from which a detection is told.")

    def check(self, subject: Subject) -> None:
        """Raise :class:`UserError` when the model is no detector, or a client does not exist."""
        if not isinstance(subject.trainer.task, Detection):
            raise UserError("analyses: 'detections' needs a detector as a backbone; leave the analysis out")
        clients = subject.trainer.data.clients
        for client in self.clients:
            if client >= clients:
                raise UserError(f"detections.clients: there is no client {client}; clients are 0..{clients - 1}")

    @torch.no_grad()
    def findings(self, subject: Subject) -> Iterator[Finding]:
        """For some test images of the chosen clients, in the samples' numbering:

        ``image.<sample>``: its pixels 0..255, channel after channel and row after row, before any scaling up.
        ``found.<sample>``: the detections, six numbers each: class, left, top, right, bottom as shares, score.
        ``there.<sample>``: the objects: class, left, top, right, bottom, and 1 if it is difficult.
        """
        trainer = subject.trainer
        data, task = trainer.data, trainer.task
        for client in dict.fromkeys(self.clients):
            held = data.test[client]
            count = min(self.images, len(held))
            rows = held[torch.arange(count) * len(held) // count]
            batch = data.batch(rows)
            predict = trainer.predictor(subject.measured(client), client, count)
            trainer.model.eval()
            _, _, found, there = (part.cpu().numpy() for part in task.measure(predict(batch.inputs), batch.labels))
            for row, own, objects in zip(rows.tolist(), found, there, strict=True):
                best = distinct(own)
                yield Finding(client, f"image.{row}", data.inputs[row].flatten().cpu().double().numpy())
                yield Finding(client, f"found.{row}", best[best[:, 5] >= self.least].flatten().astype(np.float64))
                yield Finding(client, f"there.{row}", objects[objects[:, 0] >= 0].flatten().astype(np.float64))
