"""The papers' claims on the papers' own numbers: which of them these contradict is known, and told in the READMEs."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from support.paper_specs import SPECS, resolve_specs

from pipeline.report.claims.claims import Judgement, judge_claims
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
                results = Results.read(resolved.table, {run.id: run for run in resolved.runs}, Path(empty))
                judgements[f"{paper}/{name}"] = judge_claims(results)
    return judgements


@pytest.mark.parametrize("paper", ["fedtp", "fedofa", COUNTS_MODELS, "pfedla"])
def test_what_the_papers_contradict_themselves(paper: str) -> None:
    found: dict[str, dict[str, str]] = {}
    for spec, judgements in judged(paper).items():
        for judgement in judgements:
            assert judgement.obtained.verdict == ("holds" if spec in COUNTED else "not yet")
            assert judgement.obtained.pairs > 0, f"{spec}: no run could ever decide {judgement.text!r}"
            if judgement.contradicted_by_paper:
                assert judgement.published and judgement.published.worst
                found.setdefault(spec, {})[judgement.text] = " ".join(judgement.published.worst.than.values())
    assert found == {spec: claims for spec, claims in CONTRADICTED.items() if spec.startswith(f"{paper}/")}


@pytest.mark.matrix
def test_averages_and_ranges_that_the_papers_tell() -> None:
    worst = {}
    for spec, judgements in {**judged("fedtp"), **judged("fedperfix")}.items():
        for judgement in judgements:
            if judgement.form.over and judgement.published and judgement.published.worst:
                worst[spec, judgement.text] = judgement.published.worst
    # FedTP, section IV-B: "with an 11.31% improvement on average for CIFAR-100".
    ahead = worst["fedtp/table3", "On CIFAR-100, FedTP is ahead of pFedHN by 11 points on average."]
    assert ahead.cells == 4
    assert ahead.difference == pytest.approx(11.315)
    # The misprinted cell of Table VII is left out on both sides.
    steady = worst["fedtp/table7", "FedTP depends less on α than the other methods with a personal part."]
    assert (steady.than, steady.cells) == ({"method": "FedBN"}, 4)
    assert [value.mean for value in steady.values] == pytest.approx([41.98 - 38.06, 28.70 - 25.08])
    # FedPerfix, section 4.2: "the highest two performances considering the performance across all three datasets".
    (second,) = [pair for (spec, text), pair in worst.items() if "APFL, which mixes models" in text]
    assert second.than == {"method": "FedRep"}
    assert second.difference == pytest.approx((44.88 + 89.74 + 24.23) / 3 - (44.42 + 92.63 + 23.67) / 3)
    assert second.verdict == "within noise"
    assert second.chance.between_clients
