"""Imports of slow libraries that only some stages use, for runs of many stages; for this effect only, as in `warm`."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

for name in ("scipy.stats", "sklearn.neighbors", "timm"):
    with suppress(Exception):  # the stage that needs this library will raise the error
        import_module(name)
