"""Personalised federated learning: data, partitions, backbones, methods and the engine that trains them.

This package does not know specs, DVC, file layout or reports. As a library it needs torch, numpy, safetensors and
filelock, and pyarrow to read or write artifacts. Some datasets, backbones and analyses need more.
"""

from pflcore.sources import note

ENGINE_VERSION = 2
"""Version of the code that all runs share; raise it when an edit of that code changes numbers. See CONTRIBUTING.md."""

note(__name__)
