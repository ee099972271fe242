"""The ablation guide does what it says: its files are written as printed, its commands are typed as printed."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support.project import Project

ROOT = Path(__file__).parents[2]
README, GUIDE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/ablations.md"))
SECTIONS = {section.partition(".")[0]: section for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]}
FILES = re.compile(r"```\w+\n# (\S+)\n(.*?)```", re.DOTALL)
COMMANDS = re.compile(r"^ {4}(pfl .+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the project with the guide's files, and a folder of images."""
    made = Project(tmp_path_factory.mktemp("checkout"))
    for name in ("pflcore", "pipeline"):
        shutil.copytree(ROOT / name, made.root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("specs/quickstart.yaml", "pyproject.toml"):
        made.write(name, (ROOT / name).read_bytes())
    for name, content in FILES.findall(README + GUIDE):
        made.write(name, content)
    for kind, shade in {"daisy": 200, "rose": 60}.items():
        (made.root / "data/flowers" / kind).mkdir(parents=True)
        for index in range(40):
            pixels = np.random.default_rng(index).integers(0, 50, (20, 20, 3)) + shade
            Image.fromarray(pixels.astype(np.uint8)).save(made.root / f"data/flowers/{kind}/{index}.png")
    return made


def follow(project: Project, *commands: str) -> list[pd.DataFrame]:
    """Type commands; return the tables of those that run a spec."""
    tables = []
    for command in commands:
        done = project.call(*command.split(), PYTHONPATH=str(project.root), PFL_DEVICE="cpu")
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command.startswith("pfl run"):
            roots = [project.root, project.root / "build/smoke"]
            paths = [root / f"reports/{command.split()[2]}/table.csv" for root in roots]
            tables.append(pd.read_csv(next(path for path in paths if path.is_file())))
            assert tables[-1]["obtained_mean"].notna().all()
    return tables


@pytest.mark.matrix
def test_every_example_goes_together_and_is_drawn_under_all_of_its_seeds(project: Project) -> None:
    (shown,) = re.findall(r"^ +partition:\n(?: {8}.*\n)+", README, re.MULTILINE)
    shown = textwrap.indent(textwrap.dedent(shown), "    ")
    quickstart = (ROOT / "specs/quickstart.yaml").read_text(encoding="utf-8")
    ours, changed = re.subn(r"^    partition:\n(?: {6}.*\n)+", shown, quickstart, flags=re.MULTILINE)
    assert changed == 1
    project.write("specs/readme.yaml", ours)
    done = project.call("pfl", "validate", PYTHONPATH=str(project.root))
    examples = 3 + sum(name.startswith("specs/") and "abstract:" not in text for name, text in FILES.findall(GUIDE))
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"{examples} specs are valid")


@pytest.mark.matrix
@pytest.mark.parametrize("section", ["README", *SECTIONS])
def test_each_example_works_as_printed(project: Project, section: str) -> None:
    if section == "README":
        (table,) = follow(project, "pfl run first --profile smoke")
        assert len(table) == 4
        return
    commands = COMMANDS.findall(SECTIONS[section])
    assert commands and FILES.findall(SECTIONS[section])
    tables = follow(project, *commands)
    if section == "4":  # a momentum of nothing is FedAvg, as the guide says
        found = tables[-1].set_index("method")["obtained_mean"]
        assert found["β = 0"].tolist() == found["FedAvg"].tolist() != found["β = 0.9"].tolist()


def test_the_guide_is_numbered_and_has_a_short_method() -> None:
    assert list(SECTIONS) == [str(number) for number in range(1, len(SECTIONS) + 1)]
    ((name, method),) = [(name, text) for name, text in FILES.findall(GUIDE) if name.endswith(".py")]
    assert name == "pflcore/methods/fedavgm.py" and len(method.splitlines()) <= 60
