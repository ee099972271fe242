"""The README promises: its method works as printed, its specs exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from pflcore.options import describe_options
from pflcore.settings import Training
from pipeline.spec.specs import find_specs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

TRAIN = """
import torch
from pathlib import Path
from pflcore.datasets import DATASETS, stand_in
from pflcore.backbones import BACKBONES
from pflcore.engine import train
from pflcore.data.federation import FederatedData
from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS, partition
from pflcore.settings import Evaluation, Training

samples = stand_in(DATASETS.create("digits"), 60, 20)
held = partition(PARTITIONS.create("iid"), samples, 2, 0)
data = FederatedData.from_arrays(samples.inputs, samples.labels, held.train, held.test, samples.mean, samples.std,
                                 samples.classes, torch.device("cpu"))
method = METHODS.create("fedlc")
print(type(method).__module__, Path(__import__("pflcore").__file__).parent.parent)
result = train(data=data, backbone=BACKBONES.create("convnet", kernel=3, padding=1), method=method,
               training=Training(rounds=2, sample_rate=1.0, local_epochs=1), seed=0,
               evaluation=Evaluation(every=1, window=0))
counts = torch.stack([data.class_counts(client) for client in (0, 1)])
print("counts", counts.sum().item(), "bytes", result.cost.sent_up, "loss", float(result.loss.mean()))
"""


def test_the_method_that_it_shows_trains(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n# (pflcore/methods/\w+\.py)\n(.*?)```", README, re.DOTALL)
    shutil.copytree(ROOT / "pflcore", tmp_path / "pflcore", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / block[0]).write_text(block[1])
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"pflcore.methods.fedlc {tmp_path.resolve()}" in done.stdout
    body = (16 * 9 + 16) + (32 * 16 * 9 + 32) + (128 * 120 + 120) + (120 * 84 + 84)
    assert f"counts 60.0 bytes {4 * (body + 84 * 10 + 10)} loss" in done.stdout


def test_the_specs_that_it_names_exist() -> None:
    named = set(re.findall(r"`((?:fedtp|checks)/\w+)`", README))
    assert named and named <= set(find_specs(ROOT / "specs"))


def test_the_ablation_that_it_shows_is_the_quickstarts_axis_and_one_value() -> None:
    lines = re.search(r"^( +partition:\n(?: {8}.*\n)+)", README, re.MULTILINE)
    assert lines
    shown = yaml.safe_load(lines[1])["partition"]
    spec = yaml.safe_load((ROOT / "specs/quickstart.yaml").read_text(encoding="utf-8"))
    axis = spec["grid"]["axes"]["partition"]
    assert {label: value for label, value in shown.items() if label in axis} == axis
    assert len(shown) == len(axis) + 1


def test_the_table_has_a_row_for_every_method_of_the_quickstart() -> None:
    spec = yaml.safe_load((ROOT / "specs/quickstart.yaml").read_text(encoding="utf-8"))
    table = README.partition("<!-- quickstart table -->")[2].partition("<!-- end -->")[0]
    for method in spec["grid"]["axes"]["method"]:
        assert re.search(rf"^\| {re.escape(method)} +\|.*±", table, re.MULTILINE), method


def test_the_page_on_training_has_every_setting_beside_the_first_ones() -> None:
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    later = {option.name: option for option in describe_options(Training) if option.later}
    assert not [name for name in later if f"`{name}`" not in page]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name, option in later.items():
        row = next(line for line in rows if f"`{name}`" in line)
        assert all(f"`{choice}`" in row for choice in option.choices or ())
