"""Personalised federated learning: data, partitions, backbones, methods and the engine that trains them.

This package knows nothing of specs, DVC, file layout or reports. As a library it needs torch, numpy, safetensors and
filelock, and pyarrow where artifacts are read or written; some datasets, backbones and analyses need more.
"""

from pflcore.sources import note

ENGINE_VERSION = 2
"""Raised when the numbers of runs change by an edit of what all runs share. See CONTRIBUTING.md."""

note(__name__)
