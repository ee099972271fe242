"""The engine needs torch, numpy, safetensors and filelock; nothing that only reads or writes artifacts is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.matrix
TESTS = Path(__file__).parents[2]

BARE = """
import re, sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def with_needs(*names):
    seen, waiting = set(), list(names)
    while waiting:
        name = re.match(r"[\\w.-]+", waiting.pop())[0].lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            try:
                waiting += [need for need in requires(name) or () if "extra ==" not in need]
            except PackageNotFoundError:
                pass
    return seen

there = {'pfl-pipeline'} | with_needs("torch", "numpy", "safetensors", "filelock")
# Top-level module -> the distributions it comes from; what comes from none is the standard library or this project.
owners = {top: {one.lower().replace("_", "-") for one in found} for top, found in packages_distributions().items()}

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        of = owners.get(fullname.partition(".")[0], there)
        return super().find_spec(fullname, path, target) if of & there else None

sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
"""

TRAIN = """
import json
from pflcore.backbones import BACKBONES
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from support.tiny import backbone, federation, method, run

found = {}
for name, net in (("fedavg", "convnet"), ("fedtp", "tiny_vit")):
    for executor in ("sequential", "stacked"):
        result = run(method(name), backbone(net), federation(), executor=executor)
        found[f"{name} {executor}"] = [result.rounds, result.correct.tolist()]
for registry in (METHODS, BACKBONES, PARTITIONS):
    for entry in registry.names():
        registry.get(entry)
print(json.dumps(found))
"""


def bare(script: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    there = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run([sys.executable, "-c", BARE + script], env=there, capture_output=True, text=True)


def test_the_engine_trains_where_little_is_installed() -> None:
    done = bare(TRAIN)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("fedavg", "fedtp"):
        rounds, correct = found[f"{name} stacked"]
        assert rounds == 2 and len(correct) == 2 * 3
        assert correct == found[f"{name} sequential"][1]


def test_so_does_the_benchmark_of_gpus() -> None:
    done = bare(f"sys.path.insert(0, {str(TESTS.parent / 'benchmarks')!r})\nimport gpu\nprint(len(gpu.SECTIONS))")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_artifacts_need_more() -> None:
    done = bare("import pflcore.data.assignment_files")
    assert "No module named 'pyarrow'" in done.stderr
