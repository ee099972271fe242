"""Attention through all blocks of a Transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pflcore.analyses import ANALYSES
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.engine.client import Trainer
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.options import option

DISCARD = 0.3
"""Share of the connections of a block, the weakest ones, that count as none."""


@ANALYSES.register
class Rollout(Analysis):
    """Where personalised Transformers look: attention rolled out over all of their blocks.

    Heads are fused by their maximum and the weakest connections dropped, as is usual for images and was done for FedTP
    (Li et al., TNNLS 2023). The code that is usually taken for it divides by row sums along the wrong axis; here rows
    sum to 1. Needs a Transformer over patches with a class token.
    """

    citation = "Abnar and Zuidema, Quantifying Attention Flow in Transformers, ACL 2020"
    title = "Attention rollout"
    smoke: ClassVar[dict[str, Any]] = {"images": 1}
    client_options = ("clients",)

    clients: tuple[int, ...] = option((0, 1, 2), ge=0, help="Clients whose attention is rolled out.")
    images: int = option(2, ge=1, help="Test images of each of them, spread evenly over its test samples.")

    def check(self, subject: Subject) -> None:
        """Look whether the clients exist, and whether the model attends to patches of images.

        Raises:
            UserError: It is not so.
        """
        data = subject.trainer.data
        if not self.clients:
            raise UserError("rollout.clients: name a client, or leave the analysis out")
        for client in self.clients:
            if client >= data.clients:
                raise UserError(f"rollout.clients: there is no client {client}; clients are 0..{data.clients - 1}")
        if data.is_text:
            raise UserError("analyses: 'rollout' needs images, and the dataset is text; leave the analysis out")
        grid(attention(subject.trainer, subject.measured(0), data.example()), data.shape[1:])

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """For the chosen clients and some of their test images, in the samples' numbering:

        ``mask.<sample>``: how much the class token takes from each patch, row after row, the largest number being 1.
        ``image.<sample>``: its pixels 0..255, channel after channel and row after row, in the dataset's own size.
        """
        data = subject.trainer.data
        for client in dict.fromkeys(self.clients):
            held = data.test[client]
            count = min(self.images, len(held))
            rows = held[torch.arange(count) * len(held) // count]
            maps = attention(subject.trainer, subject.measured(client), data.batch(rows).inputs)
            for row, mask in zip(rows.tolist(), rollout(maps), strict=True):
                yield Finding(client, f"mask.{row}", mask.numpy())
                yield Finding(client, f"image.{row}", data.inputs[row].flatten().cpu().double().numpy())


@torch.no_grad()
def attention(trainer: Trainer, state: Tensors, inputs: Tensor) -> list[Tensor]:
    """Return the attention of every block: (batch, heads, length, length), float64 on the host, rows that sum to 1.

    Args:
        state: Of a model, as it is measured.
        inputs: (batch, channels, height, width), normalised.
    """
    trainer.model.eval()
    seen = _Attentions()
    with seen:
        trainer.features(state, inputs)
    return seen.maps


def rollout(maps: Sequence[Tensor], discard: float = DISCARD) -> Tensor:
    """What the class token takes from each patch through all blocks: (batch, patches), the largest number being 1.

    In each block the heads' maximum is taken, the weakest connections are dropped, but never that of the class token
    to itself, the residual stream counts as much as attention, and rows are made to sum to 1.

    Args:
        maps: For each block, from the first to the last, (batch, heads, 1 + patches, 1 + patches).
        discard: Share of the connections that are dropped.
    """
    length = maps[0].shape[-1]
    unit = torch.eye(length, dtype=maps[0].dtype)
    through = unit
    for heads in maps:
        fused = heads.amax(1).flatten(1)
        weakest = fused.argsort(dim=1, stable=True)[:, : int(length * length * discard)]
        dropped = torch.zeros_like(fused, dtype=torch.bool).scatter(1, weakest, True)
        dropped[:, 0] = False
        mixed = (fused.masked_fill(dropped, 0.0).view(-1, length, length) + unit) / 2
        through = mixed / mixed.sum(-1, keepdim=True) @ through
    taken = through[:, 0, 1:]
    # All is zero when every connection of the class token has been dropped.
    return taken / taken.amax(1, keepdim=True).clamp_min(torch.finfo(taken.dtype).tiny)


def grid(maps: Sequence[Tensor], size: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of patches that attention maps are about.

    Args:
        maps: As from :func:`attention`.
        size: Height and width of the images that the model gets.

    Raises:
        UserError: They are not about a class token and square patches that fill the image.
    """
    height, width = size
    lengths = {length for one in maps for length in one.shape[-2:]}
    patches = lengths.pop() - 1 if len(lengths) == 1 else 0
    side = math.isqrt(height * width // patches) if patches > 0 else 0
    if not side or height % side or width % side or (height // side) * (width // side) != patches:
        raise UserError(
            "analyses: 'rollout' needs a Transformer in which every block attends to a class token and square patches "
            "of the image, and to nothing else; use tiny_vit or vit, or leave the analysis out"
        )
    return height // side, width // side


class _Attentions(TorchFunctionMode):
    """Computes the attention that PyTorch's fused function keeps to itself, for every call while it is entered.

    Models of this project and of timm, with prefixes or without, all end up in that function.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            self._note(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _note(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if attn_mask is not None or is_causal or enable_gqa:
            raise UserError(
                "analyses: 'rollout' needs attention of every token to every other, and this backbone masks it; use "
                "tiny_vit or vit, or leave the analysis out"
            )
        query, key = query.cpu().double(), key.cpu().double()
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        self.maps.append((query @ key.transpose(-2, -1) * scale).softmax(-1))
