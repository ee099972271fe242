"""What stands for the code of a stage, where fingerprints say what they were asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pflcore import ENGINE_VERSION
from pipeline.compile.engine import ENGINE
from pipeline.compile.seal import text_hash
from pipeline.compile.stage_code import StageCode


class Asked:
    """In place of :class:`pipeline.compile.fingerprint.Code`."""

    def __init__(self) -> None:
        self.times = 0

    def fingerprint(self, root: str, without: str | None = None) -> str:
        self.times += 1
        return f"{root} without {without}\n"

    def outside(self, root: str) -> str:
        return "study.methods.own 12ab\n" if root.endswith(".own") else ""


class Versions:
    """In place of a catalog: the version of an entry is the length of its name."""

    def entry(self, kind: str, name: str) -> Any:
        return SimpleNamespace(facts={"results_version": len(name)})


@pytest.fixture
def code() -> StageCode:
    return StageCode(Asked(), Versions())  # type: ignore[arg-type]


def run(tuned: str | None = None, analyses: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        dataset="digits", partition="iid", method="fedper", backbone="convnet", analyses=analyses, tuned=tuned
    )


def paths(*names: str) -> list[str]:
    return [f"stages/code/{name}.txt" for name in names]


def test_what_shares_the_engine_has_its_version_and_entries_of_its_own(code: StageCode) -> None:
    assert code.of_run("data", run()) == paths("engine", "dataset.digits")
    assert code.of_run("partition", run()) == paths("engine", "partition.iid")
    train = paths("engine", "method.fedper", "backbone.convnet")
    assert code.of_run("train", run()) == train
    more = ("embeddings", "rollout")
    assert code.of_run("train", run(analyses=more)) == [*train, *paths("analysis.embeddings", "analysis.rollout")]
    assert code.texts[ENGINE] == f"engine version {ENGINE_VERSION}\n"
    assert code.texts["stages/code/dataset.digits.txt"] == "pflcore.datasets.digits without pipeline.stages.data\n"
    assert code.texts["stages/code/method.fedper.txt"] == "pflcore.methods.fedper without pipeline.stages.train\n"


def test_others_have_fingerprints(code: StageCode) -> None:
    assert code.of_stage("evaluate") == paths("evaluate")
    assert code.of_stage("describe", ("partition", "iid")) == paths("describe", "partition.iid")
    assert code.of_figure("curves") == "stages/code/figure.curves.txt"
    assert code.texts == {
        "stages/code/evaluate.txt": "pipeline.stages.evaluate without None\n",
        "stages/code/describe.txt": "pipeline.stages.describe without None\n",
        "stages/code/partition.iid.txt": "pflcore.partitions.iid without pipeline.stages.describe\n",
        "stages/code/figure.curves.txt": "pipeline.report.figures.curves without pipeline.stages.report\n",
    }


def test_each_is_asked_for_once(code: StageCode) -> None:
    for _ in range(3):
        code.of_run("train", run())
    assert code._code.times == 2  # type: ignore[attr-defined]


def test_what_is_counted_depends_on_the_code_of_all_runs(code: StageCode) -> None:
    other = SimpleNamespace(**{**vars(run()), "method": "ditto"})
    train = paths("engine", "method.fedper", "backbone.convnet")
    assert code.of_counts([run(), other, run()]) == [*train, *paths("method.ditto", "counting")]
    assert code.texts["stages/code/counting.txt"].endswith(" without pipeline.stages.train\n")


def test_a_result_is_made_by_versions_of_the_engine_and_of_entries(code: StageCode) -> None:
    entries = {"dataset.digits": "6", "partition.iid": "3", "method.fedper": "6", "backbone.convnet": "7"}
    assert code.versions(run()) == {"engine": str(ENGINE_VERSION), **entries}


def test_an_entry_of_a_study_goes_by_its_source(code: StageCode) -> None:
    own = SimpleNamespace(**{**vars(run()), "method": "own"})
    assert code.versions(own)["method.own"] == text_hash("study.methods.own 12ab\n")[:12]
