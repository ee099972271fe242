"""The plan before anything runs: what is cached by DVC's locks, and what the rest will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command import Pfl
from support.command import pfl as pfl
from support.project import CONVNET, VIT, Project, make_project, spec

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.plan import fit
from pipeline.plan.estimate import visits
from pipeline.plan.fit import misfits
from pipeline.plan.plan import Plan, Share, make_plan, measurements
from pipeline.plan.printed import plan_lines
from pipeline.spec.run import Run
from pipeline.workspace import run_path

# Digits have 1438 training samples; two rounds of three clients that hold them all.
VISITS = 2 * 1438


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path)
    made.compile()
    return made


def plan(project: Project, compilation: Compilation | None = None, profile: str = "paper") -> Plan:
    compilation = compilation or project.compiled(profile)
    return make_plan(project.workspace(profile), compilation)


def lock(project: Project, *methods: str, **changes: Any) -> None:
    """What DVC leaves behind when it has trained the runs of some methods."""
    shards: dict[str, dict[str, Any]] = {}
    for name, stage in project.stages().items():
        file, _, stage_name = name.partition(":")
        if stage_name.startswith(tuple(f"train@{method}-" for method in methods)):
            outs = [{"path": path} for path in stage["outs"]]
            shards.setdefault(file, {})[stage_name] = {"cmd": stage["cmd"], "outs": outs, **changes}
            for out in stage["outs"]:
                project.write(out, "")
    for file, stages in shards.items():
        project.write(file.replace("dvc.yaml", "dvc.lock"), yaml.safe_dump({"schema": "2.0", "stages": stages}))


def of_method(project: Project, method: str) -> Run:
    (run,) = [run for run in project.compiled().runs.values() if run.method == method]
    return run


def time_run(project: Project, method: str, text: str) -> None:
    project.write(f".pfl/timings/{of_method(project, method).id}.json", text)


def test_before_anything_ran(project: Project) -> None:
    figures = plan(project)
    assert (figures.runs, figures.slots, figures.new) == (2, 2, 2)
    assert figures.stages == len(project.stages()) == 9
    assert figures.visits == 2 * VISITS
    assert (figures.seconds, figures.untimed) == (0, 2)
    assert figures.bytes > 1797 * 64


def test_each_spec_has_its_part_and_what_is_shared_is_counted_in_each(project: Project) -> None:
    project.write("specs/more.yaml", spec("[fedavg, local]"))
    project.compile()
    lock(project, "fedper")
    time_run(project, "fedavg", '{"rounds": 1, "seconds": 5.0, "device": "cpu"}')  # half of its rounds
    figures = plan(project)
    more, tiny = figures.specs
    assert (more.spec, more.runs, more.new, more.untimed) == ("more", 2, 2, 1)
    assert (tiny.spec, tiny.runs, tiny.new, tiny.untimed) == ("tiny", 2, 1, 0)
    assert more.seconds == tiny.seconds == figures.seconds == pytest.approx(10.0)
    assert more.bytes + tiny.bytes > figures.bytes > max(more.bytes, tiny.bytes)  # which both have the same data
    lines = list(plan_lines(figures))
    assert lines[0].startswith("2 of 3 runs are new (over 10 s here); ")
    table = [line.split() for line in lines[2:6]]
    assert table[0][:3] == ["spec", "runs", "new"] and table[1][:6] == ["more", "2", "2", "over", "10", "s"]
    assert table[2][:6] == ["tiny", "2", "1", "about", "10", "s"] and table[3][:4] == ["all,", "each", "run", "once"]
    assert lines[-1] == "1 of the new runs are of a method and backbone that has not been timed here yet"


@pytest.mark.parametrize(
    ("share", "time", "disk"),
    [
        (Share("a", 3, 0, 0.0, 0, 999), "none", "1 kB"),
        (Share("a", 3, 2, 0.0, 2, 1_500_000), "unknown", "2 MB"),
        (Share("a", 3, 2, 5400.0, 0, 2_340_000_000), "about 1.5 h", "2.3 GB"),
        (Share("a", 3, 2, 5399.0, 1, 1), "over 90 min", "0 kB"),
        (Share("a", 3, 2, 89.0, 0, 1), "about 89 s", "0 kB"),
    ],
)
def test_time_and_disk_in_words(share: Share, time: str, disk: str) -> None:
    told = Plan(1, 1, share.runs, share.new, 0, share.seconds, share.untimed, share.bytes, (share,))
    line = list(plan_lines(told))[3]
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == ["a", "3", str(share.new), time, disk]


def test_what_dvc_has_recorded_is_cached(project: Project) -> None:
    lock(project, "fedavg")
    figures = plan(project)
    assert (figures.new, figures.visits, figures.untimed) == (1, VISITS, 1)
    lock(project, "fedavg", "fedper")
    figures = plan(project)
    assert (figures.new, figures.visits, figures.untimed) == (0, 0, 0)


def test_a_lost_result_is_not_cached(project: Project) -> None:
    lock(project, "fedavg", "fedper")
    (project.root / run_path(of_method(project, "fedper").id, "rounds.parquet")).unlink()
    assert plan(project).new == 1


def test_a_run_trained_with_other_code_is_not_cached(project: Project) -> None:
    lock(project, "fedavg", "fedper", cmd="pfl stage train other")
    assert plan(project).new == 2


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n", "- a\n", "stages: {train: 5}\n"])
def test_a_damaged_lock_is_named(project: Project, text: str) -> None:
    lock(project, "fedavg")
    (path,) = project.root.glob("stages/federations/*/dvc.lock")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        plan(project)
    assert str(error.value) == f"{path}: damaged; restore it with `git checkout {path}` or delete it"


def test_past_timings_tell_what_is_to_come(project: Project) -> None:
    time_run(project, "fedavg", json.dumps({"seconds": 10.0, "device": "cpu", "rounds": 2}))
    figures = plan(project)
    assert (figures.seconds, figures.untimed) == (pytest.approx(10.0), 1)
    time_run(
        project, "fedavg", json.dumps({"seconds": 10.0, "device": "cpu", "rounds": 1})
    )  # the rest of a resumed run
    assert plan(project).seconds == pytest.approx(20.0)
    lock(project, "fedavg")
    figures = plan(project)
    assert (figures.seconds, figures.untimed) == (0, 1)  # what is done takes no time; fedper is not like it


@pytest.mark.parametrize("text", ["", "[]", '{"seconds": "x", "rounds": 2}', '{"seconds": 0, "rounds": 0}'])
def test_a_damaged_timing_is_passed_over(project: Project, text: str) -> None:
    time_run(project, "fedavg", text)
    assert plan(project).untimed == 2


@pytest.mark.parametrize(
    ("rounds", "evaluation", "measured"),
    [
        (1500, {}, 66),  # FedTP's: 41 in the window, and 25 of 30 for the curve before it
        (200, {"every": 5, "window": 50, "curve_every": 20}, 18),  # 150, 155, …, 200 and 20, 40, …, 140
        (10, {"every": 3, "window": 0, "curve_every": 0}, 1),
        (4, {"every": 3, "window": 9, "curve_every": 0}, 2),  # a window longer than the run: 1 and 4
    ],
)
def test_a_round_is_measured_once(rounds: int, evaluation: dict[str, Any], measured: int) -> None:
    run = Run({"clients": 7, "training": {"rounds": rounds}, "evaluation": evaluation})
    assert measurements(run) == 7 * measured


def run_with(
    clients: int = 20,
    method: dict[str, Any] | None = None,
    partition: dict[str, Any] | None = None,
    stand_in: int = 400,
    **training: Any,
) -> Run:
    defaults = {"rounds": 10, "sample_rate": 0.1, "local_epochs": 5, "local_steps": None, "batch_size": 64}
    record = {
        "dataset": {"name": "digits", "stand_in": stand_in},
        "partition": partition or {"name": "iid"},
        "clients": clients,
        "method": method or {"name": "fedavg"},
        "training": {**defaults, **training},
    }
    return Run(record)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run_with(), 10 * 5 * 2 * 20),
        (run_with(sample_rate=0.01), 10 * 5 * 1 * 20),  # at least one client
        (run_with(clients=100, sample_rate=0.29), 10 * 5 * 29 * 4),
        (run_with(local_steps=7, batch_size=8), 10 * 2 * 7 * 8),
        (run_with(local_steps=7), 10 * 2 * 7 * 20),  # a batch is no larger than what a client has
        (run_with(method={"name": "local", "schedule": "every_round"}), 10 * 5 * 20 * 20),
        (run_with(method={"name": "local", "schedule": "when_sampled"}), 10 * 5 * 2 * 20),
        (run_with(partition={"name": "iid", "train_limit": 7}), 10 * 5 * 2 * 7),
        (run_with(partition={"name": "iid", "train_share": 0.25}), 10 * 5 * 2 * 5),
        (run_with(partition={"name": "iid", "test_share": 0.2}), 10 * 5 * 2 * 20),  # of 500, 400 are left
    ],
)
def test_visits(project: Project, run: Run, expected: int) -> None:
    assert visits(run) == expected


# What training would refuse, found before anything is trained: where, which cells, why; and that it is remembered.

DETECTOR = "dataset: {name: voc_detection}"
MISFITS = {
    spec(
        "{A: fedavg, X: {name: fedper, also_personal: [hed]}}"
    ): "11: X: method fedper: also_personal: the backbone has no parameter group 'hed'; did you mean 'head'?",
    spec(
        "{FedAvg: fedavg, FedTP: fedtp}"
    ): "11: FedTP: method fedtp: generated: the backbone has no parameter group 'attention.qkv'",
    spec("{A: fedavg, X: {name: ifca, finetune_epochs: 2}}"): "11: X: method ifca: finetune_*",
    spec(
        "{A: fedavg, X: scaffold}", training=", optimizer: adam"
    ): "11: X: method scaffold: its local steps are plain SGD's by definition",
    spec(
        "{A: fedavg, X: fedrod}", training=", class_weights: balanced"
    ): "11: X: method fedrod does not go with training.class_weights",
    spec(
        "{A: fedavg, X: {name: fedrep, train_only: [head]}}"
    ): "11: X: method fedrep: one of its phases trains what is shared",
    spec(
        "{A: fedavg, X: {name: fedbabu, train_only: [head]}}"
    ): "11: X: method fedbabu: train_only: there are no parameters that its rounds train",
    spec(backbone="lstm"): "7: FedAvg and 1 more: backbone lstm takes text, the dataset has images",
    spec(
        backbone=VIT.replace("patch: 4", "patch: 5")
    ): "7: FedAvg and 1 more: backbone tiny_vit: patch 5 does not divide images of 8×8",
    spec().replace(
        "clients: 3", "clients: 2000"
    ): "5: FedAvg and 1 more: partition 'iid': 562 of 2,000 clients get none of the 1,438",
    spec(
        partition="{name: pathological, classes_per_client: 11}"
    ): "5: FedAvg and 1 more: pathological.classes_per_client = 11 but digits has only 10",
    spec("{A: fedavg, X: fedproto}", backbone="mobilenetv2_ssd").replace(
        "dataset: digits", DETECTOR
    ): "11: X: method fedproto: it",
}


def found(project: Project) -> list[str]:
    compilation = project.compiled()
    return misfits(project.workspace(), compilation, compilation.runs)


@pytest.mark.parametrize("text", MISFITS, ids=list(MISFITS.values()))
def test_a_misfit_is_a_line_with_its_place(text: str, tmp_path: Path) -> None:
    (told,) = found(make_project(tmp_path, {"specs/tiny.yaml": text}))
    assert told.startswith(f"specs/tiny.yaml:{MISFITS[text]}") and "\n" not in told


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


@pytest.mark.matrix
def test_a_module_that_looks_at_numbers_is_built_with_them_and_its_faults_are_lines(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]", backbone="own")}, default=["tiny"])
    project.write("backbones/own.py", OWN)
    assert project.call("pfl", "validate").returncode == 0
    project.write("specs/tiny.yaml", spec("[fedavg]", backbone="{name: own, wrong: true}"))
    done = project.call("pfl", "validate")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "specs/tiny.yaml:11: fedavg: fedavg on own: IndexError: beyond" in done.stderr


def test_several_specs_are_told_of_each_and_the_command_ends_with_2(tmp_path: Path, pfl: Pfl) -> None:
    texts = {"specs/a.yaml": spec("[fedavg, fedtp]"), "specs/b.yaml": spec("[fedbn]"), "specs/good.yaml": spec()}
    project = make_project(tmp_path, texts)
    code, out, err = pfl(project.root, "validate")
    lines = [line.split(": ")[1:4] for line in err.splitlines() if line.startswith("pfl: ")]
    assert (code, out) == (2, "")
    assert lines == [["specs/a.yaml:11", "fedtp", "method fedtp"], ["specs/b.yaml:11", "fedbn", "method fedbn"]]
    assert pfl(project.root, "validate", "good")[0] == 0


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


def test_what_is_said_in_vain_is_a_line_of_validate_and_plan(tmp_path: Path, pfl: Pfl) -> None:
    project = make_project(tmp_path, {"specs/tiny.yaml": spec(more="    partition: [iid]\n")})
    line = "pfl: specs/tiny.yaml:5: grid.base.partition has no effect: axis partition sets partition everywhere"
    for command in ("validate", "plan"):
        code, _, err = pfl(project.root, command, "tiny")
        assert code == 0 and err.splitlines().count(line) == 1
