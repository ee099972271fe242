"""Benchmarks: plain loops agree with the engine, GPU checks run on a CPU, cells come back, faults find nothing."""

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.mistakes import refuses
from support.project import Project, make_project, spec, wait_for

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ANOTHER_RATE = """
from dataclasses import replace
from oracle import plain

METHODS = {"fedper": {}}

def run(method, options, setting):
    return plain.run(method, options, replace(setting, training=replace(setting.training, lr=0.1)))
"""


def program(name, *words):
    command = [sys.executable, BENCHMARKS / f"{name}.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def names_of(monkeypatch):
    """What a script defines, by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: runpy.run_path(str(BENCHMARKS / f"{name}.py"))


def test_plain_loops_end_with_the_engines_models_and_other_code_elsewhere(tmp_path):
    (tmp_path / "another_rate.py").write_text(ANOTHER_RATE)
    small = ("--clients", 4, "--train-limit", 40, "--rounds", 2)
    same, other = (program("oracles", *small, *words) for words in ((), ("--adapter", tmp_path / "another_rate.py")))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in same.stdout.splitlines()[2:]]
    assert same.returncode == 0, same.stderr
    assert {row[0] for row in rows} == {"fedavg", "fedprox", "fedper", "fedrep", "ditto", "local"}
    for _, ours, theirs, gap, differ, entry in rows:
        assert (ours, gap, differ) == (theirs, "0.00", "0 of 4") and 0 < float(entry) < 2e-6
    assert len({ours for _, ours, *_ in rows}) > 2  # methods that give the same would prove little
    assert other.returncode == 1 and float(other.stdout.split("|")[-2]) > 1e-3


def test_an_adapter_has_to_have_two_names(tmp_path):
    for text, missing in {"": "METHODS and no run", "METHODS = {}": "run", "def run(): ...": "METHODS"}.items():
        (file := tmp_path / "mine.py").write_text(text)
        done = program("oracles", "--adapter", file)
        said = f"oracles: {file}: has no {missing}; see benchmarks/oracle/setting.py\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.slow
def test_a_dozen_faults():
    done = program("faults", "--faults", 12, "--seed", 3)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.matrix
def test_every_section_for_a_gpu_runs_on_a_cpu_and_all_fit_into_the_deadline(tmp_path, names_of):
    gpu = names_of("gpu")
    # Also if each of them hangs, and is killed a while after its time; what is left at the end is for the tables.
    margin, times = gpu["MARGIN"], [seconds for _, seconds in gpu["SECTIONS"].values()]
    assert sum(each + margin for each in times) + 2 * margin <= gpu["USUAL"] == 540
    # Machines that are shared take many times as long.
    done = program("gpu", "--device", "cpu", "--quick", "--deadline", 3000, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines if "status" in line} == {"done"}, done.stdout
    assert [line for line in lines if "error" in line or line.get("ok") is False] == []


def test_cells_are_refused_when_a_module_was_edited_before_it_was_imported(tmp_path, names_of):
    cells = names_of("gpu_cells")
    (tmp_path / "cells.json").write_text(json.dumps({"cells": [], "modules": cells["modules"]()}))
    session = cells["Session"](argparse.Namespace(cells=tmp_path, out=tmp_path, device="cpu", deadline=1.0))
    session.check_code()
    session.modules["pflcore.engine.run"] = "0" * 64
    refuses(r"^pflcore\.engine\.run is not the one that the cells were packed with; pack", session.check_code)


THERE = {**os.environ, "PFL_WORKERS": "1", "PFL_THREADS": "1"}
# What the card's machine lacks cannot be imported there.
BARE = """
import runpy, sys
for name in ("pyarrow", "pydantic", "dvc", "yaml", "typer", "rich", "sklearn", "scipy", "pandas"):
    sys.modules[name] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ROUNDS = 40


def here(project, *command):
    """What a command says in a project, which it has to end well."""
    return project.succeed(*map(str, command), PFL_WORKERS="1", PFL_THREADS="1")


def train(cells, out, *words):
    """`train` on the bare machine, in a folder that is no project."""
    words = ("train", "--cells", cells, "--out", out, "--device", "cpu", *words)
    command = [sys.executable, "-c", BARE, BENCHMARKS / "gpu_cells.py", *map(str, words)]
    return subprocess.Popen(command, cwd=cells, env=THERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.matrix
def test_cells_are_those_of_an_ordinary_run_though_killed_and_continued(tmp_path):
    cells, first, second = (tmp_path / name for name in ("cells", "1", "2"))
    text = spec("{FedAvg: fedavg, FedPer: fedper}", rounds=ROUNDS, partition="{name: dirichlet, alpha: 1.0}")
    project = make_project(tmp_path / "a", {"specs/tiny.yaml": text}, default=["tiny"])
    project.compile()
    here(project, "dvc", "repro", *(name for name in project.stages() if name.endswith(":partition")))
    shutil.copytree(project.root, tmp_path / "b", ignore=shutil.ignore_patterns("tmp", "warm"))
    script = (sys.executable, BENCHMARKS / "gpu_cells.py")
    collect = (*script, "collect", "--cells", cells, "--from")
    assert here(project, *script, "pack", "--spec", "tiny", "--out", cells).startswith("2 cells, ")
    # Killed as soon as there is a checkpoint, …
    process = train(cells, first, "--every", 0)
    wait_for(lambda: list(first.glob("under-way-*/round-*")), process)
    process.kill()
    process.communicate()
    assert "1 under way" in here(project, *collect, first)
    # … then continued elsewhere, from what came back.
    process = train(cells, second)
    said, error = process.communicate(timeout=500)
    assert process.returncode == 0 and said.count(f"| {ROUNDS} | ") == said.count("| done |") == 2, error
    assert here(project, *collect, second).startswith("2 runs taken, 0 under way")
    # The same spec in another project, by `pfl run`.
    other = Project(tmp_path / "b")
    here(other, "pfl", "run")
    ours, theirs = (sorted(one.root.glob("artifacts/runs/*/rounds.parquet")) for one in (project, other))
    assert len(ours) == 2 and [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]
    here(project, "pfl", "keep", "tiny")  # DVC takes them for what they are, and they can be kept
