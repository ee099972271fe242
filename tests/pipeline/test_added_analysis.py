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
ASKED = "curve_every: 1}\n    analyses: [{name: distance, order: 1.0}]"


@pytest.mark.matrix
def test_they_are_described_run_and_in_the_report(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for name in ("pflcore", "pipeline"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    project.write("pyproject.toml", '[tool.pfl]\ndefault = ["a"]\n')
    for guide in ("analyses", "figures"):
        text = (ROOT / f"docs/{guide}.md").read_text(encoding="utf-8")
        ((name, content),) = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL)
        project.write(name, content)
    text = spec("[fedavg, local]", more="figures: [distance, evenness]\n").replace("curve_every: 1}", ASKED)
    project.write("specs/a.yaml", text)

    def pfl(*words: str) -> tuple[int, str]:
        done = project.call("pfl", *words, PYTHONPATH=str(tmp_path), PFL_DEVICE="cpu")
        return done.returncode, done.stdout + done.stderr

    described = pfl("describe", "distance")[1]
    assert "How far the model of each client is from the mean" in described and "Order of the norm." in described
    code, said = pfl("run")
    assert code == 0, said
    lines = squeezed((tmp_path / "reports/a/report.md").read_text(encoding="utf-8"))
    start = lines.index("## Distance from the mean model")
    assert "| method | item | numbers | mean | std | least | greatest |" in lines[start:]
    assert "| fedavg | distance | 3 | 0 | 0 | 0 | 0 |" in lines[start:]
    figures = tmp_path / "reports/a/figures"
    data = pd.read_csv(figures / "distance.csv").set_index(["method", "client"])["value"]
    assert data["fedavg"].tolist() == [0.0] * 3 and (data["local"] > 0.1).all()
    assert "| method | worst | best |" in lines[lines.index("## Clients from the worst to the best") :]
    accuracy = pd.read_csv(figures / "evenness.csv").groupby("method")["accuracy"].apply(list)
    assert accuracy["local"] == sorted(accuracy["local"]) and len(accuracy["local"]) == 3
    assert (figures / "evenness.png").is_file()
    assert "${figure.evenness}" in (tmp_path / "stages/dvc.yaml").read_text(encoding="utf-8")
    for right, wrong, words in (
        ("{name: distance", "{name: distanse", "analyses[0].name: unknown analysis 'distanse'"),
        ("order: 1.0", "ordr: 1.0", "analyses[0].ordr: unknown option"),
        ("evenness", "evennes", "unknown figure 'evennes'; did you mean 'evenness'?"),
    ):
        project.write("specs/b.yaml", text.replace(right, wrong))
        code, said = pfl("validate", "b")
        assert code == 2 and said.startswith("pfl: specs/b.yaml:") and words in said and said.count("\n") == 1
