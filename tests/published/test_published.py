"""The specs of papers: published values against what was typed a second time, settings, shared runs, and claims."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from support.paper_specs import SPECS, resolve_spec

from pflcore.datasets import DATASETS
from pflcore.settings import Evaluation, Training
from pipeline.report.claims import Judgement, judge_claims
from pipeline.report.frame import collect_frame
from pipeline.report.table.results import Results
from pipeline.spec.run import options
from pipeline.spec.table import ResolvedTable, TableCell

HERE = Path(__file__).parent
TEXTS = next(HERE.parents[2].glob("*/papers"), None)
"""The papers as text, where a checkout has them beside it."""
NAMES = {"fedofa": "fedofa", "fedperfix": "fedperfix", "pfedla": "pfedla-local-attention", "fedtp": "fedtp-v2"}
SETTINGS = yaml.safe_load((HERE / "settings.yaml").read_text(encoding="utf-8"))
Labels = dict[str, str | list[str]]


@cache
def table(spec: str) -> ResolvedTable:
    found = resolve_spec(spec).table
    assert found is not None
    return found


def cells(spec: str, labels: Labels) -> Iterator[TableCell]:
    """The cells with these labels, or one of several, that have runs."""
    for cell in table(spec).cells:
        if cell.runs and all(
            cell.labels[axis] in ([own] if isinstance(own, str) else own) for axis, own in labels.items()
        ):
            yield cell


def record(spec: str, runs: list[str]) -> dict[str, Any]:
    """What is run under the first seed."""
    return min((run.record for run in resolve_spec(spec).runs if run.id in runs), key=lambda record: record["seed"])


def printed() -> Iterator[tuple[str, str, list[str]]]:
    """Spec, label of the row and values of the file of printed tables."""
    spec = ""
    for line in (HERE / "printed.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            spec = line.strip("[]")
        elif not line.startswith("#"):
            row, _, values = line.partition(" | ")
            yield spec, row, values.split()


def test_published_values_are_the_printed_ones() -> None:
    expected: dict[str, dict[tuple[str, ...], Any]] = {}
    for spec, row, values in printed():
        columns = product(*(table(spec).labels[axis] for axis in table(spec).axes[1:]))
        for column, value in zip(columns, values, strict=True):
            if value != "—":
                mean, std = map(float, value.rstrip("*").split("±"))
                expected.setdefault(spec, {})[row, *column] = (mean, std, value.endswith("*"))
    for spec, values in expected.items():
        assert values == {
            tuple(cell.labels.values()): (cell.published.mean, cell.published.std, cell.published.quoted)
            for cell in table(spec).cells
            if cell.published and cell.published.mean is not None
        }


CSVS = [
    path for paper in NAMES for path in sorted((SPECS / paper).glob("table*.csv")) if path.name != "table4_last.csv"
]


@pytest.mark.skipif(TEXTS is None, reason="the papers as text are not beside this checkout")
@pytest.mark.parametrize("path", CSVS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_published_values_are_in_the_paper(path: Path) -> None:
    assert TEXTS is not None
    text = (TEXTS / f"{NAMES[path.parent.name]}.txt").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if row["mean"]]
    if path.parent.name == "fedofa" and path.stem == "table3":  # which adds up what is printed
        base = {(row["dataset"], row["clients"]): float(row["mean"]) for row in rows if row["method"] == "no attention"}
        more = [float(row["mean"]) - base[row["dataset"], row["clients"]] for row in rows]
        assert all((f"+{one:.2f}" if one else f"{mean:.2f}") in text for one in more for mean in base.values())
        return
    markup = r"[\s$*_{}]*"  # of Markdown, LaTeX and line breaks, between a value and its spread
    for row in rows:
        spread = rf"{markup}(?:±|\\pm){markup}{re.escape(row['std'])}" if row["std"] else ""
        assert re.search(rf"(?<![\d.]){re.escape(row['mean'])}{spread}(?!\d)", text), row


@pytest.mark.parametrize(
    ("spec", "axis", "average"),
    [
        ("fedperfix/table1", "personal", "Overall"),
        *((f"pfedla/{name}", "domain", "Average") for name in ("table1", "table3_office31", "table3_officehome")),
        *(("pfedla/table3_domainnet", "domain", "Average"), ("pfedla/table6", "client", "Average")),
    ],
)
def test_printed_averages_are_those_of_what_is_beside_them_or_marked(spec: str, axis: str, average: str) -> None:
    values: dict[tuple[str, ...], list[float]] = {}
    for row in csv.DictReader((SPECS / f"{spec}.csv").read_text(encoding="utf-8").splitlines()):
        key = tuple(row[name] for name in list(row)[: list(row).index("mean")] if name != axis)
        if row[axis] != average:
            values.setdefault(key, []).append(float(row["mean"]))
        elif row.get("misprint"):
            beside = re.search(r"the mean of the domains beside it is ([0-9.]+)$", row["note"])
            assert beside and float(beside[1]) == pytest.approx(fmean(values[key]), abs=0.0051)
            assert abs(float(row["mean"]) - float(beside[1])) > 0.0101
        else:
            assert float(row["mean"]) == pytest.approx(fmean(values[key]), abs=0.0101), key


@pytest.mark.parametrize(("spec", "labels"), [(spec, labels) for spec, own in SETTINGS.items() for labels in own])
def test_settings_are_the_papers(spec: str, labels: str) -> None:
    (cell,) = (cell for cell in table(spec).cells if ", ".join(cell.labels.values()) == labels)
    run, expected = record(spec, cell.runs), SETTINGS[spec][labels]
    for name, value in expected.items():
        found = {key: run[name].get(key) for key in value} if isinstance(value, dict) else run[name]
        assert found == value, name


MAIN = {"dataset": "CIFAR-100"}
SHARED: list[tuple[str, Labels, str, Labels]] = [
    ("fedtp/table2", {"method": "FedTP"}, "fedtp/table3", {}),
    *(
        (
            "fedtp/table7",
            {"partition.alpha": "0.3", "method": methods},
            f"fedtp/{of}",
            {"partition": "Dirichlet", "clients": "100"},
        )
        for methods, of in ((["FedAvg-T", "FedPer-T", "FedTP"], "table2"), (["pFedHN", "FedBN"], "table3"))
    ),
    ("fedtp/table8", {"backbone.depth": "8"}, "fedtp/table2", {"clients": "50"}),
    (
        "fedtp/table5",
        {"method.generated_part": "Self-attention (FedTP)"},
        "fedtp/table2",
        {"method": "FedTP", "clients": "50"},
    ),
    ("fedtp/code_settings", {"settings": "as in the tables"}, "fedtp/table2", {"clients": "50"}),
    ("fedtp/table6", {"method": "FedTP"}, "fedtp/table2", {"clients": "100"}),
    ("fedtp/v1_fig10a", {"method.embedding": "32"}, "fedtp/v1_fig10b", {"method.hidden": "150"}),
    (
        "fedtp/v1_fig10b",
        {"method.hidden": "150"},
        "fedtp/table2",
        {"method": "FedTP", "dataset": "CIFAR-10", "clients": "50"},
    ),
    (
        "fedtp/fig11",
        {"training.sample_rate": "0.05"},
        "fedtp/table2",
        {**MAIN, "partition": "Dirichlet", "clients": "100"},
    ),
    ("fedtp/fig4", {}, "fedtp/table2", {**MAIN, "partition": "Dirichlet", "clients": "50"}),
    ("fedtp/fig1", {}, "fedtp/fig6", {}),
    ("fedtp/table4_last", {}, "fedtp/table4", {}),
    ("fedtp/table4", {"method": "FedTP", "model": "as published"}, "fedtp/table4", {"model": "unmasked Transformer"}),
    ("fedtp/table3_partition", {"draw": "α = 0.3"}, "fedtp/table3_settings", {"partition": "Dirichlet"}),
    *(
        (f"fedofa/{spec}", {axis: label}, "fedofa/table1", {"method": method, **more})
        for spec, axis, label, method, more in (
            ("table2", "pruning", "baseline", "pFedHN", {"clients": "100"}),
            ("table2_all", "pruning", "upper bound", "FedOFA*", {"clients": "100"}),
            ("fig5", "hidden-layers", "3", "FedOFA", {"clients": "50"}),
            ("table3", "method", "no attention", "pFedHN", {}),
            ("table3", "method", "IntraFA and InterFA", "FedOFA*", {}),
            ("fig4", "method.mix", "0.5", "FedOFA*", {"dataset": "CIFAR-10", "clients": "50"}),
        )
    ),
    *(
        (
            "fedofa/fig3",
            {"method.heads": heads, "dataset": dataset, "method": method},
            "fedofa/table3",
            {"method": of, "clients": "50"},
        )
        for method, of, few in (
            ("IntraFA", "IntraFA", "2"),
            ("InterFA", "InterFA", "8"),
            ("TFA", "IntraFA and InterFA", "8"),
        )
        for dataset, heads in (("CIFAR-10", few), ("CIFAR-100", "8" if few == "2" else "2"))
    ),
    *(
        (f"fedperfix/{spec}", labels, "fedperfix/table2", {**MAIN, **method})
        for spec, labels, method in (
            ("fig3", {}, {}),
            ("table2_resources", {"quantity": "Storage"}, {}),
            ("table3", {"backbone": "ViT-Small"}, {}),
            ("table4", {"clients": "N = 64", "training.sample_rate": "r = 12.5%"}, {}),
            ("table5", {"backbone.size": "ViT-Small"}, {}),
            ("table6", {"method": "FedPerfix"}, {}),
            ("table1", {"layer": "All Local", "personal": "Stand-alone"}, {"method": "Local"}),
            ("table1", {"layer": "All Global", "personal": "Stand-alone"}, {"method": "FedAvg"}),
            ("table1", {"layer": "Classification Head", "personal": "Stand-alone"}, {"method": "FedRep"}),
            ("table1", {"layer": "LayerNorm", "personal": "Stand-alone"}, {"method": "FedBN"}),
            ("table1", {"layer": "Self-attention", "personal": "Combined"}, {"method": "Vanilla Attention"}),
            ("variants", {"method": "FedPerfix: added prefixes"}, {"method": "FedPerfix"}),
            ("variants", {"method": "APFL: PFLlib's"}, {"method": "APFL"}),
            ("variants", {"method": "FedRep: jointly"}, {"method": "FedRep"}),
        )
    ),
    ("fedperfix/variants", {"method": "Adapters: one per block"}, "fedperfix/table6", {"method": "Adapters"}),
    ("pfedla/fig3", {}, "pfedla/table3_office31", {}),
    ("pfedla/fig4a", {}, "pfedla/table3_office31", {"domain": "Average"}),
    ("pfedla/fig4b", {"attention": ["without", "pFedLA_s + SE"]}, "pfedla/table3_office31", {"domain": "Average"}),
    ("pfedla/fig4c", {"partition.train_share": "1.0"}, "pfedla/fig3", {"domain": "Average"}),
    ("pfedla/table5", {}, "pfedla/table3_officehome", {"method": "FedBN", "attention": "pFedLA_h"}),
]
"""Cells of a spec whose runs are those of another's, which have the same labels but for those named."""


def pairs(spec: str, labels: Labels, other: str, changed: Labels) -> list[tuple[TableCell, TableCell]]:
    found = []
    for cell in cells(spec, labels):
        same: Labels = {axis: cell.labels[axis] for axis in table(other).axes if axis not in changed}
        (of,) = cells(other, same | changed)
        found.append((cell, of))
    assert found
    return found


@pytest.mark.parametrize(("spec", "labels", "other", "changed"), SHARED)
def test_runs_are_shared(spec: str, labels: Labels, other: str, changed: Labels) -> None:
    for cell, of in pairs(spec, labels, other, changed):
        assert cell.runs == of.runs


TEXT = {"training.local_epochs": 5, "training.momentum": 0.0, "training.weight_decay": 0.0}
METHODS = ["FedAvg", "FedProx", "FedPer", "FedRoD"]
DIFFERS: list[tuple[str, Labels, str, Labels, dict[str, Any]]] = [
    ("table3_jpeg", {}, "table3", {}, {"dataset.source": "parquet"}),
    *(
        (
            "table3_settings",
            {"method": METHODS, "settings": name},
            "table3_settings",
            {"settings": "the text's"},
            changes,
        )
        for name, changes in (
            ("one epoch", {"training.local_epochs": 1}),
            ("momentum", {"training.momentum": 0.9, "training.weight_decay": 1e-5}),
            ("the text's", TEXT),
        )
    ),
    ("table3_partition", {"draw": "α = 0.3, another seed"}, "table3_settings", {"partition": "Dirichlet"}, {"seed": 1}),
    ("table3_partition", {"draw": "α = 0.5"}, "table3_settings", {"partition": "Dirichlet"}, {"partition.alpha": 0.5}),
]


@pytest.mark.parametrize(("spec", "labels", "other", "changed", "settings"), DIFFERS)
def test_runs_differ_in_these_settings_alone(
    spec: str, labels: Labels, other: str, changed: Labels, settings: dict[str, Any]
) -> None:
    for cell, of in pairs(f"fedtp/{spec}", labels, f"fedtp/{other}", changed):
        run, expected = record(f"fedtp/{spec}", cell.runs), dict(record(f"fedtp/{other}", of.runs))
        for name, value in settings.items():
            group, _, option = name.partition(".")
            expected[group] = {**expected[group], option: value} if option else value
        assert run == expected


@pytest.mark.parametrize("name", ["table1", "table3_office31", "table3_officehome", "table3_domainnet", "table6"])
def test_attention_is_local_in_every_host_and_columns_are_clients(name: str) -> None:
    kinds = ("none", "se", "eca", "ca", "hybrid")
    for cell in table(f"pfedla/{name}").cells:
        run = record(f"pfedla/{name}", cell.runs)
        kind = kinds[table(f"pfedla/{name}").labels["attention"].index(cell.labels["attention"])]
        assert (run["method"]["name"], run["backbone"]["attention"]) == (cell.labels["method"].lower(), kind)
        assert run["method"]["also_personal"] == ([] if kind == "none" else ["local_attention"])
        assert run["method"]["averaging"] == "uniform" and len(cell.runs) == 5
        if name == "table6":
            assert (cell.labels["client"] == "Average") == (cell.client is None)
            continue
        domains = DATASETS.get(run["dataset"]["name"]).attributes["domain"]
        clients = {domain.replace(" ", "-").casefold(): client for client, domain in enumerate(domains)}
        assert cell.client == clients.get(cell.labels["domain"].replace(" ", "-").casefold())


def test_test_sets_are_fedbns() -> None:
    sizes = {"table1": [14_000, 19_858, 1_860, 97_791, 14_000], "table3_domainnet": [526, 657, 619, 1_000, 1_217, 554]}
    for name, expected in sizes.items():
        of = record(f"pfedla/{name}", table(f"pfedla/{name}").cells[0].runs)["dataset"]
        chosen = {key: value for key, value in options(of).items() if key != "stand_in"}
        dataset = DATASETS.create(of["name"], **chosen)
        assert (dataset.expected or dataset.about)[1] == sum(expected)


@pytest.mark.parametrize("spec", ["fedofa/table1", "fedofa/table_s1"])
def test_all_methods_have_5000_trainings_of_a_client(spec: str) -> None:
    for cell in cells(spec, {}):
        run = record(spec, cell.runs)
        training = Training(**run["training"])
        cohort = training.cohort_size(run["clients"])
        of_paper = {"pFedLA": run["clients"], "pFedHN": 1, "FedOFA*": 1, "FedOFA": 1}
        assert cohort == of_paper.get(cell.labels["method"], 5) and training.local_steps == 50
        assert 5000 <= training.rounds * cohort <= 5100  # 300 clients do not divide 5000


def test_every_method_on_mnist_has_as_many_trainings_of_a_client_and_measurements() -> None:
    resolved = resolve_spec("checks/mnist")
    trials = {run.id for one in resolved.selections.values() for trial in one.trials for run in trial.runs}
    lasts, counts = set(), set()
    for run in resolved.runs:
        training, evaluation = Training(**run.record["training"]), Evaluation(**run.record["evaluation"])
        trained = [training.cohort_size(run.record["clients"]) * round_ for round_ in evaluation.due(training.rounds)]
        lasts.add((run.id in trials, trained[-1]))
        counts.add(len(trained))
    assert lasts == {(False, 200), (True, 100)} and counts == {3}


# The papers' claims on the papers' own numbers: which of them these contradict is known, and stands in the READMEs.

LOCAL = "Local attention improves every host method on every domain."
CONTRADICTED = {
    "fedtp/table2": {
        "FedTP is ahead of all other methods with the same Transformer.": "FedPer-T",
        "Local-T is ahead of FedAvg-T, so averaging impairs what self-attention learns about a client.": "FedAvg-T",
        "Personalising attention is better than personalising the classification head (FedPer-T).": "FedPer-T",
        "FedTP's curve is smoother than those of the other methods.": "Vanilla Personalized-T",
    },
    "fedtp/table6": {"The combined models are better than FedTP.": "FedTP"},
    "pfedla/table1": {LOCAL: "without"},
    "pfedla/table3_domainnet": {LOCAL: "without", "On FedProx, the hybrid is the best of all.": "pFedLA_s + CA"},
    "pfedla/table3_office31": {LOCAL: "without"},
    "pfedla/table3_officehome": {
        LOCAL: "without",
        "On average over the host methods, every kind of local attention improves every domain.": "without",
    },
}
"""Per spec the claims that fail in print, and what they fail against first."""
COUNTED = ("pfedla/table2", "pfedla/table4", "fedperfix/table2_resources", "fedperfix/sizes")
"""Specs of which all numbers are known without a run."""


@cache
def results(spec: str) -> Results | None:
    """A spec without any run; None of one that is only to be extended."""
    resolved = resolve_spec(spec)
    runs = {run.id: run for run in resolved.runs}
    return resolved.table and Results.of(resolved.table, collect_frame(resolved.table, runs, Path("nowhere")))


def judged(paper: str) -> Iterator[tuple[str, Judgement]]:
    for path in sorted((SPECS / paper).glob("*.yaml")):
        if found := results(f"{paper}/{path.stem}"):
            yield from ((f"{paper}/{path.stem}", judgement) for judgement in judge_claims(found))


SLOWER = [pytest.param(paper, marks=pytest.mark.matrix) for paper in ("fedofa", "fedperfix", "pfedla")]


@pytest.mark.parametrize("paper", ["fedtp", *SLOWER])
def test_what_the_papers_contradict_themselves(paper: str) -> None:
    found: dict[str, dict[str, str]] = {}
    for spec, judgement in judged(paper):
        text = judgement.claim.text
        assert judgement.obtained.verdict == ("holds" if spec in COUNTED else "not yet")
        assert judgement.obtained.pairs > 0, f"{spec}: no run could ever decide {text!r}"
        if judgement.contradicted_by_paper and judgement.published:
            found.setdefault(spec, {})[text] = " ".join(judgement.published.judged[0].than.values())
        if text == "On CIFAR-100, FedTP is ahead of pFedHN by 11 points on average.":  # "with an 11.31% improvement"
            assert judgement.published and judgement.published.judged[0].effect.difference == pytest.approx(11.315)
    assert found == {spec: claims for spec, claims in CONTRADICTED.items() if spec.startswith(f"{paper}/")}


@pytest.mark.matrix
def test_printed_parameters_are_those_of_a_thousand_classes_in_units_of_two_to_the_twenty() -> None:
    found = results("fedperfix/table2_resources")
    assert found is not None
    more = (1000 - 100) * (384 + 1)  # of the head, a weight per feature and a bias for each further class
    for cell in found.cells:
        method, quantity = cell.labels.values()
        if quantity in ("Storage", "Communication"):
            at_home = method in ("FedBABU", "FedRep", "Vanilla Attention", "FedPerfix", "Local")
            copies = (2 if method == "APFL" else 1) if quantity == "Storage" else int(not at_home)
            assert cell.obtained and cell.published
            # 42.06M is twice the rounded 21.03M.
            in_units = (cell.obtained.mean + copies * more) / 2**20
            assert in_units == pytest.approx(cell.published.mean / 1e6, abs=0.0051), (method, quantity)
