"""How a kept run is compared with the same run trained again, and which are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline.ledger.entry import FACTS, Entry
from pipeline.ledger.ledger import Ledger
from pipeline.ledger.measurements import from_lines
from support.report_demo import RECORD, cell

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pipeline.results import verify as module
from pipeline.results.verify import Comparison, compare, verify
from pipeline.running.request import Wish
from pipeline.spec.run import Run
from pipeline.workspace import Workspace, run_path

RUN = Run(RECORD)
HERE: dict[str, Any] = {
    **{name: 3 if kind is int else "x" for name, kind in FACTS.items()},
    **{"device": "cpu", "torch": "2.11", "dataset_hash": "d", "partition_hash": "p", "diverged": None, "chosen": None},
}


def lines(last: str, samples: str = "10 30", first: str = "5 15") -> str:
    return (
        f"test samples: {samples}\nround 2, accuracy 50.00, loss 1: {first}\nround 4, accuracy 60.00, loss 1: {last}\n"
    )


def entry(text: str, run: Run = RUN) -> Entry:
    return Entry(run, {"engine": "abc"}, "2026-11-22", None, HERE, text)


def compared(kept: str, again: str, **facts: str) -> tuple[float, float, float, str, bool]:
    made = compare("a cell", entry(kept), from_lines(again), HERE | facts)
    assert (made.cell, made.run) == ("a cell", RUN.id)
    return made.kept, made.again, made.allowed, made.verdict, made.good


def test_every_count_has_to_agree_on_the_same_kind_of_machine() -> None:
    kept = lines("6 18")
    assert compared(kept, kept) == (60.0, 60.0, 0.0, "the same, every count", True)
    for again in (lines("7 17"), lines("6 18", first="5 16"), lines("6 18 1", "10 30 2", "5 15 1")):
        assert compared(kept, again)[2:] == (0.0, "DIFFERS, on the same kind of machine", False)
    # Losses are not kept of single clients.
    assert compared(kept, kept.replace("loss 1:", "loss 2:"))[3] == "the same, every count"


@pytest.mark.parametrize(
    ("last", "again", "allowed", "good"),
    [
        ("6 18", 60.0, 0.5, True),  # an earlier round differs
        ("7 17", 60.0, 3 * (2.5**2 + 2.5**2) ** 0.5, True),  # by 10 points of a quarter and -10/3 of the others
        ("8 18", 65.0, 3 * (3.75**2 + 3.75**2) ** 0.5, True),  # by 20 and 0: 15 more than the mean, and 5 less
        ("7 21", 70.0, 0.5, False),  # all alike
        ("5 15", 50.0, 0.5, False),
    ],
)
def test_other_machines_may_differ_by_chance(last: str, again: float, allowed: float, good: bool) -> None:
    for facts, told in (({"device": "cuda"}, "cuda"), ({"torch": "2.12"}, "cpu")):
        found = compared(lines("6 18"), lines(last, first="5 14"), **facts)
        words = f"within tolerance, on {told} instead of cpu" if good else "DIFFERS by more than 0.50 points"
        assert found == (60.0, pytest.approx(again), pytest.approx(allowed), words, good)


def test_half_a_point_is_never_too_much() -> None:
    """Of one client there is no standard error."""
    kept, again = lines("100", "200", "90"), lines("101", "200", "90")
    assert compared(kept, again, device="cuda")[2:] == (0.5, "within tolerance, on cuda instead of cpu", True)
    assert not compared(kept, lines("102", "200", "90"), device="cuda")[4]
    # Clients count by the samples that were kept of them.
    assert compared(lines("6 18"), lines("12 12", "20 20"), device="cuda")[2] == pytest.approx(3 * (2 * 15**2) ** 0.5)
    # Of other clients there is no standard error.
    assert compared(kept, lines("50 50", "100 100", "45 45"), device="cuda")[:3] == (50.0, 50.0, 0.5)


def test_other_data_are_told_whatever_the_counts() -> None:
    kept = lines("6 18")
    assert compared(kept, kept, dataset_hash="e")[3:] == ("made on other data (dataset)", False)
    assert compared(kept, kept, partition_hash="q")[3:] == ("made on other data (partition)", False)


def test_validation_samples_are_compared_and_not_counted() -> None:
    more = "validation samples: 4 4\nvalidation round 2, accuracy 1.00, loss 1: 1 2\n"
    kept = f"{lines('6 18')}{more}validation round 4, accuracy 1.00, loss 1: 3 4\n"
    again = f"{lines('6 18')}{more}validation round 4, accuracy 1.00, loss 1: 0 0\n"
    assert compared(kept, kept)[:2] == (60.0, 60.0)
    assert compared(kept, again) == (60.0, 60.0, 0.0, "DIFFERS, on the same kind of machine", False)


def test_a_run_that_was_never_measured() -> None:
    kept, again, allowed, verdict, good = compared("", "")
    assert kept != kept and again != again and (allowed, verdict, good) == (0.0, "the same, every count", True)


@dataclass
class Study:
    """A spec of four cells, of which two are kept; training is pretended."""

    root: Path
    wishes: list[Wish] = field(default_factory=list)
    fails: bool = False

    def __post_init__(self) -> None:
        self.workspace = Workspace(self.root, self.root, "paper")
        runs = [Run({**RECORD, "seed": seed}) for seed in range(4)]
        self.a, self.b, self.c = [runs[0], runs[1]], [runs[2]], [runs[3]]
        cells = [
            cell({"method": name, "setting": "*"}, [run.id for run in its])
            for name, its in (("A", self.a), ("B", self.b), ("C", [self.b[0], *self.c]), ("D", []))
        ]
        for run in (*self.a, *self.b):
            entry(lines("6 18"), run).write(Ledger(self.root).path(run))
        self.compilation = SimpleNamespace(
            table=lambda spec: SimpleNamespace(cells=cells),
            kept={run.id for run in (*self.a, *self.b)},
            runs={run.id: run for run in runs},
            made_by={run.id: {"engine": "abc"} for run in runs},
        )

    def train(self, apart: Workspace, wish: Wish) -> int:
        self.wishes.append(wish)
        assert apart.root == self.root / "build/verify"
        assert apart.home == self.root
        assert len(self.wishes) > 1 or not (apart.root / "artifacts").exists()
        for run in self.compilation.runs:
            write_table(apart.root / run_path(run, "rounds.parquet"), from_lines(lines("6 18")), "rounds/2", **HERE)
        return int(self.fails)

    def verify(self, cells: int = 1, named: list[str] | None = None) -> list[Comparison]:
        return verify(self.workspace, "tiny", cells, named or [])


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    made = Study(tmp_path)
    monkeypatch.setattr(module, "compile_workspace", lambda workspace, specs: made.compilation)
    monkeypatch.setattr(module, "run_specs", made.train)
    return made


def test_named_cells_are_trained_again_apart(study: Study) -> None:
    before = [study.root / "build/verify" / name for name in ("artifacts/a", ".pfl/states/a", ".pfl/checkpoints/a")]
    for path in before:
        path.parent.mkdir(parents=True)
        path.write_text("of the last time")
    found = study.verify(1, ["B, *", "A, *", "C, *"])
    a, b = [run.id for run in study.a], study.b[0].id
    assert [(one.cell, one.run) for one in found] == [("A, *", a[0]), ("A, *", a[1]), ("B, *", b), ("C, *", b)]
    assert all(one.good for one in found)
    assert study.wishes == [  # of C only the seed that is kept
        Wish(("tiny",), cells=("A, *",), seeds=(0, 1)),
        Wish(("tiny",), cells=("B, *", "C, *"), seeds=(2,)),
    ]
    assert [path.exists() for path in before] == [False, False, True], "so that it can be resumed"


@pytest.mark.parametrize(("cells", "drawn"), [(1, 1), (2, 2), (9, 3)])
def test_some_are_drawn_where_none_is_named(study: Study, cells: int, drawn: int) -> None:
    assert len({one.cell for one in study.verify(cells)}) == drawn


def test_what_cannot_be_verified_is_one_line(study: Study) -> None:
    with pytest.raises(UserError, match=r"^no kept cell 'D, \*' \(labels are joined .*\); did you mean '[ABC], \*'\?$"):
        study.verify(1, ["D, *"])
    study.fails = True
    with pytest.raises(UserError, match=r"^tiny: a run failed; see above$"):
        study.verify()
    study.fails = False
    Ledger(study.root).path(study.b[0]).unlink()
    with pytest.raises(UserError, match=f"^{study.b[0].id}: dropped from the ledger meanwhile$"):
        study.verify(1, ["B, *"])
    study.compilation.kept = set()
    with pytest.raises(UserError, match=r"^tiny: none of its cells is kept and current"):
        study.verify()
