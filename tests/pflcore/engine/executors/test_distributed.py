"""Several processes make of a run what one makes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cohorts import PAIRS, QUICK, UNEVEN, digest, trainer, uneven_run
from support.killing import Victim
from support.project import seal_anew
from support.tiny import federation, holding_back

import pflcore
from pflcore.engine import CheckpointFolder, KeptStates, Progress
from pflcore.engine.executors.choice import choose_executor
from pflcore.errors import UserError
from pflcore.room import Room
from pipeline.running.worker import _attempt
from pipeline.stages.ranks import launch, ranks_wanted


class Stopped(Exception):
    """Ends a run in the middle."""


def torchrun(ranks: int, *arguments: str) -> None:
    """Run support/ranks.py in so many processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, "-m", "support.ranks", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PFL_WORKERS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("pairs", [QUICK, pytest.param(PAIRS, marks=pytest.mark.matrix)], ids=["quick", "all"])
def test_processes_give_the_bytes_of_one(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise Stopped

    with CheckpointFolder(tmp_path, "me", print) as checkpoints, pytest.raises(Stopped):
        uneven_run("fedper", "convnet", "sequential", checkpoints=checkpoints, checkpoint_every=0, on_round=stop)
    kept = KeptStates(Room(tmp_path / "kept", 2**30), "us", "old", pytest.fail)
    uneven_run("fedtp", "tiny_vit", "sequential", kept=kept, training={"rounds": 1})  # to be measured anew
    torchrun(2, str(tmp_path), *map("/".join, pairs))
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    expected = {" on ".join(pair): digest(uneven_run(*pair, "sequential")) for pair in pairs}
    expected["resumed"] = digest(uneven_run("fedper", "convnet", "sequential"))
    expected["longer"] = digest(uneven_run("fedtp", "tiny_vit", "sequential", training={"rounds": 3}))
    held_back = holding_back(federation(*UNEVEN), 2)
    expected["validation"] = digest(uneven_run("fedper", "convnet", "sequential", data=held_back))
    assert facts == [{"resumed_from": [1, 1], "digests": expected}] * 2


def test_it_needs_processes() -> None:
    reference, state = trainer()
    with pytest.raises(UserError, match="needs processes: torchrun"):
        choose_executor("distributed", reference, state)


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5", "²", "100000", "9" * 5000])
def test_a_wrong_number_of_processes(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_RANKS", value)
    with pytest.raises(UserError, match="PFL_RANKS"):
        ranks_wanted()


def test_what_ends_a_process_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(2, ["--help"]) == 0
    assert launch(2, ["trian"]) == 2
    capfd.readouterr()
    with pytest.raises(UserError, match=r"^stages/federations/absent\.yaml: no such file"):
        launch(2, ["train", "stages/federations/absent.yaml"])
    assert capfd.readouterr().err == ""  # it is told once, by whoever launched them


@pytest.mark.matrix
def test_the_train_stage_shares_a_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = Victim(tmp_path, "fedtp", rounds=4)
    alone, _ = victim.undisturbed()
    monkeypatch.setenv("PFL_RANKS", "2")
    shared, _ = victim.undisturbed()
    assert shared == alone and "rounds.parquet" in shared


MINE = """
import os
from dataclasses import dataclass
from typing import ClassVar

from pflcore.methods import METHODS
from pflcore.methods.fedavg import FedAvg


@METHODS.register
@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    facts: ClassVar[tuple[str, ...]] = ("class_counts",)

    def loss(self, local, params, batch):
        if "MISSPELT" in os.environ:
            return local.received["data/class_count"].sum()
        raise ValueError("boom")
"""


@pytest.mark.matrix
def test_what_fails_in_one_process_is_told_by_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once, and not by those that wait for it."""
    victim = Victim(tmp_path, "fedavg", rounds=2)
    source = Path(pflcore.__file__).parent.parent
    for package in ("pflcore", "pipeline"):
        shutil.copytree(source / package, tmp_path / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
    victim.project.write("copy/pflcore/methods/mine.py", MINE)
    victim.record.write_text(victim.record.read_text().replace("name: fedavg", "name: mine"))
    seal_anew(victim.project, victim.record)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "copy"))
    monkeypatch.setenv("PFL_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    arguments = ["train", str(victim.record.relative_to(tmp_path))]
    capfd.readouterr()

    outcome, line = _attempt(lambda: launch(2, arguments))
    where = r"client \d, round 1, step 1 of \d+, executor distributed"
    assert outcome == "failed"
    assert re.fullmatch(rf"ValueError: boom \(pflcore/methods/mine\.py:{_line('raise')}; {where}\)", line)
    logged = capfd.readouterr()
    assert logged.out == "" and re.fullmatch(where, logged.err.splitlines()[-1])
    assert logged.err.count(f'mine.py", line {_line("raise")}, in loss') == 1

    monkeypatch.setenv("MISSPELT", "")
    entry = "local.received has no entry 'data/class_count'; did you mean 'data/class_counts'?"
    told = f"pflcore/methods/mine.py:{_line('return')}: {entry}"
    assert _attempt(lambda: launch(2, arguments)) == ("failed", told)
    assert capfd.readouterr() == (f"pfl: {told}\n", "")


def _line(word: str) -> int:
    """The first line of MINE with this word."""
    return next(number for number, text in enumerate(MINE.splitlines(), 1) if word in text)
