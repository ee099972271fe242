"""The README promises: its method works as printed, its specs exist, its table is what the quickstart gives."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support.project import BIN

from pipeline.compile.compiler import source_folder
from pipeline.spec.specs import find_specs

ROOT = source_folder()
README = (ROOT / "README.md").read_text(encoding="utf-8")
AXES = yaml.safe_load((ROOT / "specs/quickstart.yaml").read_text(encoding="utf-8"))["grid"]["axes"]
POINTS = 3.0  # by which a cell may differ on another processor, as the README says
TRAIN = """
from pathlib import Path
from pflcore.datasets import DATASETS, stand_in
from pflcore.backbones import BACKBONES
from pflcore.engine import select_device, train
from pflcore.data.federation import FederatedData
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS, partition
from pflcore.settings import Evaluation, Training

samples = stand_in(DATASETS.create("digits"), 60, 20)
data = FederatedData.from_samples(samples, partition(PARTITIONS.create("iid"), samples, 2, 0), select_device("cpu"))
method = METHODS.create("fedlc")
print(type(method).__module__, Path(__import__("pflcore").__file__).parent.parent)
result = train(data=data, backbone=BACKBONES.create("convnet", kernel=3, padding=1), method=method, seed=0,
               training=Training(rounds=2, sample_rate=1.0, local_epochs=1), evaluation=Evaluation(every=1, window=0))
print("counts", sum(data.class_counts(client).sum().item() for client in (0, 1)), "bytes", result.cost.sent_up)
"""


def test_the_method_that_it_shows_trains(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n# (pflcore/methods/\w+\.py)\n(.*?)```", README, re.DOTALL)
    shutil.copytree(ROOT / "pflcore", tmp_path / "pflcore", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / block[0]).write_text(block[1])
    words, path = [sys.executable, "-c", TRAIN], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    body = (16 * 9 + 16) + (32 * 16 * 9 + 32) + (128 * 120 + 120) + (120 * 84 + 84)
    where, counted = done.stdout.splitlines()
    assert where == f"pflcore.methods.fedlc {tmp_path.resolve()}"
    assert counted == f"counts 60.0 bytes {4 * (body + 84 * 10 + 10)}"


def test_its_specs_exist_and_its_ablation_is_the_quickstarts_axis_and_one_value() -> None:
    named = set(re.findall(r"`((?:fedtp|checks)/\w+)`", README))
    assert named and named <= set(find_specs(ROOT / "specs"))
    (lines,) = re.findall(r"^( +partition:\n(?: {8}.*\n)+)", README, re.MULTILINE)
    shown, axis = yaml.safe_load(lines)["partition"], AXES["partition"]
    assert {label: value for label, value in shown.items() if label in axis} == axis and len(shown) == len(axis) + 1


def table() -> dict[tuple[str, str], float]:
    """Return method and partition → accuracy, as the README prints it."""
    lines = README.partition("<!-- quickstart table -->")[2].partition("<!-- end -->")[0].strip().splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    cells = {(row[0], name): cell for row in rows for name, cell in list(zip(header, row, strict=True))[1:]}
    return {key: float(re.findall(r"[\d.]+", cell)[0]) for key, cell in cells.items()}


def test_the_table_has_all_cells_of_the_quickstart() -> None:
    assert table().keys() == {(method, partition) for method in AXES["method"] for partition in AXES["partition"]}


@pytest.mark.matrix
def test_the_quickstart_gives_the_table_and_every_spec_is_valid() -> None:
    for words in (["run"], ["validate"]):
        done = subprocess.run([BIN / "pfl", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    found = pd.read_csv(ROOT / "reports/quickstart/table.csv").set_index(["method", "partition"])["obtained_mean"]
    assert {key: found[key] for key, shown in table().items() if abs(found[key] - shown) > POINTS} == {}
