"""The papers' claims on the papers' own numbers: which of them these contradict is known, and told in the READMEs."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from support.paper_specs import SPECS, resolve_specs
from support.papers import PAPERS, occurs

from pflcore.settings import Evaluation, Training
from pipeline.report.claims import Judgement, judge_claims
from pipeline.report.frame import collect_frame
from pipeline.report.table.results import Results

CONTRADICTED = {
    "fedtp/table2": {
        "FedTP is ahead of all other methods with the same Transformer.": "FedPer-T",
        "Local-T is ahead of FedAvg-T, so averaging impairs what self-attention learns about a client.": "FedAvg-T",
        "Personalising attention is better than personalising the classification head (FedPer-T).": "FedPer-T",
        "FedTP's curve is smoother than those of the other methods.": "Vanilla Personalized-T",
    },
    "fedtp/table6": {"The combined models are better than FedTP.": "FedTP"},
    "pfedla/table1": {"Local attention improves every host method on every domain.": "without"},
    "pfedla/table3_domainnet": {
        "Local attention improves every host method on every domain.": "without",
        "On FedProx, the hybrid is the best of all.": "pFedLA_s + CA",
    },
    "pfedla/table3_office31": {"Local attention improves every host method on every domain.": "without"},
    "pfedla/table3_officehome": {
        "Local attention improves every host method on every domain.": "without",
        "On average over the host methods, every kind of local attention improves every domain.": "without",
    },
}
"""Per spec the claims that fail in print, and what they fail against first."""
COUNTED = ("pfedla/table2", "pfedla/table4", "fedperfix/table2_resources", "fedperfix/sizes")
"""Specs of which all numbers are known without a run."""
COUNTS_MODELS = pytest.param("fedperfix", marks=pytest.mark.matrix)


@cache
def judged(paper: str) -> dict[str, list[Judgement]]:
    """The claims of a paper's specs without any run, by spec."""
    judgements: dict[str, list[Judgement]] = {}
    names = [path.stem for path in sorted((SPECS / paper).glob("*.yaml"))]
    with tempfile.TemporaryDirectory() as empty:
        for name, resolved in resolve_specs(paper, names).items():
            if resolved.table is not None:
                results = Results.of(
                    resolved.table, collect_frame(resolved.table, {run.id: run for run in resolved.runs}, Path(empty))
                )
                judgements[f"{paper}/{name}"] = judge_claims(results)
    return judgements


@pytest.mark.parametrize("paper", ["fedtp", "fedofa", COUNTS_MODELS, "pfedla"])
def test_what_the_papers_contradict_themselves(paper: str) -> None:
    found: dict[str, dict[str, str]] = {}
    for spec, judgements in judged(paper).items():
        for judgement in judgements:
            assert judgement.obtained.verdict == ("holds" if spec in COUNTED else "not yet")
            assert judgement.obtained.pairs > 0, f"{spec}: no run could ever decide {judgement.claim.text!r}"
            if judgement.contradicted_by_paper:
                assert judgement.published and judgement.published.judged
                found.setdefault(spec, {})[judgement.claim.text] = " ".join(judgement.published.judged[0].than.values())
    assert found == {spec: claims for spec, claims in CONTRADICTED.items() if spec.startswith(f"{paper}/")}


@pytest.mark.matrix
def test_averages_and_ranges_that_the_papers_tell() -> None:
    worst = {}
    for spec, judgements in {**judged("fedtp"), **judged("fedperfix")}.items():
        for judgement in judgements:
            if judgement.claim.over and judgement.published and judgement.published.judged:
                worst[spec, judgement.claim.text] = judgement.published.judged[0]
    # FedTP, section IV-B: "with an 11.31% improvement on average for CIFAR-100".
    ahead = worst["fedtp/table3", "On CIFAR-100, FedTP is ahead of pFedHN by 11 points on average."]
    assert ahead.cells == 4
    assert ahead.effect.difference == pytest.approx(11.315)
    # The misprinted cell of Table VII is left out on both sides.
    steady = worst["fedtp/table7", "FedTP depends less on α than the other methods with a personal part."]
    assert (steady.than, steady.cells) == ({"method": "FedBN"}, 4)
    assert [value.mean for value in steady.values] == pytest.approx([41.98 - 38.06, 28.70 - 25.08])
    # FedPerfix, section 4.2: "the highest two performances considering the performance across all three datasets".
    (second,) = [pair for (spec, text), pair in worst.items() if "APFL, which mixes models" in text]
    assert second.than == {"method": "FedRep"}
    assert second.effect.difference == pytest.approx((44.88 + 89.74 + 24.23) / 3 - (44.42 + 92.63 + 23.67) / 3)
    assert second.verdict == "within noise"
    assert second.effect.between_clients


TEXTS = {"fedofa": "fedofa", "fedperfix": "fedperfix", "pfedla": "pfedla-local-attention"}
CSVS = [(paper, path.stem) for paper in TEXTS for path in sorted((SPECS / paper).glob("*.csv"))]
TYPED = [one for one in CSVS if one[1] != "contents" and one != ("fedofa", "table3")]  # which adds up what is printed


@pytest.mark.skipif(PAPERS is None, reason="no texts of papers beside the checkout")
@pytest.mark.parametrize(("paper", "name"), TYPED)
def test_published_values_are_in_the_paper(paper: str, name: str) -> None:
    assert PAPERS is not None
    assert occurs(PAPERS / f"{TEXTS[paper]}.txt", SPECS / f"{paper}/{name}.csv") == []


# The checks of our own: what makes their comparisons fair.


def test_every_method_on_mnist_has_as_many_trainings_of_a_client_and_measurements() -> None:
    resolved = resolve_specs("checks", ["mnist"])["mnist"]
    trials = {run.id for one in resolved.selections.values() for trial in one.trials for run in trial.runs}
    schedules: dict[tuple[str, bool], tuple[int, list[int]]] = {}
    for run in resolved.runs:
        training, evaluation = Training(**run.record["training"]), Evaluation(**run.record["evaluation"])
        cohort = training.cohort_size(run.record["clients"])
        trainings = [cohort * round_ for round_ in evaluation.due(training.rounds)]
        assert schedules.setdefault((run.method, run.id in trials), (cohort, trainings)) == (cohort, trainings)
    assert schedules["pfedhn", False] == schedules["fedofa", False] == (1, [150, 175, 200])
    assert schedules["pfedla_layerwise", False] == (20, [160, 180, 200])
    assert schedules["fedavg", False] == (5, [150, 175, 200])
    assert {(trial, trainings[-1]) for (_, trial), (_, trainings) in schedules.items()} == {(False, 200), (True, 100)}
    assert {len(trainings) for _, trainings in schedules.values()} == {3}
