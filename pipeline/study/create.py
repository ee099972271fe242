"""A new study: a folder with a first spec, settings for DVC, git, editors and continuous integration."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compiler import compile_workspace, source_folder
from pipeline.compile.generated import write
from pipeline.dvc.program import initialise
from pipeline.spec.selection import named
from pipeline.spec.specs import find_specs, inherit
from pipeline.spec.yamlfile import absolute, inside
from pipeline.study.parts import SCHEMA, write_schema
from pipeline.workspace import Workspace

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
compile = []    # further specs that all who work on the study shall see in DVC; on one machine: pfl add SPEC
watch_upgrades = true    # every `dvc repro` asks whether pfl was upgraded; false: `dvc status` can be clean
""",
    "requirements.txt": """\
# No package index has it: put its wheel beside this file, and into git.
--find-links .
pfl-pipeline==VERSION
""",
    "README.md": """\
# TITLE

    pip install -r requirements.txt    # with the wheel of pfl-pipeline in this folder
    pfl plan             # what there is to do, and how long it takes
    dvc repro            # runs what is missing or stale; or: pfl run -j 4
    pfl new method mine  # a method of your own, methods/mine.py

Experiments are in `specs/`, tables and figures come to `reports/`. `git add .` takes what belongs into git.
""",
    ".gitignore": """\
# What runs produce: cached by DVC, never committed to git.
/artifacts/
/reports/*
/data/
/build/
/.dvc/cache/
/.dvc/tmp/
/.dvc/config.local
# Checkpoints, logs and caches of this machine.
/.pfl/
__pycache__/
.venv/
""",
    ".vscode/settings.json": f"""\
{{
  "yaml.schemas": {{"./{SCHEMA}": "specs/**/*.yaml"}}
}}
""",
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
      - run: pip install torch --index-url https://download.pytorch.org/whl/cpu
      - run: pip install -r requirements.txt
      - run: pfl setup
      - run: pfl validate                 # every spec, and every part of its own
      - run: pfl run --profile smoke      # the whole study in miniature, on generated data
""",
}


def create(folder: Path, source: str | None = None) -> list[str]:
    """Make a study that is compiled and ready for `dvc repro`; return the names of its specs.

    Args:
        source: A spec of a paper, or a folder of them, to begin with.

    Raises:
        UserError: There is something in the folder already, or no such spec; nothing is left then.
    """
    folder = folder.absolute()
    existed = folder.is_dir()
    if folder.exists() and (not existed or {path.name for path in folder.iterdir()} - {".git"}):
        raise UserError(f"{folder}: there is something already; name a folder that is not there yet, or an empty one")
    names, specs = needed(source) if source else (["first"], {"first.yaml": FIRST})
    words = {"DEFAULT": ", ".join(f'"{name}"' for name in names), "VERSION": version("pfl-pipeline")}
    words["TITLE"] = folder.name
    try:
        for name, text in specs.items():
            # The comment is how language servers for YAML find the schema.
            up = "../" * len(PurePosixPath("specs", name).parent.parts)
            line = f"# yaml-language-server: $schema={up}{SCHEMA}\n" if name.endswith(".yaml") else ""
            write_text(folder / "specs" / name, line + text)
        for name, text in _FILES.items():
            for word, value in words.items():
                text = text.replace(word, value)
            write_text(folder / name, text)
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


def needed(word: str) -> tuple[list[str], dict[str, str]]:
    """Return names of a paper's spec or of a folder of them, and all files that they need, path below `specs/` → text.

    Raises:
        UserError: There is no such spec.
    """
    folder = absolute(paper_specs())
    known, concrete, files = find_specs(folder), list[str](), set[Path]()
    for name in named([word], list(known)):
        document, chain = inherit(known[name], folder)
        files |= {folder.parent / label for label in chain} | set(known[name].parent.glob("README.md"))
        table = document.data.get("table")
        if isinstance(table, dict) and isinstance(values := table.get("published"), str):
            files.add(inside(folder, document, ("table", "published"), values))
        if not document.data.get("abstract"):
            concrete.append(name)
    if not concrete:
        raise UserError(f"{word}: only to be extended; name a spec that extends it")
    return concrete, {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)}
