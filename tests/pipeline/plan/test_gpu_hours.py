"""The estimate of GPU hours: counted in parts, each against a calculation of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.project import Project, make_project, spec
from support.tiny import BACKBONE_OPTIONS, METHOD_OPTIONS

from pflcore.backbones import BACKBONES
from pflcore.data.assignment import Assignment
from pflcore.data.assignment_files import write_assignment
from pflcore.methods import METHODS
from pipeline.plan.client_sizes import ClientSizes, Federations
from pipeline.plan.device_work import DeviceWork, Work
from pipeline.plan.gpu_hours import GpuEstimate, gpu_hours
from pipeline.plan.step_kernels import Kernels
from pipeline.spec.run import Run
from pipeline.workspace import partition_path

CONVNET = {"name": "convnet", "kernel": 3, "padding": 1, "channels": [2, 4], "hidden": [8]}
ENTRIES = 8  # weights and biases of two convolutions and two linear layers


def run_of(method: Mapping[str, Any] | str = "fedavg", backbone: Mapping[str, Any] = CONVNET, **training: Any) -> Run:
    """Digits over three clients, of which two train in each of five rounds; measured after the third and the last."""
    settings = {"rounds": 5, "sample_rate": 0.67, "local_epochs": 1, "batch_size": 64, "lr": 0.1, **training}
    return Run(
        {
            "dataset": {"name": "digits", "stand_in": None},
            "partition": {"name": "iid"},
            "clients": 3,
            "seed": 0,
            "backbone": dict(backbone),
            "method": {"name": method} if isinstance(method, str) else dict(method),
            "training": settings,
            "evaluation": {"every": 2, "window": 3, "curve_every": 0},
        }
    )


def holding(root: Path, run: Run, train: list[int], test: list[int], novel: tuple[int, ...] = ()) -> None:
    """Let clients of a run hold so many samples."""
    parts = np.split(np.arange(sum(train) + sum(test)), np.cumsum(train + test)[:-1])
    assignment = Assignment(parts[: len(train)], parts[len(train) :], "iid", 0, novel=novel)
    write_assignment(root / partition_path(run.federation_id), assignment)


def work_of(root: Path, run: Run) -> Work:
    return DeviceWork(Federations(root), Kernels()).of(run)


def test_sizes_are_those_of_the_partition_or_dealt(tmp_path: Path) -> None:
    run = run_of()
    dealt = Federations(tmp_path).of(run)
    assert (sum(dealt.train), sum(dealt.measured)) == (1438, 359)
    assert {*dealt.train} == {479, 480} and {*dealt.measured} == {119, 120}
    holding(tmp_path, run, [70, 200, 5], [9, 1, 4], novel=(2,))
    assert Federations(tmp_path).of(run) == ClientSizes((70, 200, 5), (9, 1, 4), frozenset({2}))


def test_ticks_of_uneven_clients(tmp_path: Path) -> None:
    sizes, tests = [70, 200, 30], [9, 5000, 4]
    both = {"sample_rate": 1.0, "rounds": 3, "local_epochs": 2}
    filled, waiting = run_of(**both), run_of({"name": "moon"}, **both)
    holding(tmp_path, filled, sizes, tests)
    # 200 is 64, 64, 64, 8: with batches filled up nobody waits, and two epochs are eight steps of the largest client.
    assert work_of(tmp_path, filled).ticks == 3 * 8
    # Else a tick has one size. Per epoch: 64 6; 64 64 64 8; 30. Both 30s, 6s and 8s need a tick each time, and full
    # batches go together, as often as the largest client has one.
    assert work_of(tmp_path, waiting).ticks == 3 * (6 + 2 + 2 + 2)
    # A step for each of 7 batches drawn anew.
    steps = run_of(**both, local_steps=7)
    assert work_of(tmp_path, steps).ticks == 3 * 7


def test_clients_that_are_trained_one_at_a_time_are_not_recorded(tmp_path: Path) -> None:
    both = {"sample_rate": 1.0, "rounds": 3, "local_epochs": 2}
    stacked, alone = run_of(**both), run_of("pfedgp", **both)
    holding(tmp_path, alone, [70, 200, 30], [9, 50, 4])
    work, ticks = work_of(tmp_path, alone), 3 * 2 * (2 + 4 + 1)  # the batches of each client
    kernels = Kernels().of(stacked)
    assert kernels == Kernels().of(alone)  # but for what goes by values, which is not known
    assert kernels and (work.ticks, work.replayed, work.passes) == (ticks, 0, 2)
    beside = 3 * (2 * ENTRIES * 3 + 40) + 2 * kernels.forward
    assert work.launched == ticks * (12 + kernels.step) + beside


def test_a_client_that_is_never_sampled_counts_for_nothing(tmp_path: Path) -> None:
    run = run_of(sample_rate=1.0)
    holding(tmp_path, run, [100, 30, 6400], [1, 1, 1], novel=(2,))
    assert work_of(tmp_path, run).ticks == 5 * 2


def test_passes_that_measure(tmp_path: Path) -> None:
    shared, own = run_of(), run_of("fedper")
    holding(tmp_path, shared, [70, 200, 30], [9, 5000, 4])
    assert work_of(tmp_path, shared).passes == 2 * 2  # 5,013 samples in pieces of 4,096, twice
    assert work_of(tmp_path, own).passes == 2 * 4  # 5,000 for each of three, in pieces of 1,365


def test_tuning_before_a_measurement_takes_ticks(tmp_path: Path) -> None:
    run, tuned = run_of(), run_of({"name": "fedavg", "finetune_epochs": 3})
    holding(tmp_path, run, [70, 200, 30], [9, 50, 4])
    assert work_of(tmp_path, tuned).ticks - work_of(tmp_path, run).ticks == 2 * 3 * 4


def test_an_estimate_is_arithmetic_and_kernels_and_launches(tmp_path: Path) -> None:
    run = run_of()
    holding(tmp_path, run, [70, 70, 70], [9, 50, 4])
    kernels = Kernels().of(run)
    assert kernels
    launched = 12 * 10 + 5 * (2 * ENTRIES * 2 + 40) + 2 * kernels.forward
    assert work_of(tmp_path, run) == Work(ticks=10, replayed=10 * kernels.step, launched=launched, passes=2)
    time = GpuEstimate(0.5, tmp_path).of(run)
    assert time.floor == pytest.approx(gpu_hours([run], 0.5) * 3600)
    assert time.estimate == pytest.approx(time.floor + 2e-6 * 10 * kernels.step + 10e-6 * launched)


@pytest.mark.parametrize("name", METHODS.names())
def test_a_step_of_every_method_can_be_counted(name: str) -> None:
    entry = METHODS.get(name)
    method = {"name": name, **entry.smoke, **METHOD_OPTIONS.get(name, {})}
    tried = [
        Kernels().of(run_of(method, {"name": one, **BACKBONES.get(one).smoke, **BACKBONE_OPTIONS.get(one, {})}))
        for one in ("convnet", "tiny_vit", "vit")
    ]
    assert any(kernels and kernels.step > kernels.forward > 5 for kernels in tried)


def test_what_was_counted_before_changes_no_count() -> None:
    vit = {"name": "tiny_vit", **BACKBONES.get("tiny_vit").smoke, **BACKBONE_OPTIONS["tiny_vit"]}
    runs = [run_of(method, net) for net in (CONVNET, vit) for method in ("fedavg", "ditto", "moon", "fedprox")]
    shared = Kernels()
    together = [shared.of(run) for run in reversed(runs)]
    alone = [Kernels().of(run) for run in reversed(runs)]
    assert together == alone and len({kernels.step for kernels in alone if kernels}) > 4


def test_what_does_not_fit_takes_no_time(tmp_path: Path) -> None:
    run = run_of(backbone={**CONVNET, "padding": 0, "kernel": 9})  # images have 8 pixels
    assert Kernels().of(run) is None and GpuEstimate(1, tmp_path).of(run).estimate == 0


def test_the_longest_spec_comes_first_and_runs_count_once(tmp_path: Path) -> None:
    project: Project = make_project(tmp_path)
    project.write("specs/more.yaml", spec("[fedavg, ditto]", rounds=2))
    compilation = project.compiled()
    estimate = GpuEstimate(10, tmp_path)
    head, *rows = estimate.lines(compilation.runs.values(), compilation.runs_of_specs())
    assert head.split() == ["spec", "runs", "ticks", "kernels", "passes", "floor", "h", "estimate", "h"]
    assert [row.split()[:2] for row in rows[:2]] == [["more", "2"], ["tiny", "2"]]  # Ditto takes two steps in one
    assert rows[2].startswith("all, each run once ") and rows[2].split()[4] == "3"
