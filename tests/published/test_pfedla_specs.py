"""The specs of pFedLA's (local attention) tables and figures: what they run and share, and what the paper prints."""

from __future__ import annotations

import csv
import re
from functools import partial
from statistics import fmean
from typing import Any

import pytest
from support import paper_specs
from support.paper_specs import SPECS, resolve_specs

from pflcore.datasets import DATASETS
from pflcore.engine.optimizers import learning_rate
from pflcore.settings import Training
from pipeline.spec.resolve import Resolved
from pipeline.spec.run import options

SEEDS = 5
CELLS = {
    "table1": 25, "table3_office31": 25, "table3_officehome": 25, "table3_domainnet": 25,
    "table5": 1, "table6": 25, "fig3": 10, "fig4a": 5, "fig4b": 3, "fig4c": 50,
}  # fmt: skip
COUNTED = {"table2": 5, "table4": 5}
"""Tables of parameters, which have one seed since nothing is trained for them."""
NO_RUNS = ("client", "domain", "kind", "layer", "quantity")
"""Axes along which cells show several numbers of the same runs."""
runs_by_labels = partial(paper_specs.runs_by_labels, without=NO_RUNS)
record = partial(paper_specs.record, without=NO_RUNS)
HOSTS = ["FedAvg", "FedProx", "FedBN", "pFedMe", "Ditto"]
KINDS = {
    "without": "none", "pFedLA_s + SE": "se", "pFedLA_s + ECA": "eca", "pFedLA_s + CA": "ca", "pFedLA_h": "hybrid",
}  # fmt: skip
DOMAINS = {
    "table1": ["MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M"],
    "table3_office31": ["Amazon", "DSLR", "Webcam"],
    "table3_officehome": ["Art", "Clipart", "Product", "Real-World"],
    "table3_domainnet": ["Clipart", "Infograph", "Painting", "Quickdraw", "Real", "Sketch"],
}


@pytest.fixture(scope="module")
def tables() -> dict[str, Resolved]:
    return resolve_specs("pfedla", [*CELLS, *COUNTED])


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_has_five_seeds(name: str, tables: dict[str, Resolved]) -> None:
    cells = runs_by_labels(tables[name])
    assert len(cells) == CELLS[name]
    assert {len(runs) for runs in cells.values()} == {SEEDS}
    assert len(tables[name].runs) == CELLS[name] * SEEDS
    assert {run.record["method"]["averaging"] for run in tables[name].runs} == {"uniform"}


@pytest.mark.parametrize("name", [*DOMAINS, "fig3", "table5"])
def test_columns_are_of_the_clients_with_these_domains(name: str, tables: dict[str, Resolved]) -> None:
    table = tables[name].table
    assert table is not None
    labels = {"fig3": ("FedBN", "without"), "table5": ()}.get(name, ("FedBN", "pFedLA_h"))
    dataset = DATASETS.get(record(tables[name], *labels)["dataset"]["name"])
    names = [label.replace(" ", "-").casefold() for label in dataset.attributes["domain"]]
    clients = {label.casefold(): client for label, client in table.clients["domain"].items()}
    assert clients == {label: client for client, label in enumerate(names)}
    average = [] if name == "table5" else ["Average"]
    assert table.labels["domain"] == [*table.clients["domain"], *average]
    assert {cell.client for cell in table.cells if cell.labels["domain"] == "Average"} <= {None}


def test_runs_are_shared(tables: dict[str, Resolved]) -> None:
    runs = {name: runs_by_labels(resolved) for name, resolved in tables.items()}
    assert len({run.id for resolved in tables.values() for run in resolved.runs}) == 705 + 125
    for name, whole_name in {"table2": "table1", "table4": "table3_office31"}.items():
        assert {labels: set(some) for labels, some in runs[name].items()} == {
            labels: {run.id for run in tables[whole_name].runs if run.id in every and run.seed == 0}
            for (host, *labels_), every in runs[whole_name].items()
            if host == "FedAvg" and (labels := tuple(labels_))
        }
    for name in ("fig3", "fig4a"):
        assert runs[name].items() <= runs["table3_office31"].items()
    whole = {labels[:2]: runs for labels, runs in runs["fig4c"].items() if labels[2] == "1.0"}
    assert whole == runs["fig3"]
    shared = runs["fig4b"].pop(("FedProx", "non-local SE"))
    assert runs["fig4b"].items() <= runs["table3_office31"].items()
    assert not set(shared) & {run.id for run in tables["table3_office31"].runs}
    assert runs["table5"][()] == runs["table3_officehome"]["FedBN", "pFedLA_h"]


@pytest.mark.parametrize("name", DOMAINS)
def test_attention_is_local_in_every_host(name: str, tables: dict[str, Resolved]) -> None:
    for host in HOSTS:
        for label, kind in KINDS.items():
            run = record(tables[name], host, label)
            assert (run["method"]["name"], run["backbone"]["attention"]) == (host.lower(), kind)
            assert run["method"]["also_personal"] == ([] if kind == "none" else ["local_attention"])
    non_local = record(tables["fig4b"], "FedProx", "non-local SE")
    assert (non_local["backbone"]["attention"], non_local["method"]["also_personal"]) == ("se", [])


@pytest.mark.parametrize(
    ("name", "clients", "rounds", "backbone", "partition"),
    [
        ("table1", 5, 100, ("lenet_bn", 4), (None, None, 743)),
        ("table3_office31", 3, 200, ("alexnet_bn", 16), (0.2, "stratified", None)),
        ("table3_officehome", 4, 200, ("alexnet_bn", 16), (0.2, "stratified", None)),
        ("table3_domainnet", 6, 200, ("alexnet_bn", 16), (None, None, 105)),
    ],
)
def test_the_runs_are_the_papers(
    name: str,
    clients: int,
    rounds: int,
    backbone: tuple[str, int],
    partition: tuple[Any, ...],
    tables: dict[str, Resolved],
) -> None:
    run = record(tables[name], "FedProx", "pFedLA_h")
    training = Training(**run["training"])
    assert (run["clients"], training.rounds, training.local_epochs, training.lr) == (clients, rounds, 1, 0.01)
    assert (training.cohort_size(clients), training.momentum, training.weight_decay) == (clients, 0.0, 0.0)
    assert (run["backbone"]["name"], run["backbone"]["attention_reduction"]) == backbone
    assert run["backbone"]["attention_kernel"] == 3
    dealt = run["partition"]
    assert (dealt["name"], dealt["attribute"]) == ("domains", "domain")
    assert (dealt["test_share"], dealt["test_draw"], dealt["train_limit"]) == partition
    assert record(tables["table5"])["analyses"] == [{"name": "mixing"}]


@pytest.mark.parametrize(
    ("name", "data", "test_sets", "augmented"),
    [
        ("table1", {"name": "digits5", "source": "fedbn"}, 14_000 + 19_858 + 1_860 + 97_791 + 14_000, (0.0, 0.0)),
        (
            "table3_domainnet",
            {"name": "domainnet", "lists": "fedbn", "first": 105, "size": 256},
            526 + 657 + 619 + 1_000 + 1_217 + 554,
            (0.5, 30.0),
        ),
    ],
)
def test_the_data_are_fedbns(
    name: str, data: dict[str, Any], test_sets: int, augmented: tuple[float, float], tables: dict[str, Resolved]
) -> None:
    run = record(tables[name], "FedBN", "without")
    assert {key: run["dataset"][key] for key in data} == data
    chosen = {key: value for key, value in options(run["dataset"]).items() if key != "stand_in"}
    dataset = DATASETS.create(run["dataset"]["name"], **chosen)
    assert (dataset.expected or dataset.about)[1] == test_sets
    training = Training(**run["training"])
    assert (training.augment_flip, training.augment_rotation, training.augment_crop) == (*augmented, 0)


def rows_of(name: str) -> list[dict[str, str]]:
    with (SPECS / f"pfedla/{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("name", DOMAINS)
def test_averages_are_those_of_the_domains_or_marked(name: str) -> None:
    values: dict[tuple[str, str], list[float]] = {}
    for row in rows_of(name):
        at = row["method"], row["attention"]
        if row["domain"] != "Average":
            values.setdefault(at, []).append(float(row["mean"]))
        elif row["misprint"]:
            beside = re.search(r"the mean of the domains beside it is ([0-9.]+)$", row["note"])
            assert beside
            assert float(beside[1]) == pytest.approx(fmean(values[at]), abs=0.0051)
            assert abs(float(row["mean"]) - float(beside[1])) > 0.0101
        else:
            assert float(row["mean"]) == pytest.approx(fmean(values[at]), abs=0.0101)


def test_table_6_is_detection_as_the_paper_trains_it(tables: dict[str, Resolved]) -> None:
    table = tables["table6"].table
    assert table is not None
    clients = [f"Client {number}" for number in range(1, 5)]
    assert table.labels == {"method": HOSTS, "attention": list(KINDS), "client": [*clients, "Average"]}
    assert sum(cell.published is not None for cell in table.cells) == 125
    assert table.clients["client"] == {label: client for client, label in enumerate(clients)}
    for (host, attention), run in ((at, record(tables["table6"], *at)) for at in runs_by_labels(tables["table6"])):
        assert run["dataset"]["name"] == "voc_detection" and run["partition"]["name"] == "iid" and run["clients"] == 4
        assert run["backbone"]["name"] == "mobilenetv2_ssd" and run["backbone"]["attention"] == KINDS[attention]
        assert run["method"]["name"] == host.lower()
        assert run["method"]["also_personal"] == ([] if attention == "without" else ["local_attention"])
        settings = Training(**run["training"])
        assert (settings.rounds, settings.local_steps, settings.batch_size, settings.sample_rate) == (
            100,
            2000,
            24,
            1.0,
        )
        assert (settings.momentum, settings.weight_decay) == (0.9, 4e-5)
        assert learning_rate(settings, 2) == pytest.approx(0.81 * learning_rate(settings, 0))
    values: dict[tuple[str, str], list[float]] = {}
    for row in rows_of("table6"):
        values.setdefault((row["method"], row["attention"]), []).append(float(row["mean"]))
    for *own, average in values.values():
        assert average == pytest.approx(fmean(own), abs=0.0051)
