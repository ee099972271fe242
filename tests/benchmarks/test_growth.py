"""The script that looks for growth: what counts as growth, and that each of its parts sees its units."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder `growing` can be imported from, as the script has it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    sys.path.append(sys.path.pop(0))  # behind the package pipeline, whose name a script there has too
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "growing"]:
        del sys.modules[name]


def test_what_grows_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from growing.grown import Grown, tell

    flat, growing, rare = Grown("flat", 1.5), Grown("growing", 1.5), Grown("rare", 1.5, mean=True)
    for at in range(100):
        flat.add(at, 3.0 + at % 2)
        growing.add(at, 3.0 + at / 10)
        rare.add(at, 50.0 if at in (5, 96) else 1.0)
    assert tell("units", [flat, rare]) and not tell("units", [flat, growing])
    assert "| growing | 100 | 3.45 | 12.4 | 3.61 | 1.5 |" in capsys.readouterr().out
    nothing = Grown("nothing", 1.5, at=[1.0, 2.0], seen=[0.0, 0.0])
    assert nothing.ratio == 1.0 and Grown("something", 1.5, at=[1.0, 2.0], seen=[0.0, 1.0]).ratio > 1.5


def test_the_scheduler_goes_through_all_runs(tmp_path: Path) -> None:
    from growing.grown import picture
    from growing.scheduled import scheduled

    speed, resident = scheduled(300, tmp_path)
    assert speed.at == [100, 200, 300] and len(resident.seen) == 3
    assert "<svg" in picture("runs", [speed, resident])


@pytest.mark.matrix
def test_checkpoints_of_a_run_of_many_clients_go_by_those_that_train(tmp_path: Path) -> None:
    from growing.long_run import clients, rounds

    few, many = (clients(50, tmp_path / str(number), number=number, cohort=10)[2].seen for number in (2000, 4000))
    assert sum(many) < 1.3 * sum(few), "ten clients train in each round of either"
    assert len(rounds(120, tmp_path / "rounds")[0].seen) == 120
