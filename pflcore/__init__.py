"""Personalised federated learning: data, partitions, backbones, methods and the engine that trains them.

This package knows nothing of specs, DVC, file layout or reports. It can be used alone as a library and
needs torch, numpy, pyarrow, safetensors and filelock; two datasets need more when they are loaded.
"""

from pflcore.sources import note

note(__name__)
