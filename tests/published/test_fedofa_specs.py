"""The specs of FedOFA's tables and figures: what they run, what they share, and values that the paper prints."""

from __future__ import annotations

import itertools

import pytest
from support.paper_specs import record, resolve_specs, runs_by_labels
from support.papers import PAPERS

from pflcore.settings import Training
from pipeline.spec.resolve import Resolved

DATASETS, CLIENTS, SEEDS = ["CIFAR-10", "CIFAR-100"], ["10", "50", "100"], 5
FEDERATED = [
    "Local", "FedAvg", "FedProx", "MOON", "FedNova", "LG-FedAvg", "FedBN", "pFedMe", "FedU", "FedPer", "FedROD",
    "FedKD", "FedProto",
]  # fmt: skip
PRUNED = ["p = 70", "p = 80", "p = 90", "p = 95", "p = 99"]
CELLS = {
    "table1": 17 * 6, "table2": 7 * 2, "table2_all": 7 * 2, "table3": 4 * 6, "table_s1": 12 * 3, "table_s2": 2 * 4,
    "fig3": 5 * 6, "fig4": 7, "fig5": 4 * 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def tables() -> dict[str, Resolved]:
    return resolve_specs("fedofa", CELLS)


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_has_five_seeds(name: str, tables: dict[str, Resolved]) -> None:
    cells = runs_by_labels(tables[name])
    assert len(cells) == CELLS[name]
    assert {len(runs) for runs in cells.values()} == {SEEDS}
    assert len(tables[name].runs) == CELLS[name] * SEEDS


def test_runs_are_shared(tables: dict[str, Resolved]) -> None:
    table1, table2, table2_all, table3, fig3, fig4, fig5 = (
        runs_by_labels(tables[name]) for name in ("table1", "table2", "table2_all", "table3", "fig3", "fig4", "fig5")
    )
    assert len({run.id for resolved in tables.values() for run in resolved.runs}) == 1070
    for dataset in DATASETS:
        assert table2["baseline", dataset] == table1["pFedHN", dataset, "100"]
        assert table2["upper bound", dataset] == table1["FedOFA*", dataset, "100"]
        for pruning in ("baseline", "upper bound"):
            assert table2_all[pruning, dataset] == table2[pruning, dataset]
        for pruning in PRUNED:
            assert not set(table2_all[pruning, dataset]) & set(table2[pruning, dataset])
        assert fig5["3", dataset] == table1["FedOFA", dataset, "50"]
    for dataset, clients in itertools.product(DATASETS, CLIENTS):
        assert table3["no attention", dataset, clients] == table1["pFedHN", dataset, clients]
        assert table3["IntraFA and InterFA", dataset, clients] == table1["FedOFA*", dataset, clients]
    for dataset, few in (("CIFAR-10", True), ("CIFAR-100", False)):
        intra, others = ("2", "8") if few else ("8", "2")
        assert fig3[intra, dataset, "IntraFA"] == table3["IntraFA", dataset, "50"]
        assert fig3[others, dataset, "InterFA"] == table3["InterFA", dataset, "50"]
        assert fig3[others, dataset, "TFA"] == table1["FedOFA*", dataset, "50"]
    assert fig4["0.5",] == table1["FedOFA*", "CIFAR-10", "50"]


def test_fedofa_is_the_papers(tables: dict[str, Resolved]) -> None:
    run = record(tables["table1"], "FedOFA", "CIFAR-10", "50")
    assert run["method"] == {
        "name": "fedofa", "kind": "tfa", "heads": 8, "mix": 0.5, "scale": False, "bias": False, "lam": 1e-4,
        "percent": 0.0, "parts": "conv", "embedding": 100, "hidden": 100, "layers": 4, "server_lr": 0.01,
        "server_momentum": 0.9,
        "server_weight_decay": 1e-3, "server_clip": 50.0, "also_personal": [], "knn": 0.0, "neighbours": 10,
    }  # fmt: skip
    training = run["training"]
    assert (training["rounds"], training["local_steps"], training["batch_size"]) == (5000, 50, 64)
    assert (training["lr"], training["momentum"], training["weight_decay"], training["clip"]) == (0.01, 0.0, 0.0, None)
    assert (run["backbone"]["name"], run["backbone"]["channels"]) == ("convnet", [16, 32])
    assert (run["partition"]["name"], run["partition"]["classes_per_client"]) == ("pathological", 2)
    hundred = record(tables["table1"], "FedOFA*", "CIFAR-100", "100")
    assert (hundred["partition"]["classes_per_client"], hundred["method"]["heads"], hundred["method"]["lam"]) == (
        10, 2, 0.0,
    )  # fmt: skip
    streams = {
        (kind, dataset): record(tables["table3"], kind, dataset, "10")["method"]
        for kind, dataset in itertools.product(("IntraFA", "InterFA"), DATASETS)
    }
    assert {key: (method["kind"], method["heads"], method["lam"]) for key, method in streams.items()} == {
        ("IntraFA", "CIFAR-10"): ("intra", 2, 0.0),
        ("IntraFA", "CIFAR-100"): ("intra", 8, 0.0),
        ("InterFA", "CIFAR-10"): ("inter", 8, 0.0),
        ("InterFA", "CIFAR-100"): ("inter", 2, 0.0),
    }
    pruned = record(tables["table2_all"], "p = 95", "CIFAR-100")["method"]
    assert (pruned["percent"], pruned["parts"], pruned["heads"], pruned["lam"]) == (95.0, "all", 2, 0.0)
    baseline = record(tables["table1"], "pFedHN", "CIFAR-10", "50")["method"]
    assert all(run["method"][option] == value for option, value in baseline.items() if option != "name")
    small = record(tables["table_s2"], "baseline", "50")
    assert (small["method"]["embedding"], small["dataset"]["name"], small["clients"]) == (50, "cifar10", 50)
    mnist = record(tables["table_s1"], "FedOFA", "300")
    assert (mnist["dataset"]["name"], mnist["method"]["heads"], mnist["partition"]["classes_per_client"]) == (
        "mnist", 8, 2,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["table1", "table_s1"])
def test_all_methods_have_5000_trainings_of_a_client(name: str, tables: dict[str, Resolved]) -> None:
    cohorts: dict[str, set[int]] = {}
    for labels in runs_by_labels(tables[name]):
        run = record(tables[name], *labels)
        training = Training(**run["training"])
        cohort = training.cohort_size(run["clients"])
        cohorts.setdefault(labels[0], set()).add(cohort)
        assert training.local_steps == 50
        # 300 clients do not divide 5000.
        assert 5000 <= training.rounds * cohort <= 5100
        if labels[0] == "pFedLA":
            assert cohort == run["clients"]
    del cohorts["pFedLA"]
    assert {method: cohort for method, cohort in cohorts.items() if method not in FEDERATED} == {
        method: {1} for method in ("pFedHN", "FedOFA*", "FedOFA") if method in cohorts
    }
    assert all(cohorts[method] == {5} for method in FEDERATED if method in cohorts)


@pytest.mark.skipif(PAPERS is None, reason="no texts of papers beside the checkout")
def test_table3_adds_up_what_the_paper_prints(tables: dict[str, Resolved]) -> None:
    assert PAPERS is not None
    text = (PAPERS / "fedofa.txt").read_text(encoding="utf-8")
    table, full = tables["table3"].table, tables["table1"].table
    assert table is not None
    assert full is not None
    values = {tuple(cell.labels.values()): cell.published.mean for cell in table.cells if cell.published}
    for (method, *setting), mean in values.items():
        base = values["no attention", *setting]
        assert mean is not None
        assert base is not None
        assert (f"{base:.2f}" if method == "no attention" else f"+{mean - base:.2f}") in text
    assert {tuple(setting): mean for (method, *setting), mean in values.items() if method == "IntraFA and InterFA"} == {
        tuple(setting): cell.published.mean
        for cell in full.cells
        for method, *setting in [cell.labels.values()]
        if method == "FedOFA*" and cell.published
    }
