"""What every backbone provides: a module for given sizes, and names for the groups of its parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from pflcore.backbones._pretrained import fit, read_weights
from pflcore.errors import UserError
from pflcore.groups import Groups
from pflcore.options import option
from pflcore.registry import Entry, registry_of
from pflcore.seeds import torch_seed


@dataclass(frozen=True, kw_only=True)
class Backbone(Entry):
    """A model architecture. Subclasses define :meth:`build` and :attr:`groups`, and :attr:`takes` if not images."""

    groups: ClassVar[dict[str, str]] = {}  # group → pattern over state names
    # "images", floats (batch, channels, height, width), or "text", character numbers (batch, length).
    takes: ClassVar[str] = "images"
    predicts: ClassVar[str] = "classes"  # or "boxes", of a detector
    pretrained: str | None = option(
        None,
        later=True,
        help="File of weights to begin with: safetensors, or a state dict of torch.save, named as in the model; in a "
        "spec relative to the project. A classifier of other classes begins anew. null is from scratch.",
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a freshly initialised module that maps a batch of inputs to logits.

        Args:
            shape: Of one input: (channels, height, width) of an image, (length,) of a text.
            classes: Of images: logits are (batch, classes). Of text: characters, of which the next one is predicted at
                every position, so that logits are (batch, length, classes). A detector's module has an attribute
                ``task``, a :class:`pflcore.detection.task.Detection`, and gives what that takes.
        """
        raise TypeError(f"backbone {type(self).__name__} does not define build()")

    def create(
        self,
        shape: tuple[int, ...],
        classes: int,
        seed: int,
        extend: Callable[[nn.Module], Mapping[str, str]] | None = None,
    ) -> tuple[nn.Module, Groups]:
        """Build under the seed's own stream of randomness, with pretrained weights; return it and its groups.

        What there is to say about pretrained weights is the module's attribute ``notes``. `extend` adds modules to the
        model and gives the patterns of their groups; it has a stream of its own, so the rest begins as without it.
        """
        self._check_input(shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "init"))
            model = self.build(shape, classes)
            patterns = self.patterns(model)
            if self.pretrained:
                head = [name for name in model.state_dict() if "head" in patterns and re.match(patterns["head"], name)]
                where = f"backbone {self.name}: {self.pretrained}"
                note = fit(model, read_weights(Path(self.pretrained)), head, where)
                setattr(model, "notes", (f"{self.pretrained}: {note}",) if note else ())  # noqa: B010 - as in _timm
            torch.manual_seed(torch_seed(seed, "extension"))
            added = extend(model) if extend else {}
        return model, Groups.assign(model, {**patterns, **added})

    def patterns(self, model: nn.Module) -> Mapping[str, str]:
        """Return group → pattern over state names, of a module that :meth:`build` made."""
        return self.groups

    def _check_input(self, shape: tuple[int, ...]) -> None:
        given = "text" if len(shape) == 1 else "images"
        if given != self.takes:
            backbones = registry_of("backbone")
            *others, last = [name for name in backbones.names() if backbones.get(name).takes == given]
            what = "the dataset is text" if given == "text" else "the dataset has images"
            use = f"{', '.join(others)}{' or ' if others else ''}{last}"
            name = getattr(self, "name", type(self).__name__)
            raise UserError(f"backbone {name} takes {self.takes}, {what}; use {use}")
