"""What training would refuse, found before anything is trained: where, which cells, why; and that it is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import Pfl
from support.command import pfl as pfl
from support.project import CONVNET, VIT, Project, make_project, spec

from pipeline.plan import fit
from pipeline.plan.fit import misfits

MISFITS = {
    "11: X: method fedper: also_personal: the backbone has no parameter group 'hed'; did you mean 'head'?": spec(
        "{A: fedavg, X: {name: fedper, also_personal: [hed]}}"
    ),
    "11: FedTP: method fedtp: generated: the backbone has no parameter group": spec("{FedAvg: fedavg, FedTP: fedtp}"),
    "11: X: method ifca: finetune_*": spec("{A: fedavg, X: {name: ifca, finetune_epochs: 2}}"),
    "11: X: method scaffold: its local steps": spec("{A: fedavg, X: scaffold}", training=", optimizer: adam"),
    "11: X: method fedrod does not go with training.class_weights": spec(
        "{A: fedavg, X: fedrod}", training=", class_weights: balanced"
    ),
    "7: FedAvg and 1 more: backbone lstm takes text, the dataset has images": spec(backbone="lstm"),
    "7: FedAvg and 1 more: backbone tiny_vit: patch 5 does not": spec(backbone=VIT.replace("patch: 4", "patch: 5")),
    "5: FedAvg and 1 more: partition 'iid': 562 of 2,000": spec().replace("clients: 3", "clients: 2000"),
    "5: FedAvg and 1 more: pathological.classes_per_client = 11 but digits has only 10": spec(
        partition="{name: pathological, classes_per_client: 11}"
    ),
}
OWN = """\
from torch import nn, zeros

from pflcore.backbones import BACKBONES


@BACKBONES.register
class Own(nn.Module):
    \"\"\"It looks at its own numbers.\"\"\"

    def __init__(self, shape: tuple[int, ...], classes: int, wrong: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(64, classes)
        assert zeros(1).item() == 0.0
        if wrong:
            raise IndexError("beyond")

    def forward(self, images):
        return self.head(images.flatten(1))
"""


def found(project: Project) -> list[str]:
    compilation = project.compiled()
    return misfits(project.workspace(), compilation, compilation.runs)


def test_misfits_are_lines_with_their_places(tmp_path: Path) -> None:
    project = make_project(tmp_path, {f"specs/s{at}.yaml": text for at, text in enumerate(MISFITS.values())})
    lines = found(project)
    assert len(lines) == len(MISFITS)
    for line, (at, words) in zip(lines, enumerate(MISFITS), strict=True):
        assert line.startswith(f"specs/s{at}.yaml:{words}") and "\n" not in line


@pytest.mark.matrix
def test_a_module_that_looks_at_numbers_is_built_with_them_and_its_faults_are_lines(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]", backbone="own")}, default=["tiny"])
    project.write("backbones/own.py", OWN)
    assert project.call("pfl", "validate").returncode == 0
    project.write("specs/tiny.yaml", spec("[fedavg]", backbone="{name: own, wrong: true}"))
    done = project.call("pfl", "validate")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "specs/tiny.yaml:11: fedavg: fedavg on own: IndexError: beyond" in done.stderr


def test_the_command_ends_with_2_and_a_line_per_spec(tmp_path: Path, pfl: Pfl) -> None:
    idle = spec(more="    partition: [iid]\n")
    texts = {"specs/a.yaml": spec("[fedavg, fedtp]"), "specs/b.yaml": spec("[fedbn]"), "specs/good.yaml": idle}
    project = make_project(tmp_path, texts)
    code, out, err = pfl(project.root, "validate", "a", "b")
    lines = [line.split(": ")[1:4] for line in err.splitlines() if line.startswith("pfl: ")]
    assert (code, out) == (2, "")
    assert lines == [["specs/a.yaml:11", "fedtp", "method fedtp"], ["specs/b.yaml:11", "fedbn", "method fedbn"]]
    line = "pfl: specs/good.yaml:5: grid.base.partition has no effect: grid.axes.partition set it everywhere"
    for command in ("validate", "plan"):
        code, _, err = pfl(project.root, command, "good")
        assert code == 0 and err.splitlines().count(line) == 1


def test_what_fits_is_built_once_until_something_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg, fedrod, pfedhn]", backbone=CONVNET)})
    built: list[str] = []
    build = fit._build
    monkeypatch.setattr(fit, "_build", lambda run: (built.append(run.method), build(run)))
    assert not found(project) and sorted(built) == ["fedavg", "fedrod", "pfedhn"]
    # Other rounds and rates are nothing to build a model for; another width is, and so is edited code.
    project.write("specs/tiny.yaml", spec("[fedavg]", rounds=9, backbone=CONVNET).replace("lr: 0.1", "lr: 0.2"))
    assert not found(project) and len(built) == 3
    project.write("specs/tiny.yaml", spec("[fedavg]", backbone=CONVNET.replace("[8]", "[9]")))
    assert not found(project) and len(built) == 4
    monkeypatch.setattr(fit, "fingerprint", lambda: "other code")
    assert not found(project) and len(built) == 5
    (project.root / ".pfl/fit.json").write_text("{", encoding="utf-8")
    assert not found(project) and len(built) == 6
