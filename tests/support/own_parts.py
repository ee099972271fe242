"""A study with parts of its own, one of each kind, small enough for tests."""

METHOD = '''\
from pflcore.methods import METHODS, Method
from pflcore.options import option
from ._scaling import factor


@METHODS.register
class Mine(Method):
    """FedAvg whose loss is scaled."""

    scale: float = option(1.0, gt=0, help="What the loss is multiplied by.")

    def loss(self, local, params, batch):
        return self.scale * factor() * super().loss(local, params, batch)
'''
SCALING = "def factor():\n    return 1.0\n"
BACKBONE = '''\
from torch import nn

from pflcore.backbones import BACKBONES


@BACKBONES.register
class Small(nn.Module):
    """One hidden layer."""

    groups = {"body": "body", "head": "head"}

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 8) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.body = nn.Linear(channels * height * breadth, width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.body(images.flatten(1)).relu())
'''
DATASET = '''\
import numpy as np

from pflcore.datasets import DATASETS, Dataset


@DATASETS.register
class Noise(Dataset):
    """Sixty grey images of nothing, in three classes."""

    licence, download_size, access = "none", "none", "included"
    original, counts, class_names = (1, 8, 8), (60, 0), ("a", "b", "c")
    mean, std = (0.5,), (0.25,)

    def load(self, folder):
        images = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), np.uint8)
        labels = np.arange(60) % 3
        return self.complete(images, labels, np.ones(60, bool), where="noise", source="a generator")
'''
PARTITION = '''\
import numpy as np

from pflcore.partitions import PARTITIONS, Partition


@PARTITIONS.register
class Turns(Partition):
    """Samples in turn."""

    def split(self, samples, sides, clients, rng):
        return np.arange(len(samples)) % clients
'''
ANALYSIS = '''\
from pflcore.analyses import ANALYSES, Analysis
from pflcore.engine.analysis import Finding


@ANALYSES.register
class Count(Analysis):
    """How many entries a client's model has."""

    title = "Entries"

    def check(self, subject):
        pass

    def findings(self, subject):
        for client in subject.members():
            yield Finding.one(client, "entries", 4.0)
'''
FIGURE = """\
from pipeline.report.drawing.sections import Section

TITLE = "Own figure"


def draw(data):
    return Section("Drawn by the study.")
"""
SPEC = """\
title: Own
grid:
  base:
    dataset: noise
    partition: {name: turns, test_share: 0.25}
    clients: 3
    backbone: small
    training: {rounds: 2, sample_rate: 1, local_epochs: 1, lr: 0.1}
    evaluation: {every: 1, window: 0, curve_every: 1}
    analyses: [count]
  axes:
    method: {FedAvg: fedavg, Mine: mine}
figures: [count, plain]
"""


def own_parts():
    """The files of the study: path → text."""
    python = {"methods/mine": METHOD, "methods/_scaling": SCALING, "backbones/small": BACKBONE}
    python |= {"datasets/noise": DATASET, "partitions/turns": PARTITION}
    python |= {"analyses/count": ANALYSIS, "figures/plain": FIGURE}
    return {"specs/own.yaml": SPEC, **{f"{name}.py": text for name, text in python.items()}}
