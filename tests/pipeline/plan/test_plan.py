"""The plan before anything runs: what is cached by DVC's locks, and what the rest will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.project import Project, make_project, spec

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.dvc.program import md5
from pipeline.plan.estimate import held, visits
from pipeline.plan.plan import Plan, Share, make_plan, measurements
from pipeline.plan.printed import plan_lines
from pipeline.spec.catalog import load_catalog
from pipeline.spec.resolve import resolve
from pipeline.spec.run import Run
from pipeline.spec.specs import load_spec
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
    compilation = project.compiled()
    shards: dict[str, dict[str, Any]] = {}
    for name, stage in project.stages().items():
        file, _, stage_name = name.partition(":")
        if stage_name.startswith(tuple(f"train-{method}-" for method in methods)):
            deps = [{"path": path, "md5": md5(compilation.files.get(path, "data"))} for path in stage["deps"]]
            outs = [{"path": path} for path in stage["outs"]]
            shards.setdefault(file, {})[stage_name] = {"deps": deps, "outs": outs, **changes}
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
    assert figures.stages == len(project.stages()) == 10
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


def test_slots_count_shared_runs_twice(project: Project) -> None:
    project.write("specs/more.yaml", spec("[fedavg, local]"))
    figures = plan(project)
    assert (figures.runs, figures.slots) == (3, 4)


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
    lock(project, "fedavg", "fedper")
    compilation = project.compiled()
    compilation.files["stages/code/method.fedper.txt"] = "other code\n"
    assert plan(project, compilation).new == 1


def test_a_changed_run_is_another_run(project: Project) -> None:
    lock(project, "fedavg", "fedper")
    project.write("specs/tiny.yaml", spec(rounds=3))
    assert plan(project).new == 2


@pytest.mark.parametrize("text", ["", "schema: '2.0'\n", "stages: {}\n", "stages:\n"])
def test_a_lock_without_stages(project: Project, text: str) -> None:
    lock(project, "fedavg")
    (path,) = project.root.glob("stages/federations/*/dvc.lock")
    path.write_text(text, encoding="utf-8")
    assert plan(project).new == 2


@pytest.mark.parametrize(
    "text", ["<<<<<<< HEAD\n", "stages: [", "- a\n", "a\n", "stages: [a]\n", "stages: {train: 5}\n"]
)
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


def test_a_longer_run_of_the_kind_takes_longer(project: Project) -> None:
    time_run(project, "fedavg", json.dumps({"seconds": 10.0, "device": "cpu", "rounds": 2}))
    project.write("specs/long.yaml", spec("[fedavg]", rounds=20))
    assert plan(project).seconds == pytest.approx(10.0 + 100.0)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"seconds": "x", "rounds": 2}', '{"seconds": 0, "rounds": 0}'])
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


def test_the_quickstart_is_measured_8_times_and_its_trials_once() -> None:
    specs = Path(__file__).parents[3] / "specs"
    catalog = load_catalog(specs.parent)
    runs = resolve(load_spec(specs / "quickstart.yaml", specs, catalog), catalog).runs
    assert {(bool(run.tuned), len(run.evaluation.due(run.training.rounds))) for run in runs} == {(True, 8), (False, 1)}


def test_a_small_stand_in_has_a_test_sample() -> None:
    assert [held(run_with(clients=1, stand_in=train)) for train in (3, 4, 9)] == [(3, 1), (4, 1), (9, 2)]


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


def test_a_smoke_plan_is_small(project: Project) -> None:
    figures = plan(project, profile="smoke")
    assert figures.runs == figures.new == 2 and 0 < figures.visits < 2 * VISITS
