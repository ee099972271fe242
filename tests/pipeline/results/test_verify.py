"""How a kept run is compared with the same run trained again, and which are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.report_demo import RECORD, cell

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pipeline.ledger import FACTS, Entry, Ledger
from pipeline.measurements import to_table
from pipeline.results import verify as module
from pipeline.results.verify import Again, Comparison, compare, verify
from pipeline.running.options import RunOptions
from pipeline.spec.run import Run
from pipeline.workspace import Workspace, run_path

RUN = Run(RECORD)
VERSIONS = {"engine": "1"}
HERE: dict[str, Any] = {
    **{name: 3 if kind is int else "x" for name, kind in FACTS.items()},
    **{"device": "cpu", "torch": "2.11", "dataset_hash": "d", "partition_hash": "p", "diverged": None, "chosen": None},
}
SAME, DIFFERS = "the same, every count", "DIFFERS, on the same kind of machine"


def counts(last: list[int], first: list[int], total: list[int]) -> dict[str, Any]:
    return {"total": total, "round": [2, 4], "loss": [1.0, 1.0], "correct": [first, last]}


def measured(*last: int, first: tuple[int, ...] = (5, 15), total: tuple[int, ...] = (10, 30)) -> dict[str, Any]:
    return {"novel": [], "test": counts([*last], [*first], [*total])}


KEPT = measured(6, 18)


def entry(measurements: dict[str, Any], run: Run = RUN) -> Entry:
    return Entry(run, VERSIONS, "2026-11-22", None, HERE, measurements, "a processor")


def again(kept: dict[str, Any], found: dict[str, Any], **facts: str) -> Again:
    return Again(entry(kept), to_table(found), HERE | facts, facts.get("machine", "a processor"))


def compared(kept: dict[str, Any], found: dict[str, Any], **facts: str) -> tuple[float, float, str, bool]:
    (made,) = compare("a cell", [again(kept, found, **facts)])
    assert (made.cell, made.run) == ("a cell", RUN.id)
    return made.kept, made.again, made.verdict, made.good


def test_every_count_has_to_agree_on_the_same_kind_of_machine() -> None:
    assert compared(KEPT, KEPT) == (55.0, 55.0, SAME, True)
    for again in (
        measured(7, 17),
        measured(6, 18, first=(5, 16)),
        measured(6, 18, 1, total=(10, 30, 2), first=(5, 15, 1)),
    ):
        assert compared(KEPT, again)[2:] == (DIFFERS, False)
    # Losses are not kept of single clients.
    other = {**KEPT, "test": {**KEPT["test"], "loss": [2.0, 3.0]}}
    assert compared(KEPT, other)[2] == SAME
    # Validation samples are compared, and not counted.
    kept, again = ({**KEPT, "validation": counts(last, [1, 2], [4, 4])} for last in ([3, 4], [0, 0]))
    assert compared(kept, kept)[:2] == (55.0, 55.0)
    assert compared(kept, again) == (55.0, 55.0, DIFFERS, False)
    # A run may never have been measured.
    before, now, *rest = compared({}, {})
    assert before != before and now != now and rest == [SAME, True]
    # Other data are told whatever the counts.
    assert compared(KEPT, KEPT, dataset_hash="e")[2:] == ("made on other data (dataset)", False)
    assert compared(KEPT, KEPT, partition_hash="q")[2:] == ("made on other data (partition)", False)


AGREES = "the cell agrees, on another kind of machine (kept: a processor)"


@pytest.mark.parametrize(
    ("last", "first", "now", "verdict"),
    [
        # Of the kept run 50 and 60 %: deviation 5 points. Clients differ by 0 and -5/3 points, three errors are 1.33.
        ((6, 18), (5, 14), 53.75, AGREES),
        ((6, 16), (5, 14), 51.25, AGREES),  # by 0 and -5, the mean by -3.75; three errors are 3.98
        ((6, 21), (6, 15), 60.0, "the cell DIFFERS by 5.00 points, more than 0.50"),  # each client by 5
    ],
)
@pytest.mark.parametrize("change", [{"device": "cuda"}, {"torch": "2.12"}, {"machine": "another processor"}])
def test_on_other_machines_a_cell_may_differ_by_chance(
    last: tuple[int, ...], first: tuple[int, ...], now: float, verdict: str, change: dict[str, str]
) -> None:
    found = compared(KEPT, measured(*last, first=first), **change)
    assert found == (55.0, pytest.approx(now), verdict, verdict == AGREES)


def test_seeds_of_a_cell_say_how_much_it_varies() -> None:
    """Each run differs by up to 10 points, and the mean of three seeds by 0."""
    kept = [measured(6, 18, first=(6, 18)), measured(8, 24, first=(8, 24)), measured(7, 21, first=(7, 21))]
    found = [measured(8, 24, first=(8, 24)), measured(6, 18, first=(6, 18)), measured(7, 20, first=(7, 22))]
    runs = [again(a, b, device="cuda") for a, b in zip(kept, found, strict=True)]
    assert [one.verdict for one in compare("a cell", runs)] == [AGREES] * 3
    assert "DIFFERS by 20.00 points" in compare("a cell", runs[:1])[0].verdict


def test_half_a_point_is_never_too_much() -> None:
    """Of other clients there is no standard error."""
    kept, near, far = (measured(right, total=(200,), first=(right,)) for right in (100, 101, 102))
    assert compared(kept, near, device="cuda")[2:] == (AGREES, True)
    assert not compared(kept, far, device="cuda")[3]


@dataclass
class Study:
    """A spec of four cells, of which two are kept; training is pretended."""

    root: Path
    wishes: list[RunOptions] = field(default_factory=list)
    fails: bool = False

    def __post_init__(self) -> None:
        self.workspace = Workspace(self.root, self.root, "paper")
        runs = [Run({**RECORD, "seed": seed}) for seed in range(4)]
        self.a, self.b, self.c = [runs[0], runs[1]], [runs[2]], [runs[3]]
        cells = [
            cell({"method": name, "setting": "*"}, [run.id for run in its])
            for name, its in (("A", self.a), ("B", self.b), ("C", [self.b[0], *self.c]), ("D", []))
        ]
        kept = [*self.a, *self.b]
        Ledger(self.root).write("tiny", [entry(KEPT, run) for run in kept], {})
        self.compilation = SimpleNamespace(
            table=lambda spec: SimpleNamespace(cells=cells),
            kept={run.id for run in kept},
            runs={run.id: run for run in runs},
            made_by={run.id: VERSIONS for run in runs},
        )

    def train(self, apart: Workspace, wish: RunOptions) -> int:
        self.wishes.append(wish)
        assert apart.root == self.root / "build/verify" and apart.home == self.root
        assert len(self.wishes) > 1 or not (apart.root / "artifacts").exists()
        for run in self.compilation.runs:
            write_table(apart.root / run_path(run, "rounds.parquet"), to_table(KEPT), "rounds/2", **HERE)
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
        RunOptions(("tiny",), cells=("A, *",), seeds=(0, 1)),
        RunOptions(("tiny",), cells=("B, *", "C, *"), seeds=(2,)),
    ]
    assert [path.exists() for path in before] == [False, False, True], "so that it can be resumed"
    assert [len({one.cell for one in study.verify(cells)}) for cells in (1, 2, 9)] == [1, 2, 3], "drawn"


def test_what_cannot_be_verified_is_one_line(study: Study) -> None:
    with pytest.raises(UserError, match=r"^no kept cell 'D, \*' .*did you mean '[ABC], \*'\?$"):
        study.verify(1, ["D, *"])
    study.fails = True
    with pytest.raises(UserError, match=r"^tiny: a run failed; see above$"):
        study.verify()
    study.compilation.kept = set()
    with pytest.raises(UserError, match=r"^tiny: none of its cells is kept and current"):
        study.verify()
