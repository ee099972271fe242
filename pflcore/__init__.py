"""Personalised federated learning: data, partitions, backbones, methods and the engine that trains them.

This package knows nothing of specs, DVC, file layout or reports. It can be used alone as a library and
needs torch, numpy, safetensors and filelock, and pyarrow where artifacts are read or written; some datasets, backbones
and analyses need more when they are used.
"""

from pflcore.sources import note

note(__name__)
