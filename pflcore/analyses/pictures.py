"""Analyses of some clients' test images: the attention of Transformers, and the boxes of detectors."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.analyses import ANALYSES
from pflcore.data.federation import FederatedData
from pflcore.data.samples import IMAGES
from pflcore.detection.ssd import non_maximum_suppression
from pflcore.detection.task import Detection
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.engine.client import Trainer
from pflcore.engine.forward import Substitute
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.options import option

DISCARD = 0.3  # share of a block's connections, the weakest ones, that are dropped


class _Pictures(Analysis):
    """Base of the analyses of some clients' test images."""

    smoke: ClassVar[dict[str, Any]] = {"images": 1}
    client_options = ("clients",)

    clients: tuple[int, ...]
    images: int

    def check(self, subject: Subject) -> None:
        count = subject.trainer.data.clients
        if not self.clients:
            raise UserError(f"{self.name}.clients: name a client, or leave the analysis out")
        if (largest := max(self.clients)) >= count:
            raise UserError(f"{self.name}.clients: there is no client {largest}; clients are 0..{count - 1}")

    def selected(self, data: FederatedData) -> Iterator[tuple[int, Tensor]]:
        """Yield each chosen client and `images` of its test rows, spread evenly; all rows if it has fewer."""
        for client in dict.fromkeys(self.clients):
            rows = data.test[client]
            count = min(self.images, len(rows))
            yield client, rows[torch.arange(count) * len(rows) // count]


def _pixels(client: int, row: int, data: FederatedData) -> Finding:
    return Finding(client, f"image.{row}", data.inputs[row].flatten().cpu().double().numpy())


@ANALYSES.register
class Rollout(_Pictures):
    """The patches that personalised Transformers attend to: attention rolled out over all blocks.

    Heads are fused by their maximum and the weakest connections are dropped, as is usual for images and was done for
    FedTP (Li et al., TNNLS 2023). The code that is usually used divides by row sums along the wrong axis; here rows sum
    to 1. Needs a Transformer over patches with a class token.
    """

    name = "rollout"
    citation = "Abnar and Zuidema, Quantifying Attention Flow in Transformers, ACL 2020"
    title = "Attention rollout"

    clients: tuple[int, ...] = option((0, 1, 2), ge=0, help="Clients whose attention is rolled out.")
    images: int = option(2, ge=1, help="Test images of each of them, spread evenly over its test samples.")

    def check(self, subject: Subject) -> None:
        super().check(subject)
        data = subject.trainer.data
        if data.kind != IMAGES:
            needs = f"images, and the dataset is of {data.kind}"
            raise UserError(f"analyses: 'rollout' needs {needs}; leave the analysis out")
        grid(attention(subject.trainer, subject.measured(0), data.example()), data.shape[1:])

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield two findings for each chosen test image; ``<sample>`` is its row in the dataset.

        ``mask.<sample>``: the class token's attention to each patch, row by row, scaled so that the largest is 1.
        ``image.<sample>``: the pixels 0..255, by channel and row, in the size that the dataset stores.
        """
        data = subject.trainer.data
        for client, rows in self.selected(data):
            maps = attention(subject.trainer, subject.measured(client), data.batch(rows).inputs)
            for row, mask in zip(rows.tolist(), rollout(maps), strict=True):
                yield Finding(client, f"mask.{row}", mask.numpy())
                yield _pixels(client, row, data)


@torch.no_grad()
def attention(trainer: Trainer, state: Tensors, inputs: Tensor) -> list[Tensor]:
    """Return the attention of every block: (batch, heads, length, length), float64 on the host, rows that sum to 1.

    It is computed beside every call of PyTorch's fused function, which does not return it. Vision Transformers of this
    project and of timm, with or without prefixes, all call that function.
    """
    maps: list[Tensor] = []

    # With PyTorch's names, since a backbone may call by name.
    def record(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *args: Any, **options: Any) -> Tensor:
        if attn_mask is not None or options.get("is_causal") or options.get("enable_gqa"):
            masks = "attention of every token to every other, and this backbone masks it"
            raise UserError(f"analyses: 'rollout' needs {masks}; use tiny_vit or vit, or leave the analysis out")
        scale = options.get("scale")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        maps.append((query.cpu().double() @ key.cpu().double().mT * scale).softmax(-1))
        return F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **options)

    trainer.model.eval()
    with Substitute({F.scaled_dot_product_attention: record}):
        trainer.features(state, inputs)
    return maps


def rollout(maps: Sequence[Tensor], discard: float = DISCARD) -> Tensor:
    """Return the class token's attention to each patch through all blocks: (batch, patches), the largest being 1.

    `maps` are those of :func:`attention`. In each block the heads' maximum is taken, and the weakest connections are
    dropped, except that of the class token to itself. The residual stream has the same weight as attention. Rows are
    scaled to sum to 1.
    """
    length = maps[0].shape[-1]
    unit = torch.eye(length, dtype=maps[0].dtype)
    total = unit
    for heads in maps:
        fused = heads.amax(1).flatten(1)
        weakest = fused.argsort(dim=1, stable=True)[:, : int(length * length * discard)]
        dropped = torch.zeros_like(fused, dtype=torch.bool).scatter(1, weakest, True)
        dropped[:, 0] = False
        mixed = (fused.masked_fill(dropped, 0.0).view(-1, length, length) + unit) / 2
        total = mixed / mixed.sum(-1, keepdim=True) @ total
    patches = total[:, 0, 1:]
    # All values are zero if every connection of the class token to patches is dropped.
    return patches / patches.amax(1, keepdim=True).clamp_min(torch.finfo(patches.dtype).tiny)


def grid(maps: Sequence[Tensor], size: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of rows and columns of patches in attention maps, given the images' height and width."""
    height, width = size
    lengths = {length for attention_map in maps for length in attention_map.shape[-2:]}
    patches = lengths.pop() - 1 if len(lengths) == 1 else 0
    side = math.isqrt(height * width // patches) if patches > 0 else 0
    if not side or height % side or width % side or (height // side) * (width // side) != patches:
        needs = "a Transformer in which every block attends to a class token and square patches of the image alone"
        raise UserError(f"analyses: 'rollout' needs {needs}; use tiny_vit or vit, or leave the analysis out")
    return height // side, width // side


@ANALYSES.register
class Detections(_Pictures):
    """The detections of personalised detectors on some test images, and the annotated objects.

    Needs a detector, such as ``mobilenetv2_ssd``.
    """

    name = "detections"
    citation = "none: a look at the boxes"
    title = "Detections"

    clients: tuple[int, ...] = option((0, 1), ge=0, help="Clients whose test images are looked at.")
    images: int = option(2, ge=1, help="Test images of each of them, spread evenly over its test samples.")
    least: float = option(0.3, ge=0, le=1, help="Score from which a detection is reported.")

    def check(self, subject: Subject) -> None:
        if not isinstance(subject.trainer.task, Detection):
            raise UserError("analyses: 'detections' needs a detector as a backbone; leave the analysis out")
        super().check(subject)

    @torch.no_grad()
    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield three findings for each chosen test image; ``<sample>`` is its row in the dataset.

        ``image.<sample>``: the pixels 0..255, by channel and row, before any scaling up.
        ``found.<sample>``: the detections, six numbers each: class, left, top, right, bottom as fractions, score.
        ``there.<sample>``: the objects, six numbers each: class, left, top, right, bottom, and 1 if difficult.
        """
        trainer = subject.trainer
        data, task = trainer.data, trainer.task
        for client, rows in self.selected(data):
            batch = data.batch(rows)
            predict = trainer.predictor(subject.measured(client), client, len(rows))
            trainer.model.eval()
            *_, boxes, targets = (part.cpu().numpy() for part in task.measure(predict(batch.inputs), batch.labels))
            for row, candidates, objects in zip(rows.tolist(), boxes, targets, strict=True):
                best = non_maximum_suppression(candidates)
                yield _pixels(client, row, data)
                yield Finding(client, f"found.{row}", best[best[:, 5] >= self.least].flatten().astype(np.float64))
                yield Finding(client, f"there.{row}", objects[objects[:, 0] >= 0].flatten().astype(np.float64))
