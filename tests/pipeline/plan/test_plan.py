"""The plan before anything runs: what is cached by DVC's locks, and what the rest will take."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.project import Project, make_project, spec

from pflcore.errors import UserError
from pipeline.ledger import FACTS, Entry, Ledger
from pipeline.plan.estimate import Plan, Share, make_plan, plan_lines, visits
from pipeline.spec.run import Run

VISITS = 2 * 1438  # digits have 1438 training samples; two rounds of three clients that hold them all


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path)
    made.compile()
    return made


def plan(project: Project) -> Plan:
    return make_plan(project.workspace(), project.compiled())


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


def of_method(project: Project, method: str, rounds: int = 2) -> Run:
    runs = project.compiled().runs.values()
    return next(run for run in runs if run.method == method and run.training.rounds == rounds)


def time_run(project: Project, method: str, rounds: int, seconds: float) -> None:
    text = json.dumps({"seconds": seconds, "device": "cpu", "rounds": rounds})
    project.write(f".pfl/timings/{of_method(project, method).id}.json", text)


def test_each_spec_has_its_share_and_what_is_cached_takes_no_time(project: Project) -> None:
    figures = plan(project)
    assert figures.stages == len(project.stages()) == 9 and (figures.slots, figures.visits) == (2, 2 * VISITS)
    size = figures.total.bytes
    assert figures.total == Share("all, each run once", 2, 2, 0, 2, size) and size > 1797 * 64
    assert figures.specs == (replace(figures.total, spec="tiny"),)
    project.write("specs/more.yaml", spec("[fedavg, local]"))
    project.compile()
    lock(project, "fedper")
    time_run(project, "fedavg", 1, 5.0)  # half of its rounds
    figures = plan(project)
    assert [astuple(one)[:5] for one in (*figures.specs, figures.total)] == [
        *(("more", 2, 2, 10.0, 1), ("tiny", 2, 1, 10.0, 0), ("all, each run once", 3, 2, 10.0, 1)),
    ]
    lines = list(plan_lines(figures))
    assert lines[0].startswith("2 of 3 runs are new (over 10 s here); ")
    assert lines[4].split()[:6] == ["tiny", "2", "1", "about", "10", "s"]
    assert lines[-1] == "1 of the new runs are of a method and backbone neither timed here nor kept in results/"
    more, tiny = figures.specs
    assert more.bytes + tiny.bytes > figures.total.bytes > max(more.bytes, tiny.bytes)  # which share their data


def test_time_and_disk_in_words() -> None:
    for (new, seconds, untimed, size), shown in {
        (0, 0.0, 0, 999): ["none", "999 bytes"],
        (2, 0.0, 2, 1_500_000): ["unknown", "1.5 MB"],
        (2, 5400.0, 0, 2_340_000_000): ["about 1.5 h", "2.3 GB"],
        (2, 5399.0, 1, 1000): ["over 90 min", "1.0 kB"],
        (2, 89.0, 0, 1000): ["about 89 s", "1.0 kB"],
    }.items():
        share = Share("a", 3, new, seconds, untimed, size)
        line = list(plan_lines(Plan(1, 1, 0, share, (share,))))[3]
        assert [cell.strip() for cell in line.split("  ") if cell.strip()] == ["a", "3", str(new), *shown]


def test_what_is_cached(project: Project) -> None:
    lock(project, "fedavg")
    assert (plan(project).total.new, plan(project).visits) == (1, VISITS)
    lock(project, "fedavg", "fedper")
    assert (plan(project).total.new, plan(project).visits) == (0, 0)
    (project.root / f"artifacts/runs/{of_method(project, 'fedper').id}/rounds.parquet").unlink()
    assert plan(project).total.new == 1  # its result is lost
    lock(project, "fedavg", "fedper", cmd="pfl stage train other")
    assert plan(project).total.new == 2  # trained with other code
    (path,) = project.root.glob("stages/federations/*/dvc.lock")
    path.write_text("- a\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dvc\.lock: damaged; restore it with `git checkout"):
        plan(project)


def test_times_are_of_runs_alike_here_else_of_the_ledger(project: Project) -> None:
    project.write("specs/longer.yaml", spec("[fedavg, fedper]", rounds=6))
    project.compile()
    tiny, kept = of_method(project, "fedavg"), of_method(project, "fedper", 6)
    time_run(project, "fedavg", 2, 4.0)
    time_run(project, "fedper", 2, 0.0)  # which says nothing
    (project.root / "specs/tiny.yaml").unlink()  # its run is in stages/records.json
    (share,) = plan(project).specs
    assert (share.seconds, share.untimed) == (pytest.approx(12.0), 1)
    facts = {name: kind() if isinstance(kind, type) else None for name, kind in FACTS.items()}
    seconds = [(Run({**kept.record, "seed": 7}), 30.0), (Run({**tiny.record, "seed": 9}), 1e6)]
    Ledger(project.root).write("tiny", [Entry(run, {}, "", took, facts, {}) for run, took in seconds], {})
    (share,) = plan(project).specs
    assert (share.seconds, share.untimed) == (pytest.approx(12.0 + 30.0), 0)  # what was timed here goes first


def test_visits() -> None:
    def expected(clients: int = 20, method: Any = None, partition: Any = None, **training: Any) -> int:
        defaults = {"rounds": 10, "sample_rate": 0.1, "local_epochs": 5, "local_steps": None, "batch_size": 64}
        record = {"dataset": {"name": "digits", "stand_in": 400}, "clients": clients}
        more = {"partition": {"name": "iid", **(partition or {})}, "method": method or {"name": "fedavg"}}
        return visits(Run({**record, **more, "training": {**defaults, **training}}))

    assert expected() == 10 * 5 * 2 * 20
    assert expected(sample_rate=0.01) == 10 * 5 * 1 * 20  # at least one client
    assert expected(clients=100, sample_rate=0.29) == 10 * 5 * 29 * 4
    assert expected(local_steps=7, batch_size=8) == 10 * 2 * 7 * 8
    assert expected(local_steps=7) == 10 * 2 * 7 * 20  # a batch is no larger than what a client has
    assert expected(method={"name": "local", "schedule": "every_round"}) == 10 * 5 * 20 * 20
    assert expected(partition={"train_limit": 7}) == 10 * 5 * 2 * 7
    assert expected(partition={"train_share": 0.25}) == 10 * 5 * 2 * 5
    assert expected(partition={"test_share": 0.2}) == 10 * 5 * 2 * 20  # of 500, 400 are left
