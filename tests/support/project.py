"""Small projects for tests of the pipeline: a folder with specs and pyproject.toml, prepared for DVC."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

from dvc.dvcfile import load_file
from dvc.repo import Repo

from pipeline import workspace as paths
from pipeline.compile import compiler, generated
from pipeline.compile.compiler import compile_workspace, source_folder
from pipeline.compile.fingerprint import Code
from pipeline.dvc.program import initialise
from pipeline.report.collect import write_frame
from pipeline.report.partitions import describe
from pipeline.report.write import build_report
from pipeline.spec.catalog import load_catalog
from pipeline.stages import data, partition, train
from pipeline.stages.results import select
from pipeline.workspace import PAPER, RECORDS, Workspace

BIN = Path(sys.executable).parent
PATIENCE = 240.0  # seconds that nothing here needs
CONVNET = "{name: convnet, kernel: 3, padding: 1, channels: [2, 4], hidden: [8]}"
VIT = "{name: tiny_vit, depth: 1, dim: 8, heads: 1, head_dim: 8, mlp_dim: 8, patch: 4}"
HOSTILE = '$(reboot); `id` & "a" | <b> ${x} \\${y} %s \'\n#'


def spec(
    methods="{FedAvg: fedavg, FedPer: fedper}",
    *,
    title="Tiny",
    partition="iid",
    backbone=CONVNET,
    rounds=2,
    training="",
    more="",
):
    """A spec whose runs take a second each: handwritten digits, three clients."""
    return f"""\
title: {title}
grid:
  base:
    dataset: digits
    partition: {partition}
    clients: 3
    backbone: {backbone}
    training: {{rounds: {rounds}, sample_rate: 1, local_epochs: 1, batch_size: 64, lr: 0.1{training}}}
    evaluation: {{every: 1, window: 1, curve_every: 1}}
  axes:
    method: {methods}
{more}"""


def hostile():
    """A spec whose texts are what a shell, YAML and DVC's templates would trip over."""
    text = json.dumps(HOSTILE)
    label = text.replace(r"\n", "")
    more = f"table: {{rows: [method], columns: [], caption: {text}}}\nnotes: [{text}]\n"
    return spec(f"{{{label}: fedavg, FedTP: fedtp}}", title=text, backbone=VIT, more=more)


def several():
    """Specs in folders, with dots, sharing runs, over several federations."""
    axes = "    partition: [iid, dirichlet]\n    seed: [0, 1]\n"
    return {
        "specs/tiny.yaml": spec(),
        "specs/paper/table2.v1.yaml": spec("[fedavg, local]", more=axes),
        "specs/paper/base.yaml": "abstract: true\ntitle: Base\n",
        "specs/paper/child.yaml": f"extends: ../tiny.yaml\ngrid: {{base: {{backbone: {VIT}}}}}\n",
        "specs/hostile.yaml": hostile(),
    }


@dataclass(frozen=True)
class Reproduction:
    """What ``dvc repro`` did: its exit code, the stages that ran and that came from the run cache, its output."""

    code: int
    ran: list[str]
    cached: list[str]
    output: str


@dataclass(frozen=True)
class Project:
    """A folder made by :func:`make_project`."""

    root: Path

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def workspace(self, profile=PAPER):
        return Workspace.find(self.root, profile)

    def compiled(self, profile=PAPER):
        """What the specs compile to; nothing is written. The code is parsed once for all tests."""
        with patch.object(compiler, "Code", lambda source, cache: _parsed(source)):
            return compile_workspace(self.workspace(profile))

    def compile(self):
        return generated.write(self.workspace(), self.compiled())

    def stages(self):
        """``<file>:<stage>`` → command, inputs and outputs of all stages on disk, as DVC reads them."""
        found = {}
        with Repo(str(self.root)) as repo:
            for path in [self.root / "dvc.yaml", *self.root.glob("stages/**/dvc.yaml")]:
                for name, stage in load_file(repo, str(path)).stages.items():
                    deps, outs = ([one.def_path for one in some] for some in (stage.deps, stage.outs))
                    facts = {"cmd": stage.cmd, "deps": deps, "outs": outs, "always_changed": stage.always_changed}
                    found[f"{path.relative_to(self.root).as_posix()}:{name}"] = facts
        return found

    def generated(self):
        """What the compiler and DVC keep beside the specs: stage files and locks."""
        return {name: text for name, text in tree(self.root).items() if name.startswith(("stages/", "dvc."))}

    def call(self, *command, cwd=".", **environment):
        """Run a program in the project, with pfl and dvc of this environment on the path."""
        how = {"cwd": self.root / cwd, "env": self.environment(**environment), "text": True}
        return subprocess.run(command, capture_output=True, check=False, **how)

    def succeed(self, *command, **environment):
        """Run a program in the project on the CPU, which has to end well; return what it says."""
        done = self.call(*command, **{"PFL_DEVICE": "cpu", **environment})
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def environment(self, **more):
        """Variables for subprocesses that neither phone home nor leave anything outside of the project."""
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        site = str(self.root / ".dvc/tmp/site")
        own = {"PATH": path, "CI": "true", "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": site, "PFL_THREADS": "1"}
        return {**os.environ, **own, **more}

    def enter(self, monkeypatch, **more):
        """Go there, under these variables."""
        for name, value in self.environment(**more).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(self.root)

    def repro(self, *targets, **environment):
        done = self.call("dvc", "repro", *targets, **environment)
        ran = re.findall(r"^Running stage '(?:.*:)?(.*?)':$", done.stdout, re.MULTILINE)
        cached = re.findall(r"^Stage '(.*)' is cached", done.stdout, re.MULTILINE)
        return Reproduction(done.returncode, ran, cached, done.stdout + done.stderr)

    def execute(self, compilation, profile=PAPER):
        """Run all stages of a compilation in this process, without DVC; its files need to be on disk."""
        root = self.workspace(profile).root
        seals = {stage.subject: stage.seal for stage in compilation.stages if stage.kind == "train"}
        inputs = {}  # of each federation
        for run in sorted(compilation.runs.values(), key=lambda run: run.tuned is not None):
            choice = root / paths.selection_path(run.tuned) if run.tuned else None
            if choice and not choice.exists():
                select(run.tuned, root / RECORDS, root / paths.RUNS, choice)
            dataset, federation = root / paths.dataset_path(run.data_id), root / paths.partition_path(run.federation_id)
            inputs[run.federation_id] = run, dataset, federation
            if not dataset.exists():
                data.run(run.record["dataset"], dataset, root / "data")
            if not federation.exists():
                partition.run(run, dataset, federation)
            own = {"out": root / paths.RUNS / run.id, "private": root / ".pfl", "code": seals[run.id]}
            train.run(run, dataset=dataset, partition=federation, selection=choice, device="cpu", **own)
        for name, table in compilation.tables.items():
            for shown in table.partitions:
                describe(*inputs[shown.federation], root / paths.partition_report_path(shown.federation))
            write_frame(table, root, root / paths.frame_path(name))
            build_report(table, root, root / paths.report_path(name))


def wait_for(what, process=None):
    """Return as soon as something holds, which is an error when a program ends before."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.01)


@contextmanager
def at_work(project, *command, rounds=1, **variables):
    """Yield a program in the project as soon as a run has so many rounds in a checkpoint; end it afterwards."""
    how = {"cwd": project.root, "env": project.environment(PFL_CHECKPOINT_SECONDS="0", **variables), "text": True}
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    process, name = subprocess.Popen(command, **how), f"round-{rounds:06}"
    try:
        wait_for(lambda: any(path.name >= name for path in project.root.glob(".pfl/checkpoints/*/round-*")), process)
        yield process
    finally:
        if process.poll() is None:
            kill(process)
        process.communicate()


def kill(process):
    """End a program and all that it started, at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def make_project(folder, files=None, default=None):
    """A project with the given specs, by default one called tiny; `default` goes to pyproject.toml."""
    project = Project(folder)
    (folder / "specs").mkdir(parents=True, exist_ok=True)
    for name, content in {**_prepared(), **({"specs/tiny.yaml": spec()} if files is None else files)}.items():
        project.write(name, content)
    if default is not None:
        project.write("pyproject.toml", f"[tool.pfl]\ndefault = {default}\n")
    return project


_parsed = cache(Code)


@cache
def _prepared():
    """What each project begins with: DVC's own files, the catalog and the parsed code. All take seconds to make."""
    with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, Project(Path(name)).environment()):
        folder = Path(name)
        initialise(folder)
        load_catalog(folder)
        code = Code(source_folder(), folder / ".pfl" / "fingerprints.json")
        entries = [name for name in code.modules if name.startswith("pflcore.") and name.count(".") == 2]
        for module in ("pipeline.running.warm", "pipeline.stages.features", *entries):
            code.fingerprint(module)
        code.save_cache()
        return {name: content for name, content in tree(folder).items() if not name.startswith(".dvc/tmp/")}


def tree(folder):
    """All files below a folder by their path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def results(project):
    """What stages have made; pages of papers are `pfl run`'s own."""
    made = {name: text for name, text in tree(project.root).items() if name.startswith(("artifacts/", "reports/"))}
    return {name: text for name, text in made.items() if not name.startswith(("reports/papers/", "reports/index.html"))}
