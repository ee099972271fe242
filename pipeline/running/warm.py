"""What the process that stages are forked from does before the first of them: it imports everything.

It computes nothing and starts no thread, since neither survives a fork well. Imported for its effect.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg  # noqa: F401
from typer.main import get_command

import pipeline.report.write
import pipeline.running.worker
import pipeline.stages.cli
import pipeline.stages.data
import pipeline.stages.describe
import pipeline.stages.evaluate
import pipeline.stages.index
import pipeline.stages.partition
import pipeline.stages.report
import pipeline.stages.train
from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from pipeline.spec.catalog import figure_module, figure_names

for name in figure_names():
    with suppress(Exception):  # which is for the stage that needs it
        import_module(figure_module(name))
for registry in (DATASETS, PARTITIONS, BACKBONES, METHODS):
    for name in registry.names():
        with suppress(Exception):
            registry.get(name)
# Typer imports a part of itself when it first reads a command line.
_group = get_command(pipeline.stages.cli.stage)
_command = _group.get_command(_group.make_context("stage", [], resilient_parsing=True), "train")  # type: ignore[attr-defined]
_command.make_context("train", ["id", "--seal", "0"])
gc.freeze()  # what was imported is shared with forks, as long as nobody touches it
