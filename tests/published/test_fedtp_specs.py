"""The specs of FedTP's tables and figures: published values against the paper, which runs they share, and settings."""

from __future__ import annotations

import csv
import itertools
import re
from typing import Any

import pytest
from support.paper_specs import SPECS, catalog_of_all, record, resolve_specs, runs_by_labels
from support.papers import PAPERS, occurs

from pflcore.backbones import BACKBONES as REGISTERED
from pflcore.groups import Groups
from pflcore.methods import METHODS
from pflcore.ownership import roles_of
from pipeline.spec.resolve import Resolved
from pipeline.spec.run import options
from pipeline.spec.specs import find_specs, load_spec

DATASETS, PARTITIONS = ["CIFAR-10", "CIFAR-100"], ["Pathological", "Dirichlet"]
SETTINGS = list(itertools.product(DATASETS, PARTITIONS, ["50", "100"]))
ALPHAS = list(itertools.product(DATASETS, ["0.1", "0.3", "0.5", "0.7", "0.9"]))
BACKBONES = list(itertools.product(["FedAvg-T", "FedTP"], DATASETS, PARTITIONS))

# As printed: * is quoted by the paper from another one, — is not printed, and 33.+1 is the paper's misprint.
TABLE2 = """
Local-T | 84.55±0.15 82.21±0.08 69.94±0.13 66.68±0.13 55.91±0.17 49.25±0.11 27.87±0.12 23.34±0.10
FedAvg-T | 50.42±4.22 46.28±4.23 61.85±1.5 59.23±1.93 34.02±0.88 30.20±0.95 38.64±0.22 34.89±0.45
FedProx-T | 47.28±5.09 44.22±3.81 61.00±1.74 60.13±1.71 29.77±1.67 28.92±0.83 37.63±0.35 32.98±0.43
FedPer-T | 89.86±0.89 89.01±0.12 79.41±0.16 77.70±0.14 67.23±0.32 61.72±0.16 37.19±0.18 29.58±0.14
pFedMe-T | 82.26±0.61 77.57±0.52 71.45±0.87 68.13±0.67 53.08±0.72 39.94±0.91 33.59±0.52 25.95±0.64
Vanilla Personalized-T | 86.97±0.07 84.90±0.11 75.14±0.12 72.33±0.16 61.98±0.13 57.60±0.12 37.21±0.11 32.81±0.11
FedTP | 90.31±0.26 88.39±0.14 81.24±0.17 80.27±0.28 68.05±0.24 63.76±0.39 46.35±0.29 43.74±0.39
"""
TABLE3 = """
FedAvg | 47.79±4.48* 44.12±3.10* 56.59±0.91 57.52±1.01 15.71±0.35* 14.59±0.40* 18.16±0.58 20.34±1.34
FedProx | 50.81±2.94* 57.38±1.08* 58.51±0.65 56.46±0.66 19.39±0.63* 21.32±0.71* 19.18±0.30 19.40±1.76
FedPer | 83.39±0.47* 80.99±0.71* 77.99±0.02 74.21±0.07 48.32±1.46* 42.08±0.18* 22.60±0.59 20.06±0.26
pFedMe | 86.09±0.32* 85.23±0.58* 76.29±0.44 74.83±0.28 49.09±1.10* 45.57±1.02* 31.60±0.46 25.43±0.52
FedBN | 87.45±0.95 86.71±0.56 74.63±0.60 75.41±0.37 50.01±0.59 48.37±0.56 28.81±0.50 28.70±0.46
pFedHN | 88.38±0.29* 87.97±0.70* 71.79±0.57 68.36±0.86 59.48±0.67* 53.24±0.31* 34.05±0.41 29.87±0.69
pFedGP | 89.20±0.30* 88.80±0.20* — — 63.30±0.10* 61.30±0.20* — —
FedRoD | 89.87±0.03 89.05±0.04 75.01±0.09 73.99±0.09 56.28±0.14 54.96±1.30 27.45±0.73 28.29±1.53
FedTP | 90.31±0.26 88.39±0.14 81.24±0.17 80.27±0.28 68.05±0.24 63.76±0.39 46.35±0.29 43.74±0.39
"""
TABLE7 = """
FedAvg-T | 40.99±6.20 59.23±1.93 63.69±1.33 65.29±1.12 65.82±0.82 32.72±0.81 34.89±0.45 36.25±1.79 36.99±0.44 37.51±0.33
FedPer-T | 87.45±0.14 77.7±0.14 72.44±0.22 70.11±0.21 71.13±0.14 40.92±0.23 29.58±0.14 27.02±0.11 27.12±0.09 25.29±0.13
pFedHN | 83.07±1.07 68.36±0.86 71.42±0.62 68.19±0.81 67.62±0.75 41.37±0.50 29.87±0.69 34.55±0.72 34.17±0.65 33.75±0.58
FedBN | 84.93±0.53 75.41±0.37 71.79±0.63 69.57±0.56 68.70±0.47 33.+1±0.04 28.70±0.46 26.07±0.45 26.13±0.35 25.08±0.39
FedTP | 87.67±0.15 80.27±0.28 75.75±0.26 73.16±0.25 72.12±0.27 48.27±0.26 41.98±0.22 38.83±0.23 38.06±0.31 38.06±0.22
"""
TABLE8 = """
1 | 36.40±5.48 49.38±2.60 23.05±1.03 27.02±0.44 85.15±0.17 72.56±0.24 59.02±0.30 34.97±0.23
2 | 46.58±4.11 55.82±2.31 27.58±1.04 32.92±0.51 88.42±0.17 77.04±0.23 64.40±0.22 41.20±0.27
4 | 50.21±4.18 60.19±1.75 31.65±0.85 36.23±0.37 89.58±0.12 78.86±0.26 66.35±0.21 43.90±0.26
6 | 49.75±4.12 61.34±1.48 31.74±0.73 36.15±0.32 89.95±0.15 80.00±0.34 66.51±0.35 43.69±0.17
8 | 50.42±4.22 61.85±1.52 34.02±0.88 38.64±0.22 90.31±0.26 81.24±0.17 68.05±0.24 46.35±0.29
10 | 46.73±4.43 62.17±1.57 33.46±0.82 37.52±0.21 89.98±0.26 82.02±0.21 69.14±0.44 45.42±0.26
"""
PRINTED = {
    "table2": (TABLE2, SETTINGS),
    "table3": (TABLE3, SETTINGS),
    "table7": (TABLE7, ALPHAS),
    "table8": (TABLE8, BACKBONES),
}
RUNS = {
    "table2": 56, "table3": 72, "table4": 14, "table4_last": 14, "table5": 16, "table6": 16, "table7": 50, "table8": 48,
    "fig1": 3, "fig4": 7, "fig5": 5, "fig6": 5, "fig8": 5, "fig9": 1, "fig10": 30, "fig10_released": 30, "fig11": 10,
    "v1_fig3": 8, "v1_fig10a": 10, "v1_fig10b": 10, "backbones": 56, "code_settings": 40,
    "table3_jpeg": 36, "table3_settings": 48, "table3_partition": 24, "table3_text": 20,
}  # fmt: skip
ONCE = {"table4_last": "table4", "fig1": "fig6", "fig4": "table2"}  # specs all of whose runs are another's
FIFTY = list(itertools.product(DATASETS, PARTITIONS))


@pytest.fixture(scope="module")
def tables() -> dict[str, Resolved]:
    return resolve_specs("fedtp", RUNS)


@pytest.mark.parametrize("name", PRINTED)
def test_published_values_are_the_printed_ones(name: str, tables: dict[str, Resolved]) -> None:
    text, columns = PRINTED[name]
    printed = {}
    for line in text.strip().splitlines():
        row, _, values = line.partition(" | ")
        for column, value in zip(columns, values.split(), strict=True):
            if value not in ("—", "33.+1±0.04"):
                mean, std = value.rstrip("*").split("±")
                printed[row, *column] = (float(mean), float(std), value.endswith("*"))
    table = tables[name].table
    assert table is not None
    assert printed == {
        tuple(cell.labels.values()): (cell.published.mean, cell.published.std, cell.published.quoted)
        for cell in table.cells
        if cell.published and cell.published.mean is not None
    }


def test_runs_are_shared(tables: dict[str, Resolved]) -> None:
    table2, table3, table7, table8 = (runs_by_labels(tables[name]) for name in PRINTED)
    assert len({run.id for name in PRINTED for run in tables[name].runs}) == 200
    for dataset, partition, clients in SETTINGS:
        setting = ("FedTP", dataset, partition, clients)
        assert table2[setting] == table3[setting]
    for dataset in DATASETS:
        for method in ("FedAvg-T", "FedPer-T", "FedTP"):
            assert table7[method, dataset, "0.3"] == table2[method, dataset, "Dirichlet", "100"]
        for method in ("pFedHN", "FedBN"):
            assert table7[method, dataset, "0.3"] == table3[method, dataset, "Dirichlet", "100"]
    for method, dataset, partition in BACKBONES:
        assert table8["8", method, dataset, partition] == table2[method, dataset, partition, "50"]


BASE: dict[str, Any] = {"also_personal": [], "knn": 0.0, "neighbours": 10}
COMMON = {"test_share": None, "test_draw": None, "train_limit": None, "novel_share": 0.0}


def test_the_runs_are_the_paper_s(tables: dict[str, Resolved]) -> None:
    run = record(tables["table2"], "FedTP", "CIFAR-10", "Dirichlet", "100")
    assert run == {
        "dataset": {"name": "cifar10", "source": "official", "stand_in": None},
        "partition": {
            "name": "dirichlet", "alpha": 0.3, "min_samples": 10, "sizes": "balanced", **COMMON,
        },
        "clients": 100,
        "seed": 0,
        "backbone": {
            "name": "tiny_vit", "depth": 8, "dim": 128, "heads": 8, "head_dim": 64, "mlp_dim": 256, "patch": 4,
            "dropout": 0.1,
        },
        "method": {
            "name": "fedtp", "embedding": 32, "hidden": 150, "layers": 4, "server_lr": 0.01, "server_momentum": 0.9,
            "server_weight_decay": 0.001, "server_clip": None, "generated_part": "attention.qkv", **BASE,
        },
        "training": {
            "rounds": 1500, "sample_rate": 0.05, "local_epochs": 1, "local_steps": None, "batch_size": 64, "lr": 0.01,
            "momentum": 0.9, "weight_decay": 1e-5, "clip": None, "precision": "fp32", "save_weights": False,
        },
        "evaluation": {"every": 5, "window": 200, "curve_every": 50},
        "profile": "paper",
    }  # fmt: skip
    hundred = record(tables["table2"], "FedTP", "CIFAR-100", "Dirichlet", "50")["partition"]
    assert (hundred["name"], hundred["alpha"], hundred["beta"]) == ("pachinko", 0.3, 10.0)
    assert record(tables["table7"], "FedBN", "CIFAR-100", "0.9")["partition"]["alpha"] == 0.9
    fedbn = record(tables["table3"], "FedBN", "CIFAR-100", "Pathological", "100")
    assert (fedbn["backbone"]["name"], fedbn["backbone"]["channels"]) == ("lenet_bn", [16, 32])
    assert fedbn["method"]["averaging"] == "samples"  # as in FedTP's code, and not in that of FedBN
    assert (fedbn["partition"]["classes_per_client"], fedbn["training"]["sample_rate"]) == (10, 0.05)
    assert record(tables["table3"], "pFedHN", "CIFAR-10", "Dirichlet", "100")["training"]["rounds"] == 5000
    for dataset, steps in (("CIFAR-10", 3), ("CIFAR-100", 1)):  # as in the scripts of its authors
        settings = record(tables["table3"], "pFedGP", dataset, "Pathological", "100")["training"]
        own = ("rounds", "sample_rate", "local_steps", "lr", "momentum", "weight_decay", "clip")
        assert tuple(settings[name] for name in own) == (1000, 0.05, steps, 0.05, 0.9, 0.001, 50)
    convnet = record(tables["table3"], "FedPer", "CIFAR-10", "Pathological", "50")
    assert convnet["backbone"]["name"] == "convnet"
    assert convnet["partition"] == {"name": "pathological", "classes_per_client": 2, "variant": "as_written", **COMMON}
    assert (convnet["clients"], convnet["training"]["sample_rate"]) == (50, 0.1)


def test_the_copy_in_jpeg_differs_in_nothing_but_the_images(tables: dict[str, Resolved]) -> None:
    copy, original = (runs_by_labels(tables[name]) for name in ("table3_jpeg", "table3"))
    assert copy.keys() == {labels for labels in original if labels[1] == "CIFAR-10"}
    for labels in copy:
        run, expected = (record(tables[name], *labels) for name in ("table3_jpeg", "table3"))
        assert {**run, "dataset": {**run["dataset"], "source": "official"}} == expected
        assert run["dataset"]["source"] == "parquet"
    published = [
        {tuple(cell.labels.values()): cell.published for cell in tables[name].table.cells if cell.published}
        for name in ("table3_jpeg", "table3")
    ]
    assert published[0] == {labels: value for labels, value in published[1].items() if labels[1] == "CIFAR-10"}


def test_table_3_with_other_settings_has_its_runs_and_those_of_the_code(tables: dict[str, Resolved]) -> None:
    texts = {"local_epochs": 5, "momentum": 0.0, "weight_decay": 0.0}
    others = {
        "one epoch": texts | {"local_epochs": 1},
        "momentum": texts | {"momentum": 0.9, "weight_decay": 1e-5},
        "the code's commands": {"local_epochs": 1, "momentum": 0.9, "weight_decay": 1e-5},
    }
    cells, table3 = (runs_by_labels(tables[name]) for name in ("table3_settings", "table3_jpeg"))
    for method, partition, settings in cells:
        if settings == "the code's commands" and method != "FedBN (code's)":
            assert cells[method, partition, settings] == table3[method, "CIFAR-10", partition, "100"]
        elif settings in others:
            training = record(tables["table3_settings"], method, partition, settings)["training"]
            assert training | others[settings] == training
            assert training | texts == record(tables["table3_settings"], method, partition, "the text's")["training"]


def test_table_3_under_other_partitions_differs_in_the_seed_or_in_alpha_alone(tables: dict[str, Resolved]) -> None:
    cells, settings = (runs_by_labels(tables[name]) for name in ("table3_partition", "table3_settings"))
    others = {"α = 0.3": {}, "α = 0.3, another seed": {"seed": 1}, "α = 0.5": {"alpha": 0.5}}
    for method, setting, draw in cells:
        first = record(tables["table3_settings"], method, "Dirichlet", setting)
        run = record(tables["table3_partition"], method, setting, draw)
        assert (first["seed"], first["partition"]["alpha"]) == (0, 0.3)
        assert run["seed"] == others[draw].get("seed", 0)
        assert run["partition"] == first["partition"] | {"alpha": others[draw].get("alpha", 0.3)}
        assert all(run[part] == first[part] for part in ("method", "backbone", "training", "dataset", "clients"))
        if draw == "α = 0.3":
            assert cells[method, setting, draw] == settings[method, "Dirichlet", setting]


def test_fedbn_of_the_code_averages_statistics_and_keeps_weights_and_biases(tables: dict[str, Resolved]) -> None:
    papers, codes = (
        record(tables["table3_settings"], method, "Dirichlet", "the text's") for method in ("FedBN", "FedBN (code's)")
    )
    assert papers["backbone"] == codes["backbone"] and papers["training"] == codes["training"]
    assert papers["method"]["averaging"] == "samples" and codes["method"].get("averaging") is None
    backbone = REGISTERED.create(codes["backbone"]["name"], **options(codes["backbone"]))
    method = METHODS.create(codes["method"]["name"], **options(codes["method"]))
    groups = Groups.assign(backbone.build((3, 32, 32), 10), backbone.groups)
    roles = roles_of(method, groups)
    assert roles.personal == groups.select(["norm"]) & groups.parameters and len(roles.personal) == 8


def test_every_spec_is_looked_at(tables: dict[str, Resolved]) -> None:
    names = [name for name in find_specs(SPECS) if name.startswith("fedtp/")]
    specs = {name: load_spec(SPECS / f"{name}.yaml", SPECS, catalog_of_all()) for name in names}
    assert {f"fedtp/{name}" for name in tables} == {name for name, spec in specs.items() if not spec.abstract}
    assert {name: len(resolved.runs) for name, resolved in tables.items()} == RUNS
    distinct = {run.id for resolved in tables.values() for run in resolved.runs}
    assert len(distinct) == 470


def test_figures_share_runs_with_tables(tables: dict[str, Resolved]) -> None:
    ids = {name: {run.id for run in resolved.runs} for name, resolved in tables.items()}
    assert all(ids[name] <= ids[other] for name, other in ONCE.items())
    assert ids["backbones"] <= ids["table2"] | ids["table3"]
    assert len(ids["v1_fig3"] & ids["fig8"]) == 4
    cells = {name: runs_by_labels(resolved) for name, resolved in tables.items()}
    table2 = cells["table2"]
    for dataset, partition in FIFTY:
        fedtp = table2["FedTP", dataset, partition, "50"]
        assert fedtp == cells["table5"]["Self-attention (FedTP)", dataset, partition]
        assert fedtp == cells["code_settings"]["as in the tables", "FedTP", dataset, partition]
        assert cells["table6"]["FedTP", dataset, partition] == table2["FedTP", dataset, partition, "100"]
    for partition in PARTITIONS:
        fedtp = table2["FedTP", "CIFAR-10", partition, "50"]
        assert fedtp == cells["v1_fig10a"]["32", partition] == cells["v1_fig10b"]["150", partition]
    for method in ("FedAvg-T", "FedTP"):
        assert cells["fig11"][method, "0.05"] == table2[method, "CIFAR-100", "Dirichlet", "100"]
    # A model without mask is what the paper's FedTP is.
    assert cells["table4"]["FedTP", "as published"] == cells["table4"]["FedTP", "unmasked Transformer"]


@pytest.mark.skipif(PAPERS is None, reason="the papers as text are not beside this checkout")
@pytest.mark.parametrize("name", ["table2", "table3", "table4", "table5", "table6", "table7", "table8"])
def test_published_values_are_printed(name: str) -> None:
    """Each value, and the values of a row one after the other."""
    assert PAPERS is not None
    paper, published = PAPERS / "fedtp-v2.txt", SPECS / f"fedtp/{name}.csv"
    assert occurs(paper, published) == []
    lines: dict[str, list[str]] = {}
    with published.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            printed = f"{row['mean']}±{row['std']}" if row["std"] else row["mean"]
            label = "Test accuracy" if name == "table4" else next(iter(row.values()))
            lines.setdefault(label, []).append(printed + ("*" if row["quoted"] else ""))
    text = paper.read_text(encoding="utf-8")
    for label, values in lines.items():
        row_ = rf"^{re.escape(label)}( \(ours\))?( \[\d+\])? {re.escape(' '.join(values))}$"
        assert re.search(row_, text, re.MULTILINE), (name, label)


def test_the_runs_of_figures_are_the_paper_s(tables: dict[str, Resolved]) -> None:
    text = record(tables["table4"], "FedTP", "causal Transformer")
    assert (text["dataset"]["chunk_len"], text["partition"]["name"], text["clients"]) == (5, "natural", 683)
    assert (text["backbone"]["depth"], text["backbone"]["mlp_dim"], text["method"]["embedding"]) == (2, 256, 32)
    training = {"rounds": 300, "sample_rate": 0.1, "local_epochs": 5, "batch_size": 64, "lr": 0.01, "momentum": 0.0}
    assert {name: text["training"][name] for name in training} == training
    lstm = record(tables["table4"], "FedPer", "as published")["backbone"]
    assert (lstm["name"], lstm["layers"], lstm["hidden"]) == ("lstm", 2, 256)
    assert record(tables["table4"], "FedTP", "as published")["backbone"]["attention_mask"] == "none"
    parts = {run.record["method"]["generated_part"] for run in tables["table5"].runs}
    assert parts == {"attention.qkv", "mlp", "norm", "encoder"}
    memory = record(tables["table6"], "FedTP+KNN", "CIFAR-10", "Dirichlet")
    assert (memory["method"]["knn"], memory["method"]["neighbours"]) == (0.6, 10)
    assert (memory["clients"], memory["training"]["sample_rate"]) == (100, 0.05)
    head = record(tables["table6"], "FedTP+FedPer", "CIFAR-100", "Pathological")
    assert (head["method"]["also_personal"], head["partition"]["classes_per_client"]) == (["head"], 10)
    for name in ("fig1", "fig5", "fig6"):
        for run in tables[name].runs:
            assert run.record["analyses"] == [{"name": "rollout", "clients": [0, 4, 5, 7, 11, 26, 49], "images": 1}]
            assert (run.record["clients"], run.record["backbone"]["depth"]) == (50, 8)
    novel = record(tables["fig8"], "FedTP", "CIFAR-100")
    assert (novel["partition"]["name"], novel["partition"]["novel_share"]) == ("pachinko", 0.2)
    assert novel["analyses"] == [
        {"name": "adaptation", "parts": ["embedding", "hypernetwork"], "epochs": 10, "lr": 0.01}
    ]
    assert novel["method"]["embedding"] == record(tables["fig8"], "pFedHN", "CIFAR-100")["method"]["embedding"] == 32
    assert record(tables["v1_fig3"], "FedRoD", "CIFAR-10")["partition"]["name"] == "dirichlet"
    (coarse,) = tables["fig9"].runs
    assert (coarse.record["partition"]["name"], coarse.record["clients"]) == ("coarse_classes", 100)
    assert coarse.record["analyses"] == [{"name": "embeddings"}]
    for name, variant in (("fig10", "as_written"), ("fig10_released", "as_released")):
        noisy = record(tables[name], "FedTP", "15")
        assert (noisy["partition"]["sigma_max"], noisy["partition"]["variant"]) == (15.0, variant)
        assert (noisy["clients"], noisy["training"]["sample_rate"], noisy["training"]["rounds"]) == (10, 0.5, 1500)
    code = record(tables["code_settings"], "the code's commands", "FedTP", "CIFAR-10", "Dirichlet")
    assert (code["backbone"]["depth"], code["method"]["embedding"]) == (6, 128)
    assert (code["training"]["momentum"], code["training"]["local_epochs"]) == (0.9, 1)
