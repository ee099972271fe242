"""The guides' analysis and figure are a file each: specs, the command line, runs and reports know them once there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from support.pages import squeezed
from support.project import Project, spec

ROOT = Path(__file__).parents[2]
GUIDES = [(ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("analyses", "figures")]
ASKED = "curve_every: 1}\n    analyses: [{name: distance, order: 1.0}]"
FIGURES = "figures: [distance, evenness]\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the project with the guides' files, and a spec that asks for them."""
    made = Project(tmp_path_factory.mktemp("checkout"))
    for name in ("pflcore", "pipeline"):
        shutil.copytree(ROOT / name, made.root / name, ignore=shutil.ignore_patterns("__pycache__"))
    made.write("pyproject.toml", '[tool.pfl]\ndefault = ["a"]\n')
    for guide in GUIDES:
        ((name, content),) = re.findall(r"```python\n# (\S+)\n(.*?)```", guide, re.DOTALL)
        made.write(name, content)
    made.write("specs/a.yaml", spec("[fedavg, local]", more=FIGURES).replace("curve_every: 1}", ASKED))
    return made


def pfl(project: Project, *words: str) -> tuple[int, str]:
    done = project.call("pfl", *words, PYTHONPATH=str(project.root), PFL_DEVICE="cpu")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.matrix
def test_they_are_described_run_and_in_the_report(project: Project) -> None:
    described = pfl(project, "describe", "distance")[1]
    assert (
        "How far the model of each client is from the mean of all." in described and "Order of the norm." in described
    )
    code, told = pfl(project, "run")
    assert code == 0, told
    lines = squeezed((project.root / "reports/a/report.md").read_text(encoding="utf-8"))
    start = lines.index("## Distance from the mean model")
    assert "| method | item | numbers | mean | std | least | greatest |" in lines[start:]
    assert "| fedavg | distance | 3 | 0 | 0 | 0 | 0 |" in lines[start:]
    data = pd.read_csv(project.root / "reports/a/figures/distance.csv").set_index(["method", "client"])["value"]
    assert data["fedavg"].tolist() == [0.0] * 3 and (data["local"] > 0.1).all()
    assert "| method | worst | best |" in lines[lines.index("## Clients from the worst to the best") :]
    accuracy = pd.read_csv(project.root / "reports/a/figures/evenness.csv").groupby("method")["accuracy"].apply(list)
    assert accuracy["local"] == sorted(accuracy["local"]) and len(accuracy["local"]) == 3
    assert (project.root / "reports/a/figures/evenness.png").is_file()
    assert "${figure.evenness}" in (project.root / "stages/dvc.yaml").read_text(encoding="utf-8")


@pytest.mark.matrix
def test_their_mistakes_are_one_line(project: Project) -> None:
    text = (project.root / "specs/a.yaml").read_text(encoding="utf-8")
    for right, wrong, words in (
        (
            "{name: distance",
            "{name: distanse",
            "analyses[0].name: unknown analysis 'distanse'",
        ),
        ("order: 1.0", "ordr: 1.0", "analyses[0].ordr: unknown option"),
        ("evenness", "evennes", "'evennes' is no figure of a report"),
    ):
        project.write("specs/b.yaml", text.replace(right, wrong))
        code, told = pfl(project, "validate", "b")
        assert code == 2 and told.startswith("pfl: specs/b.yaml:") and words in told and told.count("\n") == 1
    (project.root / "specs/b.yaml").unlink()
