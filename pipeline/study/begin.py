"""Templates of a study: a folder with a spec and settings; new parts, which run unchanged; the schema for editors."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.registry import KINDS, registry_of, use_study
from pipeline.compile.compiler import compile_workspace, source_folder
from pipeline.compile.generated import write
from pipeline.dvc.program import initialise
from pipeline.spec.catalog import load_catalog
from pipeline.spec.editor_schema import json_schema
from pipeline.spec.selection import select_specs
from pipeline.spec.specs import find_specs, inherit
from pipeline.spec.yamlfile import abspath, locate
from pipeline.workspace import Workspace

SCHEMA = ".pfl/schema.json"
FIRST = """\
title: First comparison
grid:
  base:
    dataset: digits                     # others: pfl list datasets
    clients: 10
    backbone: {name: convnet, kernel: 3, padding: 1, channels: [8, 16], hidden: [32]}
    training: {rounds: 10, sample_rate: 0.5, local_epochs: 2, batch_size: 16, lr: 0.1}
    evaluation: {every: 1, window: 2, curve_every: 1}
  axes:                                 # every combination is a run
    method:                             # pfl list methods, pfl describe fedper
      Local: local
      FedAvg: fedavg
      FedAvg + FT: {name: fedavg, finetune_epochs: 2}
      FedPer: fedper
    partition:                          # pfl describe partition dirichlet --dataset digits
      Dirichlet(0.3): {name: dirichlet, alpha: 0.3}
    seed: [0, 1, 2]
table:
  caption: Test accuracy (%) of ten clients; mean and spread over three seeds.
  rows: [method]
  columns: [partition]
  average_over: [seed]
"""
_FILES = {
    "pyproject.toml": """\
# This section makes the folder a study: `pfl` and `dvc repro` find it from anywhere inside.
[tool.pfl]
default = [DEFAULT]    # what a bare `dvc repro` and a bare `pfl run` bring up to date
compile = []    # further specs that DVC sees in every clone; on this machine only: pfl add SPEC
watch_upgrades = true    # every `dvc repro` checks for an upgrade of pfl; false: `dvc status` can be clean
""",
    "requirements.txt": """\
# No package index has this package: put its wheel beside this file, and into git.
--find-links .
pfl-pipeline==VERSION
""",
    ".gitignore": """\
# Whatever folders above ignore: these belong to the study.
!/.dvcignore
!/pyproject.toml
!/requirements.txt
!/methods/
!/backbones/
!/datasets/
!/partitions/
!/conditions/
!/analyses/
!/results/
!/results/**
!/specs/
!/specs/**
!/stages/
!/stages/**
!/dvc.yaml
!/dvc.lock
!/data/
# What runs produce and need; of data that `dvc add` tracks, only what DVC writes.
/artifacts/
/reports/*
/data/*
!/data/*.dvc
!/data/.gitignore
/build/
/.dvc/cache/
/.dvc/tmp/
/.dvc/config.local
/.pfl/
/exports/
/dvc_plots/
__pycache__/
.venv/
""",
    ".gitattributes": "/stages/** linguist-generated\n/dvc.yaml linguist-generated\n",
    ".vscode/settings.json": f'{{"yaml.schemas": {{"./{SCHEMA}": "specs/**/*.yaml"}}}}\n',
    ".github/workflows/study.yml": """\
name: study
on: [push, pull_request]
jobs:
  specs:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.11"}
      - run: pip install torch
      - run: pip install -r requirements.txt
      - run: pfl setup
      - run: pfl validate                 # every spec, and every part of its own
      - run: pfl run --profile smoke      # the whole study in miniature, on generated data
""",
}


_METHOD = '''\
"""TITLE: in one line, what it does differently from other methods."""

from torch import Tensor

from pflcore.groups import Tensors
from pflcore.method import Batch, ClientView, Method
from pflcore.methods import METHODS
from pflcore.options import option


@METHODS.register
class CLASS(Method):
    """A personal classifier on a shared body, whose clients stay near the body that they received."""

    citation = "where it is from"
    personal = ("head",)  # groups of the backbone that stay on the client: pfl describe convnet

    mu: float = option(0.1, ge=0, help="Weight of the distance from the received body; 0 is FedPer.")

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        shared = local.parameters & local.roles.shared
        distance = sum((params[name] - local.received[name]).square().sum() for name in params if name in shared)
        return super().loss(local, params, batch) + 0.5 * self.mu * distance
'''
_BACKBONE = '''\
"""TITLE: in one line, what kind of model it is."""

from torch import Tensor, nn

from pflcore.backbones import BACKBONES


@BACKBONES.register
class CLASS(nn.Module):
    """A convolution over the image, then a hidden layer."""

    citation = "where it is from"
    # Group → pattern over the names of the state. A spec or a method can keep a group on the clients (personal).
    groups = {"conv": "conv", "fc": "fc", "head": "head"}

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 16) -> None:
        super().__init__()
        channels, _, _ = shape
        self.conv = nn.Conv2d(channels, width, kernel_size=3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.fc = nn.Linear(width * 4 * 4, 4 * width)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:  # (batch, channels, height, width) → logits (batch, classes)
        features = self.pool(self.conv(images).relu()).flatten(1)
        return self.head(self.fc(features).relu())
'''
_DATASET = '''\
"""TITLE: in one line, what it contains."""

from pathlib import Path

import numpy as np

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS, Dataset


@DATASETS.register
class CLASS(Dataset):
    """Three kinds of stripes, 600 grey images of 8x8, made by a generator."""

    citation = "where it is from"
    licence = "of the data"
    access = "included"  # or "folder", with files = ("*.npz",): then it lies in data/NAME/
    download_size = "none"
    original = (1, 8, 8)  # channels, height, width
    class_names = ("rows", "columns", "diagonals")
    counts = (450, 150)  # samples for training and for test; if there are none for test, the partition draws them
    mean = (0.38,)  # per channel, of values from 0 to 1
    std = (0.31,)

    def load(self, folder: Path) -> Samples:
        """Arrays of bytes [n, channels, height, width], labels [n], and which samples are for training [n]."""
        rng = np.random.default_rng(0)
        labels = np.arange(600, dtype=np.int64) % self.classes
        row, column = np.mgrid[:8, :8]
        patterns = np.stack([row, column, row + column]) % 3 * 100
        images = (patterns[labels, None] + rng.normal(0, 40, (600, 1, 8, 8))).clip(0, 255).astype(np.uint8)
        return self.complete(images, labels, np.arange(600) < 450, where="a generator", source="a generator")
'''
_PARTITION = '''\
"""TITLE: in one line, which client gets which samples."""

import numpy as np

from pflcore.data.samples import Rows, Samples
from pflcore.options import option
from pflcore.partitions import PARTITIONS, Partition


@PARTITIONS.register
class CLASS(Partition):
    """A share of each client's samples is of one class, the others are of any class."""

    citation = "where it is from"

    own: float = option(0.5, ge=0, le=1, help="Share of the samples that go to clients of their class.")

    def split(self, samples: Samples, sides: list[Rows], clients: int, rng: np.random.Generator) -> Rows:
        """Return the client of each sample; -1 leaves it out. Training and test samples are split in the same way."""
        owners = np.full(len(samples), -1)
        for rows in sides:
            steps = -(-clients // samples.classes)  # clients whose class it is
            whose = (samples.labels[rows] + samples.classes * rng.integers(0, steps, len(rows))) % clients
            anyone = rng.integers(0, clients, len(rows))
            owners[rows] = np.where(rng.random(len(rows)) < self.own, whose, anyone)
        return owners
'''
TEMPLATES = {"method": _METHOD, "backbone": _BACKBONE, "dataset": _DATASET, "partition": _PARTITION}


def create_study(folder: Path, source: str | None = None) -> list[str]:
    """Make a study that is compiled and ready for `dvc repro`; return the names of its specs.

    `source` is a spec of a paper, or a folder of them, to begin with. After an error no files remain.
    """
    folder = folder.absolute()
    existed = folder.is_dir()
    if folder.exists() and (not existed or {path.name for path in folder.iterdir()} - {".git"}):
        raise UserError(f"{folder}: exists and is not an empty folder; name a new or an empty one")
    names, specs = paper_files(source) if source else (["first"], {"first.yaml": FIRST})
    values = {"DEFAULT": ", ".join(f'"{name}"' for name in names), "VERSION": version("pfl-pipeline")}
    try:
        for name, text in specs.items():
            if name.endswith(".yaml"):  # language servers for YAML find the schema by this comment
                text = f"# yaml-language-server: $schema={'../' * name.count('/')}../{SCHEMA}\n{text}"
            write_text(folder / "specs" / name, text)
        for name, text in _FILES.items():
            write_text(folder / name, re.sub("|".join(values), lambda match: values[match[0]], text))
        initialise(folder, inside=True)
        workspace = Workspace.find(folder)
        write(workspace, compile_workspace(workspace))
        write_schema(workspace.home)
    except BaseException:
        for path in [folder] if not existed else [path for path in folder.iterdir() if path.name != ".git"]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise
    return names


def paper_specs() -> Path:
    """Return the folder of the papers' specs: in the package where it was installed from a wheel, else beside it."""
    installed = source_folder() / "pipeline" / "specs"
    return installed if installed.is_dir() else source_folder() / "specs"


def paper_files(word: str) -> tuple[list[str], dict[str, str]]:
    """Return names of a spec of a paper or of a folder of them, and the text of all files that they need, by path."""
    folder = abspath(paper_specs())
    specs, names, paths = find_specs(folder), list[str](), set[Path]()
    for name in select_specs([word], list(specs)):
        document, chain = inherit(specs[name], folder)
        paths |= {folder.parent / label for label in chain} | set(specs[name].parent.glob("README.md"))
        table = document.data.get("table")
        if isinstance(table, dict) and isinstance(values := table.get("published"), str):
            paths.add(locate(folder, document, ("table", "published"), values))
        if not document.data.get("abstract"):
            names.append(name)
    if not names:
        raise UserError(f"{word}: abstract; name a spec that extends it")
    return names, {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def create_part(kind: str, name: str, home: Path) -> Path:
    """Write the file of a new part of the study, which runs unchanged, and return its path."""
    if kind not in TEMPLATES:
        raise UserError(f"pfl new {kind}: the first word must be one of {', '.join(TEMPLATES)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"{name!r} cannot be the name of a {kind}; use a-z, 0-9 and '_', and begin with a letter")
    use_study(home)
    path = home / KINDS[kind][0].rpartition(".")[2] / f"{name}.py"
    if path.exists() or name in registry_of(kind).names():
        raise UserError(f"there is a {kind} {name!r} already; pfl describe {kind} {name}")
    title = "".join(word.capitalize() for word in name.split("_"))
    write_text(path, re.sub("TITLE|CLASS", title, TEMPLATES[kind]).replace("data/NAME", f"data/{name}"))
    return path


def write_schema(home: Path) -> Path:
    """Update the schema by which editors complete and check the specs of a study; return its path."""
    path, text = home / SCHEMA, json.dumps(json_schema(load_catalog(home)), indent=1) + "\n"
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return path
    write_text(path, text)
    return path
