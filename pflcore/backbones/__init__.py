"""Model architectures, one per file."""

from pflcore.backbones._base import Backbone
from pflcore.backbones._module import Backbones
from pflcore.backbones._pretrained import read_weights

__all__ = ["BACKBONES", "Backbone", "read_weights"]

BACKBONES = Backbones("backbone", "pflcore.backbones")
