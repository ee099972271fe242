"""From a spec and a profile to runs and a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_catalog import BASE, CATALOG, resolved

from pflcore.errors import UserError
from pflcore.options import describe_options
from pflcore.settings import Training
from pipeline.spec.catalog import Catalog
from pipeline.spec.fields import Fields
from pipeline.spec.resolve import Resolved
from pipeline.spec.run import Run

TABLE = """\
title: Accuracy
paper: {name: FedTP, citation: Somebody, table: Table II}
notes: [A note.]
grid:
  base:
    dataset: ten
    partition: {name: dirichlet, alpha: 0.3}
    clients: 50
    backbone: {name: vit, depth: 4}
    method: fedavg
    training: {rounds: 100}
  axes:
    method:
      Avg: fedavg
      FedTP: {name: fedtp, embedding: 16}
      Big: {name: fedtp, embedding: 64, clients: 100}
    dataset: [ten, hundred]
    seed: [0, 1]
  exclude:
    - {method: Avg, dataset: hundred, seed: 1}
    - {method: Big, dataset: hundred}
    - {method: Big, seed: 1}
  overrides:
    - when: {method: FedTP}
      set: {training: {lr: 0.1}, method: {server_lr: 1}}
table:
  caption: Accuracy in percent.
  rows: [method]
  columns: [dataset]
  average_over: [seed]
  metric: clients
  decimals: 1
  published: t.csv
claims:
  - text: FedTP beats every other method.
    better: {method: FedTP}
    than: others
    where: {dataset: ten}
    margin: 2
  - {text: Not so., better: {method: Avg}, than: {method: FedTP}}
"""
CSV = """\
dataset,method,mean,std,quoted,note
hundred,Big,40.5,,yes,from elsewhere
ten,FedTP,90.31,0.26,,
ten,Avg,50,1,,
"""


@pytest.fixture
def table(tmp_path: Path) -> Resolved:
    return resolved(tmp_path, TABLE, t_csv=CSV)


def by_label(resolved: Resolved, **labels: str) -> list[Run]:
    assert resolved.table is not None
    runs = {run.id: run for run in resolved.runs}
    (cell,) = [cell for cell in resolved.table.cells if cell.labels == labels]
    return [runs[run] for run in cell.runs]


def test_a_record_has_every_default(table: Resolved, tmp_path: Path) -> None:
    assert len(table.runs) == 8
    first, second = by_label(table, method="FedTP", dataset="hundred")
    assert first.record == {
        "dataset": {"name": "hundred", "source": "original", "stand_in": None},
        "partition": {"name": "dirichlet", "alpha": 0.3, "min_samples": 10},
        "clients": 50,
        "seed": 0,
        "backbone": {"name": "vit", "depth": 4, "dropout": None},
        "method": {
            "name": "fedtp", "embedding": 16, "server_lr": 1.0, "normalised": False, "variant": "as_written",
        },
        "training": {
            "rounds": 100, "sample_rate": 0.1, "local_epochs": 5, "local_steps": None,
            "batch_size": 64, "lr": 0.1, "momentum": 0.0,
            "weight_decay": 0.0, "clip": None, "precision": "fp32", "save_weights": False,
        },
        "evaluation": {"every": 5, "window": 200, "curve_every": 50},
        "profile": "paper",
    }  # fmt: skip
    assert second.record == {**first.record, "seed": 1}
    assert resolved(tmp_path, "abstract: true\ngrid: {base: {seed: 1}}") == Resolved([], None)


def test_axes_overrides_and_exclusion(table: Resolved) -> None:
    (average,) = by_label(table, method="Avg", dataset="hundred")
    assert average.record["seed"] == 0
    assert average.record["training"]["lr"] == 0.01
    (big,) = by_label(table, method="Big", dataset="ten")
    assert (big.record["clients"], big.record["method"]["embedding"]) == (100, 64)
    assert big.record["training"]["lr"] == 0.01  # the override names another label
    assert by_label(table, method="Big", dataset="hundred") == []


def test_the_table(table: Resolved) -> None:
    result = table.table
    assert result is not None
    assert result.labels == {"method": ["Big", "FedTP", "Avg"], "dataset": ["hundred", "ten"]}
    assert [tuple(cell.labels.values()) for cell in result.cells] == [
        (method, dataset) for method in result.labels["method"] for dataset in result.labels["dataset"]
    ]
    assert [len(cell.runs) for cell in result.cells] == [0, 1, 2, 2, 1, 2]
    published = [cell.published.model_dump(exclude_defaults=True) if cell.published else None for cell in result.cells]
    assert published == [
        {"mean": 40.5, "std": None, "quoted": True, "note": "from elsewhere"},
        None,
        None,
        {"mean": 90.31, "std": 0.26, "quoted": False, "note": ""},
        None,
        {"mean": 50.0, "std": 1.0, "quoted": False, "note": ""},
    ]
    dump = json.loads(json.dumps(result.model_dump()))
    assert dump.pop("runs") == {run.id: run.federation_id for run in table.runs}
    words = "dirichlet (alpha 0.3, min_samples 10) on {}, {} clients, seed 0"
    federations = {run.federation_id for run in table.runs if run.record["seed"] == 0}
    shown = {partition["words"]: partition["federation"] for partition in dump.pop("partitions")}
    assert set(shown) == {words.format("ten", 50), words.format("hundred", 50), words.format("ten", 100)}
    assert set(shown.values()) == federations
    first, second = dump.pop("claims")
    assert first["than"] == {"method": ["Big", "Avg"]} and first["margin"] == 2.0 and not second["where"]
    assert dump["paper"] == {"name": "FedTP", "citation": "Somebody", "table": "Table II"}
    told = ("spec", "title", "profile", "notes", "caption", "rows", "columns", "metric", "better", "decimals")
    assert [dump[name] for name in told] == [
        "a", "Accuracy", "paper", ["A note."], "Accuracy in percent.", ["method"], ["dataset"], "clients", "higher", 1,
    ]  # fmt: skip
    assert not any(dump[name] for name in ("clients", "quantities", "tuned", "figures", "analyses", "derived"))


def test_claims_on_groups_of_cells(tmp_path: Path) -> None:
    claims = """
  - {text: t, better: {method: FedTP}, than: others, over: [dataset], margin: 1}
  - {text: t, steadier: {method: FedTP}, than: {method: Avg}}
  - {text: t, steadier: {method: FedTP}, than: {method: Avg}, over: [dataset]}
  - {text: t, within: 2, over: [method, dataset], where: {method: [Avg, FedTP]}}
"""
    table = resolved(tmp_path, TABLE[: TABLE.index("claims:")] + "claims:" + claims, t_csv=CSV).table
    assert table is not None
    ours, theirs = {"method": ["FedTP"]}, {"method": ["Avg"]}
    sides = {"text": "t", "side": ours, "than": theirs, "over": [], "where": {}, "margin": 0.0}
    alone = {"side": {}, "than": {}, "over": ["method", "dataset"], "where": {"method": ["Avg", "FedTP"]}}
    others = {"than": {"method": ["Big", "Avg"]}, "over": ["dataset"]}
    assert [claim.model_dump() for claim in table.claims] == [
        {**sides, "form": "better", **others, "margin": 1.0},
        {**sides, "form": "steadier"},
        {**sides, "form": "steadier", **others, "than": theirs},
        {**sides, "form": "within", **alone, "margin": 2.0},
    ]


@pytest.mark.parametrize("catalog", [CATALOG, Catalog.from_json(CATALOG.to_json())], ids=["fresh", "cached"])
def test_settings_that_came_later_are_in_no_record_at_their_defaults(catalog: Catalog) -> None:
    """Lists among them, whether the catalog has been through JSON or not."""
    later = {option.name for option in describe_options(Training) if option.later}
    assert "milestones" in later and not later & Fields(catalog).validate("training", {"rounds": 3}).keys()
    given = Fields(catalog).validate("training", {"milestones": [2], "schedule": "step", "gamma": 0.5})
    assert later & given.keys() == {"milestones", "schedule", "gamma"}


EQUAL = {
    "training: {lr: 1}": "training: {lr: 1.0}",
    "training: {lr: 1e-2}": "evaluation: {}",
    "partition: {name: dirichlet, alpha: 3}": "partition: {alpha: 3.0, name: dirichlet}",
    "backbone: vit": "backbone: {name: vit, depth: 8, dropout: null}",
    "seed: 0": "clients: 20",
}


@pytest.mark.parametrize("one", EQUAL)
def test_equal_settings_have_equal_ids(tmp_path: Path, one: str) -> None:
    texts = (f"extends: b.yaml\ngrid: {{base: {{{setting}}}}}" for setting in (one, EQUAL[one]))
    ids = [resolved(tmp_path, text, b_yaml=f"grid: {{base: {BASE}}}").runs[0].id for text in texts]
    assert ids[0] == ids[1]


def test_settings_that_contradict_each_other_are_told_where_they_meet(tmp_path: Path) -> None:
    """One part of a spec may rely on another; what a run is made of must agree."""
    axis = "axes: {method: [fedavg], training.momentum: [0.5, 0.9]}"
    text = "extends: b.yaml\ngrid: {base: {training: {nesterov: true}}%s}"
    one, other = resolved(tmp_path, text % f", {axis}", b_yaml=f"grid: {{base: {BASE}}}").runs
    assert one.record["training"]["nesterov"] and one.id != other.id
    with pytest.raises(
        UserError, match=r"\.yaml:\d+: grid\.base\.training\.nesterov: training\.nesterov is a form of momentum"
    ):
        resolved(tmp_path, text % "", b_yaml=f"grid: {{base: {BASE}}}")


def test_kinds_of_axes(tmp_path: Path) -> None:
    text = f"""
grid:
  base: {BASE}
  axes:
    partition.alpha: [0.1, 1]
    setting:
      few: {{clients: 5, training: {{rounds: 7}}}}
      noisy: {{partition: {{name: dirichlet, min_samples: 3}}}}
    backbone.dropout: {{none: null, some: 0.5}}
    training: {{slow: {{lr: 0.001}}}}
"""
    result = resolved(tmp_path, text)
    assert result.table is not None
    assert result.table.rows == ["partition.alpha"]
    assert result.table.columns == ["setting", "backbone.dropout", "training"]
    assert result.table.labels["partition.alpha"] == ["0.1", "1"]
    runs = {run.id: run.record for run in result.runs}
    found = {
        (cell.labels["partition.alpha"], cell.labels["setting"], cell.labels["backbone.dropout"]): runs[cell.runs[0]]
        for cell in result.table.cells
    }
    assert len(found) == len(runs) == 8
    # The option of an axis of its own survives the axis that replaces the partition.
    assert found["1", "noisy", "some"]["partition"] == {"name": "dirichlet", "alpha": 1.0, "min_samples": 3}
    assert found["1", "noisy", "some"]["backbone"]["dropout"] == 0.5
    assert found["0.1", "few", "none"]["backbone"]["dropout"] is None
    assert found["0.1", "few", "none"]["training"] == {**found["0.1", "noisy", "none"]["training"], "rounds": 7}


def test_comments_on_top_of_published_values_are_passed_over(tmp_path: Path) -> None:
    commented = f"# specs/t.csv\r\n\n# of the paper's, \"table 1\n{CSV}"
    assert resolved(tmp_path, TABLE, t_csv=commented) == resolved(tmp_path, TABLE, t_csv=CSV)
    with pytest.raises(UserError, match=r"t\.csv:7: mean: 'x' is not a number"):
        resolved(tmp_path, TABLE, t_csv=commented.replace("50,1", "x,1"))
    with pytest.raises(UserError, match=r"t\.csv:2: dataset: '# Avg'"):  # a label, further down
        resolved(tmp_path, TABLE, t_csv=CSV.replace("hundred,", "# Avg,"))


def test_smoke_shrinks_everything(table: Resolved, tmp_path: Path) -> None:
    result = resolved(tmp_path, TABLE, "smoke", t_csv=CSV)
    assert result.table is not None and result.table.profile == "smoke"
    whole, record = (by_label(one, method="FedTP", dataset="hundred")[0].record for one in (table, result))
    assert record == {
        "dataset": {**whole["dataset"], "stand_in": 1000},
        "partition": {**whole["partition"], "min_samples": 1},
        "clients": 8,
        "seed": 0,
        "backbone": {**whole["backbone"], "depth": 1},
        "method": {**whole["method"], "embedding": 8},
        "training": {**whole["training"], "rounds": 3, "sample_rate": 0.25, "local_epochs": 1, "batch_size": 16},
        "evaluation": {"every": 1, "window": 2, "curve_every": 1},
        "profile": "smoke",
    }
    assert by_label(result, method="FedTP", dataset="ten")[0].record["dataset"]["stand_in"] == 320


ANALYSED = """\
grid:
  base:
    dataset: ten
    partition: dirichlet
    clients: 20
    backbone: vit
    method: fedtp
    analyses: [weights]
  axes:
    seed: [0, 1, 2, 3]
    analyses:
      none: []
      maps: [maps]
      both: [weights, {name: maps, images: 3, clients: [0, 9, 7]}]
      base: [weights]
  overrides:
    - {when: {analyses: base, seed: 1}, set: {analyses: [{name: maps, clients: [5]}]}}
table: {rows: [analyses], columns: [seed]}
"""
MAPS = {"name": "maps", "clients": [0, 1], "images": 2}
WEIGHTS = {"name": "weights"}


def analyses_of(result: Resolved) -> dict[tuple[str, str], Any]:
    assert result.table is not None
    records = {run.id: run.record for run in result.runs}
    cells = {tuple(cell.labels.values()): cell.runs for cell in result.table.cells if cell.runs}
    return {key: records[run].get("analyses") for key, (run,) in cells.items()}


def test_analyses_are_a_list_that_is_replaced(tmp_path: Path) -> None:
    result = resolved(tmp_path, ANALYSED)
    found = analyses_of(result)
    assert found["none", "0"] is None
    assert found["maps", "2"] == [MAPS]
    assert found["both", "1"] == [{"name": "maps", "clients": [0, 9, 7], "images": 3}, WEIGHTS]
    assert found["base", "0"] == [WEIGHTS]
    assert found["base", "1"] == [{**MAPS, "clients": [5]}]
    assert result.table is not None
    assert result.table.analyses == {"maps": "Maps of attention", "weights": "Learned weights"}


def test_a_run_without_analyses_is_what_it_is_without_that_field(tmp_path: Path) -> None:
    plain, empty, first, second = (
        resolved(tmp_path, f"grid: {{base: {BASE[:-1]}{more}}}}}").runs[0].id
        for more in ("", ", analyses: []", ", analyses: [weights, maps]", ", analyses: [{name: maps}, weights]")
    )
    assert plain == empty != first == second


def test_smoke_shrinks_analyses_to_the_clients_that_are_left(tmp_path: Path) -> None:
    found = analyses_of(resolved(tmp_path, ANALYSED, "smoke"))
    assert found["both", "0"] == [{"name": "maps", "clients": [0, 7], "images": 1}, WEIGHTS]
    lost = ANALYSED.replace("clients: [0, 9, 7]", "clients: [9, 8]")
    assert analyses_of(resolved(tmp_path, lost, "smoke"))["both", "0"][0]["clients"] == [0]


def test_what_smoke_makes_equal_is_run_once(tmp_path: Path) -> None:
    text = f"grid: {{base: {BASE}, axes: {{clients: [50, 100], method: [fedavg, fedtp]}}}}\n"
    text += "table: {rows: [method], average_over: [clients]}"
    assert len(resolved(tmp_path, text).runs) == 4
    result = resolved(tmp_path, text, "smoke")
    assert len(result.runs) == 2
    assert result.table is not None
    assert [len(cell.runs) for cell in result.table.cells] == [1, 1]


# Ids: of a run, its federation and its data; what they depend on, and that they never change.

RECORD = {
    "dataset": {"name": "digits", "stand_in": None},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "clients": 10,
    "seed": 0,
    "backbone": {"name": "convnet", "channels": [8, 16]},
    "method": {"name": "fedavg"},
    "training": {"rounds": 40, "lr": 0.1},
    "evaluation": {"every": 1},
    "profile": "paper",
}


def test_ids_never_change() -> None:
    run = Run(RECORD)
    assert run.id == "fedavg-convnet-digits-c70697d7"
    assert run.federation_id == "digits-dirichlet-n10-s0-d5a4b076"
    assert run.data_id == "digits-302ab2f1"
    again = Run(dict(reversed(RECORD.items())))
    assert (again.id, again.federation_id, again.data_id) == (run.id, run.federation_id, run.data_id)


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [
        ("profile", "smoke", {"federation_id", "data_id"}),
        ("method", {"name": "fedprox", "mu": 0.1}, {"federation_id", "data_id"}),
        ("training", {"rounds": 41, "lr": 0.1}, {"federation_id", "data_id"}),
        ("seed", 1, {"data_id"}),
        ("clients", 20, {"data_id"}),
        ("partition", {"name": "dirichlet", "alpha": 1.0}, {"data_id"}),
        ("dataset", {"name": "digits", "stand_in": 8}, set()),
    ],
)
def test_what_ids_depend_on(field: str, value: object, same: set[str]) -> None:
    before, after = Run(RECORD), Run({**RECORD, field: value})
    ids = ("id", "federation_id", "data_id")
    assert {name for name in ids if getattr(before, name) == getattr(after, name)} == same
