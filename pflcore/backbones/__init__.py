"""The registry of model architectures by name; related ones share a file."""

from pflcore.backbones._base import Backbone, Backbones
from pflcore.backbones._pretrained import read_weights

__all__ = ["BACKBONES", "Backbone", "read_weights"]

BACKBONES = Backbones("backbone", "pflcore.backbones")
