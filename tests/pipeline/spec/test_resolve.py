"""From a spec and a profile to runs, a table and trials."""

import json
from pathlib import Path

from support.fake_catalog import BASE, resolved
from support.mistakes import line_of, refuses

from pipeline.spec.resolve import Resolved, smoke_clients

HELD_BACK = BASE.replace("dirichlet", "{name: dirichlet, validation_share: 0.2}")


def records(result: Resolved) -> dict:
    """Return the record of the first run of each cell, by labels."""
    runs = {run.id: run.record for run in result.runs}
    return {tuple(cell.labels.values()): runs[cell.runs[0]] for cell in result.table.cells if cell.runs}


TABLE = """\
title: Accuracy
paper: {name: FedTP, citation: Somebody, table: Table II}
notes: [A note.]
grid:
  base: {dataset: ten, partition: {name: dirichlet, alpha: 0.3}, clients: 50, backbone: {name: vit, depth: 4},
    method: fedavg, training: {rounds: 100}}
  axes:
    method: {Avg: fedavg, FedTP: {name: fedtp, embedding: 16}, Big: {name: fedtp, embedding: 64, clients: 100}}
    dataset: [ten, hundred]
    seed: [0, 1]
  exclude: [{method: Avg, dataset: hundred, seed: 1}, {method: Big, dataset: hundred}, {method: Big, seed: 1}]
  overrides: [{when: {method: FedTP}, set: {training: {lr: 0.1}, method: {server_lr: 1}}}]
table: {caption: Accuracy in percent., rows: [method], columns: [dataset], average_over: [seed], metric: clients,
  decimals: 1, published: t.csv}
claims:
  - {text: t, better: {method: FedTP}, than: others, where: {dataset: ten}, margin: 2}
  - {text: t, steadier: {method: FedTP}, than: {method: Avg}}
  - {text: t, within: 3, over: [method, dataset], where: {method: [Avg, FedTP]}}
"""
CSV = """\
# specs/t.csv\r

# of the paper's, "table 1
dataset,method,mean,std,quoted,note
hundred,Big,40.5,,yes,from elsewhere
ten,FedTP,90.31,0.26,,
ten,Avg,50,1,,
"""


def test_runs_and_their_table(tmp_path: Path) -> None:
    result = resolved(tmp_path, TABLE, t_csv=CSV)
    by_labels = records(result)
    assert len(result.runs) == 8 and len(by_labels) == 5
    fedtp, big = by_labels["FedTP", "hundred"], by_labels["Big", "ten"]
    assert fedtp["dataset"] == {"name": "hundred", "source": "original", "stand_in": None}
    options = {"embedding": 16, "server_lr": 1.0, "normalised": False, "variant": "as_written"}
    assert fedtp["method"] == {"name": "fedtp", **options}
    assert fedtp["evaluation"] == {"every": 5, "window": 200, "curve_every": 50}
    training = {"rounds": 100, "lr": 0.1, "sample_rate": 0.1, "momentum": 0.0, "clip": None, "precision": "fp32"}
    assert training.items() <= fedtp["training"].items() and (fedtp["clients"], fedtp["seed"]) == (50, 0)
    assert (big["clients"], big["method"]["embedding"], big["training"]["lr"]) == (100, 64, 0.01)
    dump = json.loads(json.dumps(result.table.model_dump(exclude_defaults=True)))
    cells = [(*cell["labels"].values(), len(cell["runs"]), cell.get("published")) for cell in dump.pop("cells")]
    assert cells == [
        ("Big", "hundred", 0, {"mean": 40.5, "std": None, "quoted": True, "note": "from elsewhere"}),
        ("Big", "ten", 1, None),
        ("FedTP", "hundred", 2, None),
        ("FedTP", "ten", 2, {"mean": 90.31, "std": 0.26, "quoted": False, "note": ""}),
        ("Avg", "hundred", 1, None),
        ("Avg", "ten", 2, {"mean": 50.0, "std": 1.0, "quoted": False, "note": ""}),
    ]
    assert dump.pop("runs") == {run.id: run.federation_id for run in result.runs}
    partitions = {item["words"]: item["federation"] for item in dump.pop("partitions")}
    assert set(partitions.values()) == {run.federation_id for run in result.runs if run.seed == 0}
    sizes = ("ten, 50", "hundred, 50", "ten, 100")
    assert partitions.keys() == {f"dirichlet (alpha 0.3, min_samples 10) on {size} clients, seed 0" for size in sizes}
    claimed, others = {"method": ["FedTP"]}, {"method": ["Big", "Avg"]}
    assert dump.pop("claims") == [
        {"text": "t", "better": claimed, "than": others, "where": {"dataset": ["ten"]}, "margin": 2.0},
        {"text": "t", "steadier": claimed, "than": {"method": ["Avg"]}},
        {"text": "t", "within": 3.0, "over": ["method", "dataset"], "where": {"method": ["Avg", "FedTP"]}},
    ]
    assert dump == {
        "spec": "a", "title": "Accuracy", "profile": "paper", "notes": ["A note."], "clients": {}, "better": None,
        "paper": {"name": "FedTP", "citation": "Somebody", "table": "Table II"}, "caption": "Accuracy in percent.",
        "rows": ["method"], "columns": ["dataset"], "metric": "clients", "decimals": 1, "figures": None, "analyses": {},
        "labels": {"method": ["Big", "FedTP", "Avg"], "dataset": ["hundred", "ten"]},
    }  # fmt: skip
    refuses(r"t\.csv:5: dataset: '# Avg'", resolved, tmp_path, TABLE, t_csv=CSV.replace("hundred,", "# Avg,"))


def test_published_likelihoods_are_no_percentages(tmp_path: Path) -> None:
    """Two below 1 are no fractions, and one may be above 100; a small calibration error is no fraction either."""
    text = f"""\
grid:
  base: {BASE}
  axes: {{clients: [5, 9], shown: {{accuracy: {{}}, score: {{}}}}}}
  overrides: [{{when: {{}}, set: {{evaluation: {{metrics: [nll, ece]}}}}}}]
table:
  {{rows: [clients], columns: [shown], metric: clients, quantities: {{shown: {{score: {{metric: clients.nll}}}}}},
   published: t.csv}}
"""
    values = "clients,shown,mean,std\n5,score,0.5,\n9,score,0.25,0.1\n"
    table = resolved(tmp_path, text, t_csv=values).table
    assert [cell.published.mean for cell in table.cells if cell.published] == [0.5, 0.25]
    resolved(tmp_path, text, t_csv=values.replace("0.5", "120"))
    resolved(tmp_path, text.replace("clients.nll", "clients.ece"), t_csv=values)
    for wrong, line in (
        (values.replace("score", "accuracy"), "all accuracies are at most 1"),
        (values.replace("9,score,0.25", "9,accuracy,120"), "an accuracy of 120 percent"),
    ):
        refuses(line, resolved, tmp_path, text, t_csv=wrong)


WHOLE = f"""\
grid:
  base: {BASE}
  axes:
    method: {{A: fedavg, B: {{name: fedtp, embedding: 4}}, C: fedtp,
      D: {{name: fedtp, embedding: 2}}, E: {{name: fedtp, embedding: 3}}}}
    clients: [5, 9, 20]
  overrides: [{{when: {{method: [A, B]}}, set: {{training: {{lr: 0.5}}}}}}]
  exclude: [{{method: A, clients: 5}}, {{method: [D, E], clients: [5, 20]}}]
table: {{rows: [method], columns: [clients], published: t.csv, clients: {{clients: {{5: 0, 20: 1}}}}}}
"""
VALUES = "method,clients,mean,std\nC,5,50,\nA,9,60,\nB,5,70,\n"


def test_what_only_leaves_is_as_in_the_whole_table(tmp_path: Path) -> None:
    whole_table = resolved(tmp_path / "whole", WHOLE, t_csv=VALUES).table
    text = "extends: b.yaml\ngrid: {only: {method: [A, D, C], clients: [20, 9]}}\n"
    result = resolved(tmp_path / "part", text, t_csv=VALUES, b_yaml=WHOLE)
    reduced = result.table
    assert reduced.labels == {"method": ["C", "D", "A"], "clients": ["9", "20"]}  # in the order of the whole
    assert whole_table.labels == {"method": ["C", "D", "E", "A", "B"], "clients": ["5", "9", "20"]}
    cells = [cell for cell in whole_table.cells if cell.labels["method"] in "ACD" and cell.labels["clients"] != "5"]
    assert sorted(map(repr, reduced.cells)) == sorted(map(repr, cells)) and reduced.clients == {"clients": {"20": 1}}
    assert {run.id for run in result.runs} == {run for cell in cells for run in cell.runs} and len(result.runs) == 5
    middle = "extends: b.yaml\nabstract: true\ngrid: {only: {method: [A], clients: [9]}}\n"
    for grid, expected in (  # inherited, lifted and added to
        ("", ["A"]),
        ("grid: {only: {method: null}}\n", ["A", "B", "C", "D", "E"]),
        ("grid: {only: {method+: [F]}, axes: {method: {F: {name: fedtp, embedding: 8}}}}\n", ["A", "F"]),
    ):
        text = f"extends: c.yaml\n{grid}table: {{clients: {{clients: null}}}}\n"
        reduced = resolved(tmp_path, text, t_csv=VALUES, b_yaml=WHOLE, c_yaml=middle).table
        assert sorted(reduced.labels["method"]) == expected and reduced.labels["clients"] == ["9"]


KINDS = f"""
grid:
  base: {BASE[:-1]}, analyses: [weights]}}
  axes:
    partition.alpha: [0.1, 1]
    setting:
      few: {{clients: 5, training: {{rounds: 7}}}}
      noisy: {{partition: {{name: dirichlet, min_samples: 3}}}}
      other: {{evaluation: {{every: 2}}}}
      same: {{evaluation: {{every: 3}}}}
    backbone.dropout: {{none: null, some: 0.5}}
    method:
      plain: fedavg
      own: {{name: fedtp, embedding: 16, training: {{lr: 0.05}}, evaluation: {{window: 3}}, seed: 6}}
      as it is: {{backbone: {{depth: 2}}}}
    analyses: {{none: [], both: [weights, {{name: maps, images: 3, clients: [6, 9, 7]}}], base: [weights]}}
  overrides:
    - {{when: {{setting: same}}, set: {{partition: {{name: dirichlet, alpha: 9}}}}}}
    - {{when: {{setting: other}}, set: {{partition: pathological}}}}
    - {{when: {{analyses: base, setting: same}}, set: {{analyses: [{{name: maps, clients: [5]}}]}}}}
"""


def test_kinds_of_axes(tmp_path: Path) -> None:
    result = resolved(tmp_path, KINDS)
    by_labels = records(result)
    assert (result.table.rows, len(result.table.columns), len(by_labels)) == (["partition.alpha"], 4, 144)
    names = ("few", "noisy", "other", "same")
    small, noisy, other, replaced = (by_labels["1", name, "some", "plain", "base"] for name in names)
    undropped = by_labels["1", "few", "none", "plain", "base"]
    assert (small["backbone"]["dropout"], undropped["backbone"]["dropout"]) == (0.5, None)
    assert small["training"] == {**noisy["training"], "rounds": 7} and small["clients"] == 5
    # The option of an axis of its own survives what replaces the partition, as far as that has and does not state it.
    assert noisy["partition"] == {"name": "dirichlet", "alpha": 1.0, "min_samples": 3}
    assert replaced["partition"] == {"name": "dirichlet", "alpha": 9.0, "min_samples": 10}
    assert other["partition"] == {"name": "pathological", "classes_per_client": 2}
    nameless = by_labels["1", "few", "some", "as it is", "base"]
    assert nameless["method"]["name"] == "fedtp"  # of the base
    assert (nameless["backbone"]["depth"], small["backbone"]["depth"]) == (2, 8)
    method, training = {**nameless["method"], "embedding": 16}, {**small["training"], "lr": 0.05}
    settings = {"evaluation": {**small["evaluation"], "window": 3}, "seed": 6}
    assert by_labels["1", "few", "some", "own", "base"] == {**small, "method": method, "training": training, **settings}
    # Lists are replaced.
    maps, weights = {"name": "maps", "clients": [6, 9, 7], "images": 3}, {"name": "weights"}
    analysed = [by_labels["1", "noisy", "some", "plain", name].get("analyses") for name in ("none", "both", "base")]
    assert analysed == [None, [maps, weights], [weights]] and small["analyses"] == [weights]
    assert replaced["analyses"] == [{**maps, "clients": [5], "images": 2}]
    assert result.table.analyses == {"maps": "Maps of attention", "weights": "Learned weights"}
    smoke = records(resolved(tmp_path, KINDS, "smoke"))
    for setting, clients in (("noisy", [6, 7]), ("few", [0])):  # of eight and of five clients
        shrunk = smoke["1", setting, "some", "plain", "both"]["analyses"]
        assert shrunk == [{"name": "maps", "clients": clients, "images": 1}, weights]


def test_smoke_shrinks_a_run_and_what_becomes_equal_runs_once(tmp_path: Path) -> None:
    paper_record = records(resolved(tmp_path, TABLE, t_csv=CSV))["FedTP", "hundred"]
    smoke_records = records(resolved(tmp_path, TABLE, "smoke", t_csv=CSV))
    changes = {
        "dataset": {"stand_in": 1000}, "partition": {"min_samples": 1}, "backbone": {"depth": 1},
        "method": {"embedding": 8}, "evaluation": {"every": 1, "window": 2, "curve_every": 1},
        "training": {"rounds": 3, "sample_rate": 0.25, "local_epochs": 1, "batch_size": 16},
    }  # fmt: skip
    parts = {field: {**paper_record[field], **change} for field, change in changes.items()}
    assert smoke_records["FedTP", "hundred"] == {**paper_record, **parts, "clients": 8, "profile": "smoke"}
    assert smoke_records["FedTP", "ten"]["dataset"]["stand_in"] == 320
    text = f"grid: {{base: {BASE}, axes: {{clients: [50, 100], method: [fedavg, fedtp], seed: [1, 2, 3]}}}}\n"
    text += "table: {rows: [method], average_over: [clients, seed]}"
    assert [len(resolved(tmp_path, text, profile).runs) for profile in ("paper", "smoke")] == [12, 4]
    patient = HELD_BACK[:-1] + ", training: {patience: 3, rounds: 2}, evaluation: {window: 0}}"
    text = f"grid: {{base: {patient}}}".replace("ten", "{name: ten, stand_in: 60}").replace("20,", "3,", 1)
    (run,) = resolved(tmp_path, text, "smoke").runs  # what is smaller already stays
    assert (run.record["dataset"]["stand_in"], run.clients, run.evaluation.window) == (60, 3, 0)
    for clients, per_client, classes in ((100, 2, 10), (35, 3, 7), (300, 20, 200), (11, 4, 11), (20, 5, 100)):
        count = smoke_clients(clients, per_client, classes)
        assert count <= clients and count * per_client % classes == 0


def test_labels_of_clients_share_runs(tmp_path: Path) -> None:
    axes = "axes: {method: [fedavg, fedtp], domain: {A: {}, B: {}, All: {}}, seed: [0, 1]}"
    layout = "table: {rows: [method], columns: [domain], average_over: [seed], clients: {domain: {A: 0, B: 15}}}"
    result = resolved(tmp_path, f"grid: {{base: {BASE}, {axes}}}\n{layout}\n")
    assert len(result.runs) == 4
    assert [(cell.client, len(cell.runs)) for cell in result.table.cells] == [(0, 2), (15, 2), (None, 2)] * 2
    small = resolved(tmp_path, f"grid: {{base: {BASE}, {axes}}}\n{layout}\n", "smoke").table
    assert small.clients == {"domain": {"A": 0, "B": 7}}  # of eight


# --- trials: which combinations are tried, under which seeds, and for which runs --------------------------------------

GRID = f"""\
grid:
  base: {HELD_BACK}
  axes:
    method: {{FedAvg: fedavg, FedTP: fedtp}}
    seed: [0, 3]
table: {{rows: [method], average_over: [seed]}}
"""
TUNE = """\
tune:
  space: {training.lr: [0.01, 0.1, 0.5], training.local_epochs: [1, 2]}
  also:
    - when: {method: FedTP}
      space: {method.server_lr: [0.1, 1.0]}
      trial: {training: {rounds: 3, sample_rate: 0.5}}
  seeds: [7, 8]
  trial: {training: {rounds: 1}}
"""


def test_combinations_are_tried_under_seeds_of_their_own(tmp_path: Path) -> None:
    def tried(text: str, profile: str = "paper") -> tuple:
        result = resolved(tmp_path, text, profile)
        by_method = {name.partition("-")[0]: selection for name, selection in result.selections.items()}
        return result, by_method["fedavg"], by_method["fedtp"]

    result, plain, longer = tried(GRID + TUNE)
    assert [(len(selection.trials), selection.size) for selection in (plain, longer)] == [(6, 6), (12, 12)]
    assert [tuple(trial.chosen.values()) for trial in plain.trials[:3]] == [(0.01, 1), (0.01, 2), (0.1, 1)]
    third = [(run.seed, run.training.lr, run.training.rounds, run.tuned) for run in plain.trials[2].runs]
    assert third == [(7, 0.1, 1, None), (8, 0.1, 1, None)]
    run = longer.trials[1].runs[0]  # as `also` says
    assert (run.options("method")["server_lr"], run.training.rounds, run.training.sample_rate) == (1.0, 3, 0.5)
    assert longer.record["rounds"] == 72
    # One choice for both seeds of a method's runs, which are those of the table.
    final = [run for run in result.runs if run.tuned]
    assert len(final) == 4 and len(result.runs) == 4 + 2 * 18
    assert {run.tuned for run in final if run.method == "fedavg"} == {plain.id}
    assert {run.id for run in final} == set(result.table.runs) == set(result.table.tuned)
    small = tried(GRID + TUNE, "smoke")[2].trials[0].runs[0]
    assert (small.record["profile"], small.training.batch_size) == ("smoke", 16)
    (_, *first), (_, *second) = (tried(f"{GRID}{TUNE}  trials: 5\n") for _ in range(2))  # a random set
    assert [selection.size for selection in first] == [6, 12]
    assert [selection.id for selection in first] == [selection.id for selection in second]
    for selection in first:
        drawn = [tuple(trial.chosen.values()) for trial in selection.trials]
        assert len(set(drawn)) == 5 and drawn == sorted(drawn)  # in the order of the grid, which ascends here


def test_an_axis_may_be_whether_runs_are_tuned(tmp_path: Path) -> None:
    grid = GRID.replace("    seed:", "    way: {as it is: {}, tuned: {}}\n    seed:")
    grid = grid.replace("average", "columns: [way], average")
    result = resolved(tmp_path, f"{grid}tune: {{where: {{way: tuned}}, space: {{training.lr: [0.01, 0.1]}}}}\n")
    tuned = {run.id for run in result.runs if run.tuned}
    for cell in result.table.cells:
        assert len(cell.runs) == 2 and {run in tuned for run in cell.runs} == {cell.labels["way"] == "tuned"}
    assert "way: has no effect" in line_of(resolved, tmp_path, grid)
