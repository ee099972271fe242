"""What the process that stages are forked from does before the first of them: it imports everything.

It computes nothing and starts no thread, since neither survives a fork well. Imported for its effect.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

from matplotlib.backends import backend_agg, backend_svg  # noqa: F401

from pflcore.backbones import BACKBONES
from pflcore.conditions import CONDITIONS
from pflcore.datasets import DATASETS
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from pipeline.report import write  # noqa: F401
from pipeline.running import local  # noqa: F401
from pipeline.spec.figures import figure_module, figure_names
from pipeline.stages import cli, data, describe, features, partition, results, train  # noqa: F401

for name in figure_names():
    with suppress(Exception):  # which is for the stage that needs it
        import_module(figure_module(name))
for registry in (DATASETS, PARTITIONS, BACKBONES, METHODS, CONDITIONS):
    for name in registry.names():
        with suppress(Exception):
            registry.get(name)
gc.freeze()  # what was imported is shared with forks, as long as nobody touches it
