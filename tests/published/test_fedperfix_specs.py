"""The specs of FedPerfix's tables and figures: what they run, what they share, and values that the paper prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paper_specs import record, resolve_specs, runs_by_labels

from pflcore.settings import Evaluation, Training
from pipeline.report.frame import collect_frame
from pipeline.report.table.cells import collect_cells
from pipeline.spec.resolve import Resolved
from pipeline.spec.table import ResolvedTable

RUNS = {
    "table1": 13, "table2": 27, "table2_resources": 9, "table3": 15, "table4": 20, "table5": 15, "table6": 5, "fig3": 9,
    "variants": 19, "sizes": 2,
}  # fmt: skip
METHODS = ["FedAvg", "Local", "APFL", "Per-FedAVG", "FedBN", "FedBABU", "FedRep", "Vanilla Attention", "FedPerfix"]
SWEPT = ["FedAvg", "Local", "APFL", "FedRep", "FedPerfix"]
LAYERS = [
    "All Local", "All Global", "Classification Head", "Patch Embedding", "Position Embedding", "LayerNorm",
    "Self-attention", "MLP",
]  # fmt: skip


@pytest.fixture(scope="module")
def tables() -> dict[str, Resolved]:
    return resolve_specs("fedperfix", RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_every_published_value_has_a_run(name: str, tables: dict[str, Resolved]) -> None:
    table = tables[name].table
    assert table is not None
    assert len(tables[name].runs) == RUNS[name]
    printed = [cell for cell in table.cells if cell.published]
    assert all(cell.runs for cell in printed)
    if name not in ("fig3", "variants"):
        assert len(printed) == len(runs_by_labels(tables[name]))


def test_runs_are_shared(tables: dict[str, Resolved]) -> None:
    runs = {name: runs_by_labels(resolved) for name, resolved in tables.items()}
    assert len({run.id for resolved in tables.values() for run in resolved.runs}) == 81
    main = {method: runs["table2"][method, "CIFAR-100"] for method in METHODS}
    assert {method: runs["fig3"][method,] for method in METHODS} == main
    assert {method: runs["table2_resources"][method, "Storage"] for method in METHODS} == main
    same = {
        ("All Local", "Stand-alone"): "Local",
        ("All Global", "Stand-alone"): "FedAvg",
        ("Classification Head", "Stand-alone"): "FedRep",
        ("LayerNorm", "Stand-alone"): "FedBN",
        ("Self-attention", "Combined"): "Vanilla Attention",
    }
    assert {at: runs["table1"][at] for at in same} == {at: main[method] for at, method in same.items()}
    for method in METHODS:
        if method != "Vanilla Attention":
            assert runs["table3"][method, "ViT-Small"] == main[method]
    for method in SWEPT:
        assert runs["table4"][method, "N = 64", "r = 12.5%"] == main[method]
        assert runs["table5"][method, "ViT-Small"] == main[method]
    assert runs["table6"]["FedPerfix",] == main["FedPerfix"]
    variants = runs["variants"]
    assert variants["FedPerfix: added prefixes",] == main["FedPerfix"]
    assert variants["Adapters: one per block",] == runs["table6"]["Adapters",]
    for method, label in {"APFL": "PFLlib's", "FedBABU": "one step of all", "FedRep": "jointly"}.items():
        assert variants[f"{method}: {label}",] == main[method]


def test_overall_is_the_mean_of_stand_alone_and_combined(tables: dict[str, Resolved]) -> None:
    runs = runs_by_labels(tables["table1"])
    table = tables["table1"].table
    assert table is not None
    printed = {tuple(cell.labels.values()): cell.published.mean for cell in table.cells if cell.published}
    for layer in LAYERS[3:]:
        assert runs[layer, "Overall"] == [*runs[layer, "Stand-alone"], *runs[layer, "Combined"]]
        alone, combined, overall = (printed[layer, kind] for kind in ("Stand-alone", "Combined", "Overall"))
        assert alone is not None
        assert combined is not None
        assert overall == pytest.approx((alone + combined) / 2, abs=0.0101)


NONE = {"also_personal": [], "knn": 0.0, "neighbours": 10}


def test_the_runs_are_the_papers(tables: dict[str, Resolved]) -> None:
    run = record(tables["table2"], "FedPerfix", "CIFAR-100")
    assert run["method"] == {"name": "fedperfix", "mode": "add", "width": 256, "scale": 1.5, **NONE}
    assert run["backbone"] == {"name": "vit", "size": "small", "patch": 16, "depth": 12}
    assert (run["dataset"]["size"], run["dataset"]["normalise"], run["seed"]) == (224, "half", 0)
    training, evaluation = Training(**run["training"]), Evaluation(window=run["evaluation"]["window"])
    assert (training.rounds, training.local_epochs, training.batch_size, training.lr) == (50, 10, 64, 0.01)
    assert (training.momentum, training.weight_decay) == (0.0, 0.0)
    assert [round_ for round_ in range(1, 51) if evaluation.in_window(round_, 50)] == [50]
    settings = {
        dataset: record(tables["table2"], "FedPerfix", dataset)
        for dataset in ("CIFAR-100", "OrganAMNIST", "Office-Home")
    }
    assert {
        dataset: (
            run["clients"], Training(**run["training"]).cohort_size(run["clients"]), run["partition"]["name"],
            run["partition"]["alpha"], run["partition"]["min_samples"], run["partition"]["test_share"],
            run["partition"]["test_draw"],
        )
        for dataset, run in settings.items()
    } == {
        "CIFAR-100": (64, 8, "dirichlet", 0.1, 256, 0.25, None),
        "OrganAMNIST": (64, 8, "dirichlet", 0.5, 256, 0.25, None),
        "Office-Home": (16, 4, "domain_dirichlet", 1.0, 134, 0.15, "stratified"),
    }  # fmt: skip
    assert (settings["OrganAMNIST"]["dataset"]["size"], settings["OrganAMNIST"]["dataset"]["channels"]) == (224, 3)
    maml = record(tables["table3"], "Per-FedAVG", "ResNet50")
    assert (maml["training"]["lr"], maml["training"]["batch_size"], maml["backbone"]["name"]) == (
        0.001,
        128,
        "resnet50",
    )
    babu = record(tables["table2"], "FedBABU", "CIFAR-100")["method"]
    assert (babu["finetune_parts"], babu["finetune_steps"]) == ("all", 1)
    apfl = record(tables["table2"], "APFL", "Office-Home")["method"]
    assert (apfl["alpha"], apfl["variant"]) == (0.25, "as_released")
    assert record(tables["table2"], "Local", "CIFAR-100")["method"]["schedule"] == "when_sampled"
    attention = record(tables["table1"], "Self-attention", "Combined")["method"]
    assert (attention["groups"], attention["also_personal"]) == (["attention"], ["head"])


@pytest.mark.matrix
def test_printed_parameters_are_those_of_a_thousand_classes_in_units_of_two_to_the_twenty(
    tables: dict[str, Resolved], tmp_path: Path
) -> None:
    table = tables["table2_resources"].table
    assert table is not None and table.counted
    runs = {run.id: run for run in tables["table2_resources"].runs}
    cells = {
        tuple(cell.labels.values()): cell
        for cell in collect_cells(uncostly(table), collect_frame(uncostly(table), runs, tmp_path))
    }
    more = (1000 - 100) * (384 + 1)  # of the head, a weight per feature and a bias for each further class
    heads = {"FedBABU": 0, "FedRep": 0, "Vanilla Attention": 0, "FedPerfix": 0, "Local": 0}  # at home
    for method in METHODS:
        stored, sent = (cells[method, quantity] for quantity in ("Storage", "Communication"))
        assert stored.obtained and stored.published and sent.obtained and sent.published
        copies = 2 if method == "APFL" else 1
        as_printed = (
            (stored.obtained.mean + copies * more) / 2**20,
            (sent.obtained.mean + heads.get(method, more)) / 2**20,
        )
        # 42.06M is twice the rounded 21.03M.
        assert as_printed == pytest.approx((stored.published.mean / 1e6, sent.published.mean / 1e6), abs=0.0051)


def uncostly(table: ResolvedTable) -> ResolvedTable:
    """The table without what is counted in seconds."""
    cells = [cell for cell in table.cells if not cell.labels["quantity"].startswith("Computation")]
    return table.model_copy(update={"cells": cells})
