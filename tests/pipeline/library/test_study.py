"""The Python interface on a real project: what was measured, kept, dealt; what is stale is said, never shown."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits
from support.project import Project, spec

import pipeline
from pipeline.report.frame import tidy
from pipeline.results.keep import keep
from pipeline.spec.run import Run


@pytest.fixture(scope="module")
def study(original: Project) -> pipeline.Study:
    """Of the project that all tests share; nothing here changes it."""
    return pipeline.open(original.root)


def test_frames_are_what_was_measured_reported_and_dealt(study: pipeline.Study, original: Project) -> None:
    frame = study.results("tiny")
    head = ["method", "run", "seed", "client", "round", "population", "accuracy", "loss", "correct", "total"]
    assert list(frame.columns) == head and list(frame["method"].unique()) == ["FedAvg", "FedPer"]
    assert not frame.duplicated(["run", "client", "round", "population"]).any() and set(frame["seed"]) == {0}
    for path in original.root.glob("artifacts/runs/*/rounds.parquet"):
        mine = frame[frame["run"] == path.parent.name].set_index(["client", "round"])
        for row in pq.read_table(path).to_pylist():
            one = mine.loc[row["client"], row["round"]]
            assert (one["correct"], one["total"], one["loss"]) == (row["correct"], row["total"], row["loss"])
            assert one["accuracy"] == row["correct"] / row["total"]
    table = study.table("tiny")
    pd.testing.assert_frame_equal(table, pq.read_table(original.root / "reports/tiny/table.parquet").to_pandas())
    assert list(table["method"]) == ["FedAvg", "FedPer"] and table["obtained_mean"].notna().all()
    runs = study.runs("tiny")
    assert list(runs["method"]) == ["FedAvg", "FedPer"] and set(runs["state"]) == {"trained"}
    assert list(runs["last_round"]) == [2, 2] and not runs["diverged"].any() and (runs["communicated_up"] > 0).all()
    dealt = study.partition("tiny")
    assert len(dealt) == 1797 and dealt["sample"].is_unique and set(dealt["client"]) == {0, 1, 2}
    assert (dealt["label"] == load_digits().target[dealt["sample"]]).all()
    assert set(dealt["split"]) == {"train", "test"} and dealt["federation"].nunique() == 1


def test_unknown_and_untrained_specs_are_one_line_each(reproduced: Project) -> None:
    reproduced.write("specs/later.yaml", spec("[ditto]"))
    study = pipeline.open(reproduced.root)
    assert study.specs == ["later", "tiny"] and list(study.runs("later")["state"]) == ["missing"]
    for call, line in [
        (lambda: study.results("tinny"), r"^unknown spec 'tinny'; did you mean 'tiny'\?$"),
        (lambda: study.results("later"), r"^later: nothing is trained yet; type `pfl run later`$"),
        (lambda: study.table("later"), r"^later: its report has not been made; type `pfl run later`$"),
        (
            lambda: pipeline.open(reproduced.root.parent),
            r"neither here nor above is a pyproject.toml with \[tool.pfl\]",
        ),
    ]:
        with pytest.raises(pipeline.UserError, match=line):
            call()


def test_what_is_stale_is_left_out_and_said(reproduced: Project) -> None:
    reproduced.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Ditto: ditto}"))
    with pytest.warns(pipeline.NotUpToDate, match=r"^tiny: 1 missing of 3 runs are left out; type `pfl run tiny`$"):
        frame = pipeline.open(reproduced.root).results("tiny")
    assert set(frame["method"]) == {"FedAvg", "FedPer"}
    (rounds,) = reproduced.root.glob("artifacts/runs/fedper-*/rounds.parquet")
    rounds.chmod(0o644)
    rounds.write_bytes(rounds.read_bytes() + b"x")  # not what its stage left
    shutil.rmtree(next(reproduced.root.glob("artifacts/runs/fedavg-*")))
    reproduced.write("specs/tiny.yaml", spec("[fedavg, fedper]"))
    study = pipeline.open(reproduced.root)
    assert dict(study.runs("tiny")[["method", "state"]].values) == {"fedavg": "missing", "fedper": "stale"}
    with pytest.raises(pipeline.UserError, match=r"tiny: nothing of it is up to date.* type `pfl run tiny`"):
        study.results("tiny")
    with pytest.warns(pipeline.NotUpToDate, match=r"table\.parquet is not up to date"):
        study.table("tiny")


def test_kept_results_are_there_without_artifacts(reproduced: Project) -> None:
    study = pipeline.open(reproduced.root)
    before = study.results("tiny")
    assert len(keep(reproduced.workspace(), "tiny").runs) == 2
    shutil.rmtree(reproduced.root / "artifacts")
    after = study.results("tiny")
    assert after["loss"].isna().all() and before["loss"].notna().all()  # a mean over clients is no client's
    pd.testing.assert_frame_equal(before.drop(columns="loss"), after.drop(columns="loss"))
    assert set(study.runs("tiny")["state"]) == {"kept"} and study.runs("tiny")["kept"].notna().all()
    with pytest.raises(pipeline.UserError, match=r"^tiny: its samples have not been dealt here"):
        study.partition("tiny")


def test_texts_detectors_and_axes_called_like_columns() -> None:
    def measured(columns: dict[str, list[float]], facts: dict[str, object], *places: dict[str, str]) -> Any:
        rows = {"client": [0, 1], "round": [5, 5], "population": ["test", "novel"], "correct": [1, 0], "total": [4, 0]}
        table = pa.table({**rows, "loss": [0.5, 0.25], "last_correct": [1, 0], **columns})
        cells = [SimpleNamespace(labels=labels, runs=[run.id]) for labels in places]
        shown = SimpleNamespace(axes=list(places[0]), clients={}, quantities=[], cells=cells)
        return tidy(shown, run.id, run.seed, table, facts)  # type: ignore[arg-type]

    run = Run({"method": {"name": "fedavg"}, "backbone": {"name": "b"}, "dataset": {"name": "d"}, "seed": 3})
    text = measured({}, {"positions": 8}, {"loss": "plain", "seed": "3"})
    assert list(text["last_correct"]) == [1, 0] and set(text["loss (axis)"]) == {"plain"}
    assert list(text["accuracy"].isna()) == [False, True] and set(text["seed"]) == {3}
    boxes = measured({"precision": [0.5, 0.75]}, {}, {"method": "A"}, {"method": "B"})
    assert list(boxes["precision"]) == [0.5, 0.75] * 2 and list(boxes["method"]) == ["A", "A", "B", "B"]
    assert "last_correct" not in boxes


def test_what_the_package_offers_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, pipeline; print([name for name in ('pandas', 'torch', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert {*pipeline.__all__} <= {*dir(pipeline)} and all(getattr(pipeline, name) for name in pipeline.__all__)
    with pytest.raises(AttributeError, match=r"^module 'pipeline' has no attribute 'opne'$"):
        pipeline.opne  # noqa: B018
