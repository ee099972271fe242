"""Several processes make of a run what one makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from killing import Victim
from test_executors import PAIRS, digest, trainer, uneven_run

from pflcore.engine import CheckpointFolder, Progress
from pflcore.engine.executor import choose_executor
from pflcore.errors import UserError
from pipeline.stages.ranks import launch, ranks_wanted


class Stopped(Exception):
    """Ends a run in the middle."""


def torchrun(ranks: int, *arguments: str) -> None:
    """Run tests/ranks.py in so many processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, str(Path(__file__).with_name("ranks.py")), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PFL_WORKERS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_processes_give_the_bytes_of_one(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise Stopped

    with CheckpointFolder(tmp_path, "me", print) as checkpoints, pytest.raises(Stopped):
        uneven_run("fedper", "convnet", "sequential", checkpoints=checkpoints, checkpoint_every=0, on_round=stop)
    torchrun(2, str(tmp_path))
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    expected = {" on ".join(pair): digest(uneven_run(*pair, "sequential")) for pair in PAIRS}
    expected["resumed"] = expected["fedper on convnet"]
    assert facts == [{"resumed_from": 1, "digests": expected}] * 2


def test_it_needs_processes() -> None:
    reference, state = trainer()
    with pytest.raises(UserError, match="needs processes: torchrun"):
        choose_executor("distributed", reference, state)


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5", "²"])
def test_a_wrong_number_of_processes(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_RANKS", value)
    with pytest.raises(UserError, match="PFL_RANKS"):
        ranks_wanted()


def test_the_exit_code_of_the_process_that_fails_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(2, ["--help"]) == 0
    capfd.readouterr()
    assert launch(2, ["stage", "train", "stages/federations/absent.yaml"]) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_the_train_stage_shares_a_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = Victim(tmp_path, "fedtp", rounds=4)
    alone, _ = victim.undisturbed()
    monkeypatch.setenv("PFL_RANKS", "2")
    shared, _ = victim.undisturbed()
    assert shared == alone and "rounds.parquet" in shared
