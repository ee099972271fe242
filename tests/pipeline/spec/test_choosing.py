"""Choosing a round: by validation, where samples are held back for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_catalog import write_specs
from support.paper_specs import catalog_of_all

from pflcore.errors import UserError
from pipeline.spec.resolve import Resolved, resolve
from pipeline.spec.specs import load_spec

SPEC = """\
grid:
  base:
    dataset: digits
    partition: {name: iid, validation_share: 0.2}
    clients: 10
    backbone: convnet
  axes:
    method: [fedavg, local]
table:
  rows: [method]
  metric: best_by_validation
"""


def resolved(folder: Path, text: str, profile: str = "paper") -> Resolved:
    specs = write_specs(folder, {"specs/a.yaml": text})
    return resolve(load_spec(specs / "a.yaml", specs, catalog_of_all()), catalog_of_all(), profile)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UserError) as error:
        resolved(folder, text)
    return str(error.value)


@pytest.mark.parametrize("profile", ["paper", "smoke"])
def test_by_validation(tmp_path: Path, profile: str) -> None:
    found = resolved(tmp_path, SPEC, profile)
    assert found.table and found.table.metric == "best_by_validation"
    assert [run.record["partition"]["validation_share"] for run in found.runs] == [0.2, 0.2]


@pytest.mark.parametrize("partition", ["iid", "{name: iid, validation_share: 0}"])
def test_by_validation_without_any(tmp_path: Path, partition: str) -> None:
    assert refused(tmp_path, SPEC.replace("{name: iid, validation_share: 0.2}", partition)) == (
        "specs/a.yaml:11: table.metric: 'best_by_validation' needs validation samples, and the partition 'iid' on "
        "digits holds none back; set its validation_share"
    )


def test_one_run_without_is_enough(tmp_path: Path) -> None:
    text = SPEC.replace("table:", "  overrides:\n    - when: {method: local}\n      set: {partition: iid}\ntable:")
    assert "holds none back" in refused(tmp_path, text)


def test_ids_are_those_from_before(tmp_path: Path) -> None:
    plain = SPEC.replace("metric: best_by_validation", "metric: final")
    without = [plain.replace(", validation_share: 0.2", rest) for rest in ("", ", validation_share: 0")]
    ids = [{run.id for run in resolved(tmp_path, text).runs} for text in (plain, *without)]
    assert ids[1] == ids[2] and not ids[0] & ids[1]


def test_a_single_chosen_round_has_no_deviation(tmp_path: Path) -> None:
    claim = "claims:\n  - {text: Steady., steadier: {method: fedavg}, than: {method: local}}\n"
    assert "a single run has no ± under the metric 'best_by_validation'" in refused(tmp_path, SPEC + claim)


PATIENT = SPEC.replace("best_by_validation", "final").replace(
    "backbone: convnet", "backbone: convnet\n    training: {patience: 3}\n    evaluation: {window: 0, curve_every: 5}"
)


@pytest.mark.parametrize("profile", ["paper", "smoke"])
def test_early_stopping(tmp_path: Path, profile: str) -> None:
    found = resolved(tmp_path, PATIENT, profile)
    assert [(run.training.patience, run.evaluation.window) for run in found.runs] == [(3, 0)] * 2
    assert found.runs[0].evaluation.curve_every > 0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (", validation_share: 0.2", "", "needs validation samples; set the partition's validation_share"),
        (
            "window: 0",
            "window: 9",
            "needs evaluation.window: 0, not 9: rounds before the last are not known beforehand",
        ),
        ("window: 0, ", "", "needs evaluation.window: 0, not 200: rounds before the last are not known beforehand"),
        ("every: 5", "every: 0", "needs evaluation.curve_every: measurements to go by, every so many rounds"),
    ],
)
def test_early_stopping_without_what_it_needs(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in PATIENT
    assert refused(tmp_path, PATIENT.replace(before, after)) == (
        f"specs/a.yaml:7: grid.base.training.patience: {message}"
    )


def test_the_axis_that_asks_for_it_is_named(tmp_path: Path) -> None:
    text = PATIENT.replace(", validation_share: 0.2", "").replace("{patience: 3}", "{rounds: 9}")
    text = text.replace("method: [fedavg, local]", "training.patience: [null, 2]").replace(
        "[method]", "[training.patience]"
    )
    assert "grid.axes.training.patience" in refused(tmp_path, text.replace("base:", "base:\n    method: local"))


def test_without_patience_ids_are_those_from_before(tmp_path: Path) -> None:
    texts = [PATIENT.replace("{patience: 3}", rest) for rest in ("{patience: null}", "{}")]
    assert len({run.id for text in texts for run in resolved(tmp_path, text).runs}) == 2
