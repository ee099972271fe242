"""The Python interface on a real project: what was measured, kept, dealt; what is stale is said, never shown."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.project import Project, spec

import pipeline
from pipeline.library.found import Found
from pipeline.library.frames import tidy
from pipeline.results.keep import keep
from pipeline.spec.run import Run


@pytest.fixture(scope="module")
def study(original: Project) -> pipeline.Study:
    """Of the project that all tests share; nothing here changes it."""
    return pipeline.open(original.root)


def test_results_are_what_the_runs_measured(study: pipeline.Study, original: Project) -> None:
    frame = study.results("tiny")
    head = ["method", "run", "seed", "client", "round", "population", "accuracy", "loss", "correct", "total"]
    assert list(frame.columns) == head
    assert list(frame["method"].unique()) == ["FedAvg", "FedPer"] and set(frame["seed"]) == {0}
    assert not frame.duplicated(["run", "client", "round", "population"]).any()
    for path in original.root.glob("artifacts/runs/*/rounds.parquet"):
        mine = frame[frame["run"] == path.parent.name]
        for row in pq.read_table(path).to_pylist():
            (one,) = mine[(mine["client"] == row["client"]) & (mine["round"] == row["round"])].to_dict("records")
            assert (one["correct"], one["total"], one["loss"]) == (row["correct"], row["total"], row["loss"])
            assert one["accuracy"] == row["correct"] / row["total"]
    last = frame[frame["round"] == frame["round"].max()].groupby("method")[["correct", "total"]].sum()
    shown = study.table("tiny").set_index("method")["obtained_mean"]
    assert np.allclose(100 * last["correct"] / last["total"], shown[last.index], atol=5)  # the table's is over rounds


def test_the_table_is_that_of_the_report(study: pipeline.Study, original: Project) -> None:
    frame, path = study.table("tiny"), original.root / "reports/tiny/table.parquet"
    pd.testing.assert_frame_equal(frame, pq.read_table(path).to_pandas())
    assert list(frame["method"]) == ["FedAvg", "FedPer"] and frame["obtained_mean"].notna().all()


def test_runs_say_what_there_is_of_them(study: pipeline.Study) -> None:
    frame = study.runs("tiny")
    assert list(frame["method"]) == ["FedAvg", "FedPer"] and set(frame["state"]) == {"trained"}
    assert list(frame["last_round"]) == [2, 2] and not frame["diverged"].any()
    assert (frame["communicated_up"] > 0).all() and frame["run"].str.startswith(("fedavg-", "fedper-")).all()


def test_a_partition_has_every_sample_once_with_its_label(study: pipeline.Study) -> None:
    from sklearn.datasets import load_digits

    frame = study.partition("tiny")
    assert len(frame) == 1797 and frame["sample"].is_unique and set(frame["client"]) == {0, 1, 2}
    assert (frame["label"] == load_digits().target[frame["sample"]]).all()
    assert set(frame["split"]) == {"train", "test"} and frame["federation"].nunique() == 1


def test_unknown_and_untrained_specs_are_one_line_each(study: pipeline.Study, reproduced: Project) -> None:
    with pytest.raises(pipeline.UserError, match=r"^unknown spec 'tinny'; did you mean 'tiny'\?$"):
        study.results("tinny")
    reproduced.write("specs/later.yaml", spec("[ditto]"))
    later = pipeline.open(reproduced.root)
    assert later.specs == ["later", "tiny"]
    with pytest.raises(pipeline.UserError, match=r"^later: nothing is trained yet; type `pfl run later`$"):
        later.results("later")
    with pytest.raises(pipeline.UserError, match=r"^later: its report has not been made; type `pfl run later`$"):
        later.table("later")
    assert list(later.runs("later")["state"]) == ["missing"]
    with pytest.raises(
        pipeline.UserError, match=r"neither here nor above is a pyproject.toml with \[tool.pfl\] or a folder specs/"
    ):
        pipeline.open(reproduced.root.parent)


def test_what_is_stale_is_left_out_and_said(reproduced: Project) -> None:
    (rounds,) = reproduced.root.glob("artifacts/runs/fedper-*/rounds.parquet")
    rounds.chmod(0o644)
    rounds.write_bytes(rounds.read_bytes() + b"x")  # not what its stage left
    shutil.rmtree(next(reproduced.root.glob("artifacts/runs/fedavg-*")))
    reproduced.write("specs/tiny.yaml", spec("[fedavg, fedper]"))
    study = pipeline.open(reproduced.root)
    assert dict(study.runs("tiny")[["method", "state"]].values) == {"fedavg": "missing", "fedper": "stale"}
    with pytest.raises(pipeline.UserError, match=r"tiny: nothing of it is up to date.* type `pfl run tiny`"):
        study.results("tiny")
    with pytest.warns(pipeline.NotUpToDate, match="table.parquet is not up to date"):
        study.table("tiny")


def test_one_stale_run_leaves_the_others(reproduced: Project) -> None:
    reproduced.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Ditto: ditto}"))
    with pytest.warns(pipeline.NotUpToDate, match=r"^tiny: 1 missing of 3 runs are left out; type `pfl run tiny`$"):
        frame = pipeline.open(reproduced.root).results("tiny")
    assert set(frame["method"]) == {"FedAvg", "FedPer"}


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


class Measured(Found):
    """A run with any artifact, at any place."""

    def __init__(self, columns: dict[str, list[float]], facts: dict[str, object], *places: dict[str, str]) -> None:
        rows = {"client": [0, 1], "round": [5, 5], "population": ["test", "novel"], "correct": [1, 0], "total": [4, 0]}
        table = pa.table({**rows, "loss": [0.5, 0.25], "last_correct": [1, 0], **columns})
        object.__setattr__(self, "rounds", lambda run: (table, facts))
        object.__setattr__(self, "labels", lambda run: list(places))


def test_texts_detectors_and_axes_called_like_columns() -> None:
    run = Run({"method": {"name": "fedavg"}, "backbone": {"name": "b"}, "dataset": {"name": "d"}, "seed": 3})
    text = tidy(Measured({}, {"positions": 8}, {"loss": "plain", "seed": "3"}), run)
    assert list(text["last_correct"]) == [1, 0] and set(text["loss (axis)"]) == {"plain"}
    assert list(text["accuracy"].isna()) == [False, True] and set(text["seed"]) == {3}
    boxes = tidy(Measured({"precision": [0.5, 0.75]}, {}, {"method": "A"}, {"method": "B"}), run)
    assert list(boxes["precision"]) == [0.5, 0.75] * 2 and list(boxes["method"]) == ["A", "A", "B", "B"]
    assert "last_correct" not in boxes


def test_what_the_package_offers_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, pipeline; print([name for name in ('pandas', 'torch', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert {*pipeline.__all__} <= {*dir(pipeline)} and all(getattr(pipeline, name) for name in pipeline.__all__)
    with pytest.raises(AttributeError, match=r"^module 'pipeline' has no attribute 'opne'$"):
        pipeline.opne  # noqa: B018
