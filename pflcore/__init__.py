"""Personalised federated learning: data, partitions, backbones, methods and the engine that trains them.

This package knows nothing of specs, DVC, file layout or reports. It needs torch, numpy and pyarrow, and can be used
alone as a library.
"""
