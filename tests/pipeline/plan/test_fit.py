"""What training would refuse, found before anything is trained: where, which cells, why; and that it is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import CONVNET, VIT, Project, make_project, spec

from pipeline.plan import fit
from pipeline.plan.fit import misfits

NOTHING_TRAINED = "train_only: there are no parameters that its rounds train in head"
DETECTOR = "dataset: {name: voc_detection}"
MISFITS = {
    "a group": (
        spec("{A: fedavg, X: {name: fedper, also_personal: [hed]}}"),
        "specs/tiny.yaml:11: X: method fedper: also_personal: the backbone has no parameter group 'hed'; "
        "did you mean 'head'?",
    ),
    "a method and a backbone": (
        spec("{FedAvg: fedavg, FedTP: fedtp}"),
        "specs/tiny.yaml:11: FedTP: method fedtp: generated: the backbone has no parameter group 'attention.qkv'",
    ),
    "two options of a method": (
        spec("{A: fedavg, X: {name: ifca, finetune_epochs: 2}}"),
        "specs/tiny.yaml:11: X: method ifca: finetune_*",
    ),
    "a method and an optimiser": (
        spec("{A: fedavg, X: scaffold}", training=", optimizer: adam"),
        "specs/tiny.yaml:11: X: method scaffold: its local steps are plain SGD's by definition",
    ),
    **{
        f"class weights and {name}": (
            spec(f"{{A: fedavg, X: {name}}}", training=", class_weights: balanced"),
            f"specs/tiny.yaml:11: X: method {name} does not go with training.class_weights",
        )
        for name in ("fedrod", "pfedgp")
    },
    **{
        f"{name} of a part": (
            spec(f"{{A: fedavg, X: {{name: {name}, train_only: [head]}}}}"),
            f"specs/tiny.yaml:11: X: method {name}: {why}",
        )
        for name, why in {
            "fedas": "one of its phases trains what is shared",
            "fedbabu": NOTHING_TRAINED,
            "fedpac": "one of its phases trains what is shared",
            "fedrep": "one of its phases trains what is shared",
            "pfedfda": NOTHING_TRAINED,
            "pfedgp": NOTHING_TRAINED,
        }.items()
    },
    "a backbone and the data": (
        spec(backbone="lstm"),
        "specs/tiny.yaml:7: FedAvg and 1 more: backbone lstm takes text, the dataset has images",
    ),
    "sizes of a backbone": (
        spec(backbone=VIT.replace("patch: 4", "patch: 5")),
        "specs/tiny.yaml:7: FedAvg and 1 more: backbone tiny_vit: patch 5 does not divide images of 8×8 pixels",
    ),
    "clients and samples": (
        spec().replace("clients: 3", "clients: 2000"),
        "specs/tiny.yaml:5: FedAvg and 1 more: partition 'iid': 562 of 2,000 clients get none of the 1,438 training",
    ),
    "classes": (
        spec(partition="{name: pathological, classes_per_client: 11}"),
        "specs/tiny.yaml:5: FedAvg and 1 more: pathological.classes_per_client = 11 but digits has only 10 classes",
    ),
    "a method and a detector": (
        spec("{A: fedavg, X: fedproto}", backbone="mobilenetv2_ssd").replace("dataset: digits", DETECTOR),
        "specs/tiny.yaml:11: X: method fedproto: it",
    ),
}


def found(project: Project) -> list[str]:
    compilation = project.compiled()
    return misfits(project.workspace(), compilation, compilation.runs)


@pytest.mark.parametrize("name", MISFITS)
def test_a_misfit_is_a_line_with_its_place(name: str, tmp_path: Path) -> None:
    text, line = MISFITS[name]
    project = make_project(tmp_path, {"specs/tiny.yaml": text})
    (told,) = found(project)
    assert told.startswith(line) and "\n" not in told


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


def test_a_module_that_looks_at_numbers_is_built_with_them_and_its_faults_are_lines(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]", backbone="own")}, default=["tiny"])
    project.write("backbones/own.py", OWN)
    assert project.call("pfl", "validate").returncode == 0
    project.write("specs/tiny.yaml", spec("[fedavg]", backbone="{name: own, wrong: true}"))
    done = project.call("pfl", "validate")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "specs/tiny.yaml:11: fedavg: fedavg on own: IndexError: beyond" in done.stderr


def test_several_specs_are_told_of_each_and_the_command_ends_with_2(tmp_path: Path) -> None:
    project = make_project(
        tmp_path, {"specs/a.yaml": spec("[fedavg, fedtp]"), "specs/b.yaml": spec("[fedbn]"), "specs/good.yaml": spec()}
    )
    done = project.call("pfl", "validate")
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if line.startswith("pfl: ")]
    assert [line.split(": ")[1:4] for line in lines] == [
        ["specs/a.yaml:11", "fedtp", "method fedtp"],
        ["specs/b.yaml:11", "fedbn", "method fedbn"],
    ]
    assert project.call("pfl", "validate", "good").returncode == 0


def test_what_fits_is_built_once_and_on_nothing_but_names_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg, fedrod, pfedhn]", backbone=CONVNET)})
    built: list[str] = []
    build = fit._build

    def count(run: fit.Run) -> None:
        built.append(run.method)
        build(run)

    monkeypatch.setattr(fit, "_build", count)
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


def test_what_is_said_in_vain_is_a_line_of_validate_and_plan(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec(more="    partition: [iid]\n")})
    for command in ("validate", "plan"):
        done = project.call("pfl", command, "tiny")
        line = "pfl: specs/tiny.yaml:5: grid.base.partition has no effect: axis partition sets partition everywhere"
        assert done.returncode == 0 and done.stderr.splitlines().count(line) == 1
