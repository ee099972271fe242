"""Imports of the process that stages are forked from. The module is imported for this effect only.

It computes nothing and starts no thread, since neither survives a fork well.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

import pyarrow.dataset  # noqa: F401 (pyarrow imports it when it first reads a file)
import torch.fx.experimental.symbolic_shapes  # noqa: F401 (torch imports it when a hypernetwork is first trained)
from matplotlib.backends import backend_agg, backend_svg  # noqa: F401

from pflcore.backbones import BACKBONES
from pflcore.conditions import CONDITIONS
from pflcore.datasets import DATASETS
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from pflcore.registry import use_study
from pipeline.compile.seal import study_home
from pipeline.report import partitions, write  # noqa: F401
from pipeline.running import local  # noqa: F401
from pipeline.spec.figures import figure_module, figure_names
from pipeline.stages import cli, data, features, partition, results, train  # noqa: F401

for name in figure_names():
    with suppress(Exception):  # the stage that needs this module will raise the error
        import_module(figure_module(name))
for registry in (DATASETS, PARTITIONS, BACKBONES, METHODS, CONDITIONS):
    for name in registry.names():
        with suppress(Exception):
            registry.get(name)
use_study(study_home())  # a stage does it again, which takes less if the study is the same
gc.freeze()  # forks share the memory of these objects until something writes to it, such as a garbage collection
