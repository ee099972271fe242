"""What every backbone provides: a module for given sizes, and names for the groups of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from pflcore.groups import Groups
from pflcore.registry import Entry
from pflcore.seeds import torch_seed


class Backbone(Entry):
    """A model architecture. Subclasses define :meth:`build` and :attr:`groups`."""

    groups: ClassVar[dict[str, str]] = {}

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A freshly initialised module that maps (batch, \\*shape) images to (batch, classes) logits.

        Raises:
            UserError: The options do not fit images of this `shape` (channels, height, width).
        """
        raise TypeError(f"backbone {type(self).__name__} does not define build()")

    def create(self, shape: tuple[int, int, int], classes: int, seed: int) -> tuple[nn.Module, Groups]:
        """:meth:`build` under the seed's own stream of randomness, and the module's groups."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "init"))
            model = self.build(shape, classes)
        return model, Groups.assign(model, self.patterns(model))

    def patterns(self, model: nn.Module) -> Mapping[str, str]:
        """Group → pattern over state names, of a module that :meth:`build` made; by default :attr:`groups`."""
        return self.groups
