"""The specs of papers: published values against what was typed a second time, settings, shared runs, and claims."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from support.paper_specs import SPECS, resolve_spec

from pflcore.datasets import DATASETS
from pflcore.settings import Evaluation, Training
from pipeline.report.claims import Judgement, judge_claims
from pipeline.report.frame import collect_frame
from pipeline.report.table import Results
from pipeline.spec.table import ResolvedTable, TableCell

HERE = Path(__file__).parent
TEXTS = next(HERE.parents[2].glob("*/papers"), None)
"""The papers as text, where a checkout has them beside it."""
NAMES = {"fedofa": "fedofa", "fedperfix": "fedperfix", "pfedla": "pfedla-local-attention", "fedtp": "fedtp-v2"}
SETTINGS = yaml.safe_load((HERE / "settings.yaml").read_text(encoding="utf-8"))


@cache
def table(spec: str) -> ResolvedTable:
    found = resolve_spec(spec).table
    assert found is not None
    return found


def cell(spec: str, labels: str) -> TableCell:
    (found,) = (cell for cell in table(spec).cells if ", ".join(cell.labels.values()) == labels)
    return found


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
    run, expected = record(spec, cell(spec, labels).runs), SETTINGS[spec][labels]
    for name, value in expected.items():
        found = {key: run[name].get(key) for key in value} if isinstance(value, dict) else run[name]
        assert found == value, name


@pytest.mark.parametrize(("paper", "runs"), {"fedtp": 473, "fedofa": 1070, "fedperfix": 81, "pfedla": 830}.items())
def test_tables_and_figures_share_runs(paper: str, runs: int) -> None:
    """Of FedTP's tables the FedTP rows, of pFedLA's figures all cells of one table, and so on."""
    ours = {"fedofa": ("table1", "table2", "table2_all", "table3", "table_s1", "table_s2", "fig3", "fig4", "fig5")}
    names = ours.get(paper, tuple(path.stem for path in (SPECS / paper).glob("*.yaml") if path.stem != "table1_part"))
    assert len({run.id for name in names for run in resolve_spec(f"{paper}/{name}").runs}) == runs


SAME = [
    ("fedtp/table2", "FedTP, CIFAR-10, Pathological, 50", "fedtp/table3", "FedTP, CIFAR-10, Pathological, 50"),
    ("fedtp/table7", "FedBN, CIFAR-100, 0.3", "fedtp/table3", "FedBN, CIFAR-100, Dirichlet, 100"),
    ("fedtp/table8", "8, FedAvg-T, CIFAR-10, Dirichlet", "fedtp/table2", "FedAvg-T, CIFAR-10, Dirichlet, 50"),
    ("fedtp/table4", "FedTP, as published", "fedtp/table4", "FedTP, unmasked Transformer"),
    ("fedofa/table2_all", "upper bound, CIFAR-10", "fedofa/table1", "FedOFA*, CIFAR-10, 100"),
    ("fedofa/fig3", "8, CIFAR-10, InterFA", "fedofa/table3", "InterFA, CIFAR-10, 50"),
    ("fedperfix/table1", "Self-attention, Combined", "fedperfix/table2", "Vanilla Attention, CIFAR-100"),
    ("fedperfix/variants", "FedRep: jointly", "fedperfix/table2", "FedRep, CIFAR-100"),
    ("pfedla/fig4c", "FedBN, without, 1.0", "pfedla/table3_office31", "FedBN, without, DSLR"),
    ("pfedla/table5", "Art, SE, Layer 1", "pfedla/table3_officehome", "FedBN, pFedLA_h, Art"),
]


@pytest.mark.parametrize(("spec", "labels", "other", "others"), SAME)
def test_cells_that_are_the_same_runs(spec: str, labels: str, other: str, others: str) -> None:
    assert cell(spec, labels).runs == cell(other, others).runs


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


@pytest.mark.parametrize("spec", ["fedofa/table1", "fedofa/table_s1"])
def test_all_methods_have_5000_trainings_of_a_client(spec: str) -> None:
    for cell in table(spec).cells:
        run = record(spec, cell.runs)
        training = Training(**run["training"])
        cohort = training.cohort_size(run["clients"])
        of_paper = {"pFedLA": run["clients"], "Local, linear": run["clients"], "pFedHN": 1, "FedOFA*": 1, "FedOFA": 1}
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
    with TemporaryDirectory() as folder:  # where there are no runs, and what is counted may be remembered
        return resolved.table and Results.of(resolved.table, collect_frame(resolved.table, runs, Path(folder)))


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
