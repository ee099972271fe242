"""Claims on small tables whose verdicts can be read off, and how a table agrees with its paper as a whole."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats
from support.report_demo import by_seed, cell, changed, claim, report, results_of, table, write_evaluation

from pipeline.report.agreement import Agreement, count_within
from pipeline.report.claim_tables import all_pairs, weakest_pairs
from pipeline.report.claims import judge_claims
from pipeline.spec.metrics import Quantity

A_BEATS, MINUS = claim({"method": ["A"]}, {"method": ["B", "C"]}), "\N{MINUS SIGN}"


def a_and_b(form="better", **changes):
    return claim({"method": ["A"]}, {"method": ["B"]}, form, **changes)


def within(margin):
    return claim({}, {}, "within", margin=margin, over=["setting"])


def published(resolved, values):
    """The table whose cells have these published values."""
    printed = [cell({}, [], value).published for value in values]
    cells = zip(resolved.cells, printed, strict=True)
    return changed(resolved, cells=[one.model_copy(update={"published": own}) for one, own in cells])


def judge(resolved, root):
    """What becomes of a table's only claim, and its weakest pairs as pages print them, without empty columns."""
    (judgement,) = judge_claims(results_of(resolved, root))
    pairs = weakest_pairs([judgement], resolved.decimals)
    return judgement, [dict(zip(pairs.header, row, strict=True)) for row in pairs.rows]


def found(root, rows, one=A_BEATS, **changes):
    """What is found of a claim on obtained values, and its weakest pair as it is printed."""
    judgement, (printed,) = judge(by_seed(root, rows, one, **changes), root)
    assert judgement.published is None and not judgement.contradicted_by_paper
    return judgement.obtained, printed


# The seeds are ten points apart: A is ahead by 1.5, 2 and 2.5, so t is 2 / (0.5 / √3), and chance explains 1.24.
AHEAD = {"A": {"x": [91.5, 72.0, 82.5]}, "B": {"x": [90.0, 70.0, 80.0]}}
# Ahead by 4, 5, 6, of which chance explains 2.48.
FIVE = {"A": {"x": [84.0, 85.0, 86.0]}, "B": {"x": [80.0] * 3}}
TURNED = {"A": {"x": [90.0, 90.5, 91.0], "y": [10.0, 10.5, 11.0]}}
TURNED["B"] = {"x": [80.0, 80.1, 80.2], "y": [20.0, 20.1, 20.2]}
# At x the leads are 1, 4, 1 and at y 3, 0, 3.2; their means are 2, 2 and 2.1, so no seed is an exception.
MEANS = {"A": {"x": [91.0, 84.0, 71.0], "y": [53.0, 60.0, 63.2]}}
MEANS["B"] = {"x": [90.0, 80.0, 70.0], "y": [50.0, 60.0, 60.0]}
# t is √27, so p is 0.035 for x alone: enough by itself, not so as the worst of four.
LAG = {"A": {"x": [79.0, 78.5, 78.0]}, "B": {"x": [80.0] * 3}}
LAGS = {"A": {**LAG["A"], **{at: [90.0, 91.0, 92.5] for at in "yzw"}}, "B": {at: [80.0] * 3 for at in "xyzw"}}
SMALL = {"A": {"x": [70.0] * 3, "y": [72.0, 73.0, 74.0], "z": [71.0, 71.1, 71.0]}}
ENDS = {"A": {"x": [72.0, 72.4, 72.8], "y": [70.0] * 3}}
THREE = {"A": {**ENDS["A"], "z": [71.0] * 3}}


def ranging(lowest):
    """Ranges of A, of which z is at neither end, and of B, which are 9 under each seed."""
    a = {"x": [69.0, 70.0, 71.0], "y": [lowest] * 3, "z": [60.0, 68.0, 76.0]}
    return {"A": a, "B": {"x": [50.0] * 3, "y": [59.0] * 3, "z": [52.0] * 3}}


OVER = a_and_b("steadier", over=["setting"])
CASES = [  # p of its pairs against SciPy's, of differences in hand
    (AHEAD, A_BEATS, "holds", [1.5, 2.0, 2.5]),
    ({"A": {"x": [91.0, 72.0, 83.0]}, "B": AHEAD["B"]}, A_BEATS, "within noise", [1.0, 2.0, 3.0]),
    *((FIVE, a_and_b(margin=m), verdict, [4 - m, 5 - m, 6 - m]) for m, verdict in ((2.5, "holds"), (7.5, "fails"))),
    *((FIVE, a_and_b(margin=m), "within noise", [4 - m, 5 - m, 6 - m]) for m in (2.6, 7.4)),
    ({"A": {"x": [99.0]}, "B": {"x": [10.0]}}, A_BEATS, "one seed: undecided", []),
    ({"A": {"x": [90.0, 91.0]}, "B": {"x": [80.0, 81.0]}, "C": {"x": [None, 1.0]}}, A_BEATS, "not yet", []),
    (LAG, A_BEATS, "fails", [1.0, 1.5, 2.0]),
    (LAGS, A_BEATS, "within noise", [1.0, 1.5, 2.0]),
    *((TURNED, a_and_b(where={"setting": [at]}), verdict, []) for at, verdict in (("x", "holds"), ("y", "fails"))),
    (TURNED, A_BEATS, "fails", []),
    (MEANS, A_BEATS, "within noise", []),
    (MEANS, a_and_b(over=["setting"]), "holds", [2.0, 2.0, 2.1]),
    (ranging(66.0), OVER, "holds", [6.0, 5.0, 4.0]),
    (ranging(62.5), OVER, "within noise", [2.5, 1.5, 0.5]),
    (ranging(56.0), OVER, "fails", [-4.0, -5.0, -6.0]),
    (SMALL, within(6.0), "holds", [-4.0, -3.0, -2.0]),
    *((SMALL, within(margin), "within noise", []) for margin in (5.4, 2.5)),
    (ENDS, within(1.0), "fails", [1.0, 1.4, 1.8]),  # apart by 2.4, p = 0.026 against 1
    (THREE, within(1.0), "within noise", []),  # of three pairs the widest is picked
]


def test_verdicts_on_obtained_values(tmp_path):
    for at, (rows, one, verdict, differences) in enumerate(CASES):
        evidence, _ = found(tmp_path / str(at), rows, one)
        assert evidence.verdict == verdict, (rows, one)
        if differences:
            known = stats.ttest_1samp(differences, 0.0).pvalue
            assert evidence.judged[0].effect.p == pytest.approx(known), (rows, one)
    assert found(tmp_path, FIVE, better="lower")[0].verdict == "fails"
    picked = found(tmp_path / "three", THREE, within(1.0))[0].judged[0].effect.p
    assert picked == pytest.approx(3 * stats.ttest_1samp([1.0, 1.4, 1.8], 0.0).pvalue)
    shared = {"A": {"x": [80.0, 81.0, 82.0, 70.0]}, "B": {"x": [79.0, 80.5, 81.0]}}
    effect = found(tmp_path / "shared", shared)[0].judged[0].effect
    assert (effect.n, effect.difference) == (3, pytest.approx(2.5 / 3))  # though the mean is lower


def test_a_spread_is_that_of_seeds_and_costs_are_better_if_they_are_lower(tmp_path):
    # Both settings are averaged. B differs more between them, A more between its seeds.
    rows = {"A": {"x": [70.0, 80.0, 60.0, 75.0], "y": [70.0, 82.0, 64.0, 75.0]}}
    rows["B"] = {"x": [70.0, 71.0, 72.0, 70.0], "y": [30.0, 30.0, 33.0, 31.0]}
    one = by_seed(tmp_path, rows, claim({"method": ["B"]}, {"method": ["A"]}, "steadier"))
    merged = [cell({"method": name}, [run for own in one.cells for run in own.runs if run[0] == name]) for name in "AB"]
    one = changed(one, cells=merged, columns=[], labels={"method": ["A", "B"]})
    (judgement,) = judge_claims(results_of(one, tmp_path))
    (pair,) = judgement.obtained.judged
    spreads = [np.std([np.mean(both) for both in zip(*rows[name].values(), strict=True)]) for name in "BA"]
    assert [value.mean for value in pair.values] == pytest.approx(spreads)
    assert pair.effect.difference == pytest.approx(spreads[1] - spreads[0])
    assert pair.effect.low < pair.effect.difference < pair.effect.high and judgement.obtained.verdict == "holds"
    # Fewer rounds are better, unless the table says otherwise.
    quantity = Quantity(metric="rounds_to", accuracy=50.0)
    rows = {"A": {"x": [3.0, 4.0, 3.5]}, "B": {"x": [9.0, 11.0, 9.5]}}
    for better, verdict in ((None, "holds"), ("lower", "holds"), ("higher", "fails")):
        made = by_seed(tmp_path, rows, A_BEATS, metric="rounds_to", better=better)
        for own in made.cells:
            for run, value in zip(own.runs, rows[own.labels["method"]]["x"], strict=True):
                write_evaluation(tmp_path, run, {quantity.key: {"mean": value, "std": 0.0, "n": 1}})
        made = changed(made, cells=[own.model_copy(update={"quantity": quantity}) for own in made.cells])
        assert judge_claims(results_of(made, tmp_path))[0].obtained.verdict == verdict
    write_evaluation(tmp_path, made.cells[0].runs[0], {"final": {"mean": 40.0, "std": 0.0, "n": 1}})  # never reaches it
    assert judge_claims(results_of(made, tmp_path))[0].obtained.verdict == "no verdict"


def test_columns_say_what_is_compared(tmp_path):
    _, printed = found(tmp_path, AHEAD)
    assert printed == {
        "claim": "1", "values": "obtained", "verdict": "holds", "pairs": "1 of 1", "compared": "A against B",
        "at": "x", "first": "82.00±7.97", "second": "80.00±8.16", "difference": "+2.00",
        "95 % interval": "+0.76 to +3.24", "p": "0.020", "seeds": "3",
    }  # fmt: skip
    (line,) = all_pairs(judge_claims(results_of(by_seed(tmp_path, AHEAD, A_BEATS), tmp_path))).to_dict("records")
    assert line["p_sign_flip"] == 2 / 2**3  # all three signs are equal in two of eight ways
    shift = line["detectable"] / (0.5 / 3**0.5)  # which is found in four of five: the distribution is t with that shift
    assert stats.nct.sf(stats.t.ppf(0.975, 2), 2, shift) == pytest.approx(0.8)
    _, printed = found(tmp_path, {"A": {"x": [99.0]}, "B": {"x": [10.0]}})
    assert printed["seeds"] == "1" and "p" not in printed
    names = ("compared", "at", "first", "second", "difference", "margin", "95 % interval")
    values = ["y against x", "A", "73.00±0.82", "70.00±0.00", "+3.00", "5.4", "+0.52 to +5.48"]
    for rows, one, expected in (
        (MEANS, a_and_b(over=["setting"]), {"first": "70.37±2.31", "second": "68.33±2.36"}),
        (ranging(66.0), OVER, {"first": "4.00±0.82", "second": "9.00±0.00"}),
        (SMALL, within(5.4), dict(zip(names, values, strict=True))),
    ):
        assert expected.items() <= found(tmp_path, rows, one)[1].items()


def test_one_failing_pair_fails_the_claim_by_the_p_of_all_of_them(tmp_path):
    rows = {
        "A": {"x": [90.0, 91.0, 92.0], "y": [70.0, 71.0, 72.0]},
        "B": {"x": [80.0, 81.1, 82.2], "y": [72.0, 73.01, 74.02]},
        "C": {"y": [70.0, 80.0, 78.0], "x": [None, None, None]},  # farther away, but within noise; and not run yet
    }
    evidence, printed = found(tmp_path, rows)
    worst = evidence.judged[0]
    assert (evidence.verdict, evidence.pairs, len(evidence.judged)) == ("fails", 4, 3)
    assert (worst.better, worst.than, worst.labels) == ({"method": "A"}, {"method": "B"}, {"setting": "y"})
    assert worst.corrected == pytest.approx(3 * worst.effect.p) and printed["p (Holm)"] == f"{worst.corrected:.3f}"
    # Without axes it is the spread that is compared.
    calm, wild = [80.0, 83.5, 78.0, 81.0, 79.5], [70.0, 99.0, 84.0, 91.0, 62.0]
    evidence, printed = found(tmp_path, {"A": {"x": calm, "y": wild}, "B": {"x": wild, "y": calm}}, a_and_b("steadier"))
    assert [(pair.labels["setting"], pair.verdict) for pair in evidence.judged] == [("y", "fails"), ("x", "holds")]
    assert (printed["first"], printed["second"]) == (f"{np.std(wild):.2f}", f"{np.std(calm):.2f}")


# Printed values go by their ±; where there is none they are exact.

XY = {("A", "x"): (70.0, 0.3), ("A", "y"): (60.0, 0.4), ("B", "x"): (65.0, 0.1), ("B", "y"): (64.0, None)}
PRINTED = [
    ({("A", "x"): (90.0, 3.0), ("B", "x"): (80.0, 4.0)}, A_BEATS, "holds", None),  # noise 1.96 · 5
    ({("A", "x"): (90.0, 3.0), ("B", "x"): (80.3, 4.0)}, A_BEATS, "within noise", None),
    ({("A", "x"): (90.0, None), ("B", "x"): (90.5, None), ("C", "x"): (10.0, 9.0)}, A_BEATS, "fails", None),
    (XY, OVER, "fails", ("10.00±0.50", "1.00±0.10")),
    (XY, a_and_b("steadier"), "fails", ("0.30", "0.10")),  # y has no printed spread to compare
    (XY, a_and_b(over=["setting"]), "holds", ("65.00±0.25", "64.50±0.05")),  # √(0.3² + 0.4²) / 2
]


def test_printed_values(tmp_path):
    for values, one, verdict, sides in PRINTED:
        cells = [cell({"method": method, "setting": at}, [], value) for (method, at), value in values.items()]
        judgement, printed = judge(table(cells, ["method"], ["setting"], claims=[one]), tmp_path)
        assert judgement.published.verdict == verdict and judgement.contradicted_by_paper == (verdict == "fails")
        last = printed[-1]
        assert last["values"] == "published" and sides in (None, (last["first"], last["second"]))
    # A cell without a run is judged on the published side only.
    resolved = by_seed(tmp_path, {"A": {"x": [90.0, 91.0, 92.0]}, "B": {"x": [80.0, 81.5, 82.0]}}, A_BEATS)
    own = published(resolved, [(90.0, 0.1), (80.0, 0.1)]).cells
    quoted = cell({"method": "C", "setting": "x"}, [], (91.0, 0.1))
    labels = {"method": ["A", "B", "C"], "setting": ["x"]}
    judgement, (_, weakest) = judge(changed(resolved, cells=[*own, quoted], labels=labels), tmp_path)
    assert [(one.verdict, one.pairs) for one in judgement.kinds.values()] == [("holds", 1), ("fails", 2)]
    assert (weakest["compared"], weakest["difference"], weakest["seeds"]) == ("A against C", f"{MINUS}1.00", "")
    assert weakest["95 % interval"] == f"{MINUS}1.28 to {MINUS}0.72"


# Published ranks 1 2 3 4 5, obtained ones 2 1 4 3 5: squared differences of ranks 1 1 1 1 0, two of ten pairs turned.
VALUES = {"A": (10.0, 21.0), "B": (20.0, 19.0), "C": (30.0, 41.5), "D": (40.0, 37.5), "E": (50.0, 45.0), "F": (60.0, 0)}


def agreement(root, seeds=1, **changes):
    """Of six methods, of which A alone has a ± in the paper, and F is not run yet; seeds are one apart."""
    shifts = [seed - (seeds - 1) / 2 for seed in range(seeds)]
    rows = {name: {"x": [mean + shift if mean else None for shift in shifts]} for name, (_, mean) in VALUES.items()}
    sides = {"E": ["A", "B", "C", "D"], "C": ["B", "D", "E", "F"], "F": ["A"]}
    claims = [claim({"method": [side]}, {"method": others}) for side, others in sides.items()]
    printed = [(own, 1.0 if own == 10.0 else None) for own, _ in VALUES.values()]
    resolved = published(by_seed(root, rows, *claims, **changes), printed)
    results = results_of(resolved, root)
    return Agreement.from_results(results, judge_claims(results)), resolved


def test_agreement_with_the_paper(tmp_path):
    one, resolved = agreement(tmp_path)
    assert one.published == 6 and one.differences == [11.0, -1.0, 11.5, -2.5, -5.0]
    assert [order[2:] for order in one.orders] == [(5, pytest.approx(1 - 6 * 4 / 120), pytest.approx(0.6))]
    # E is ahead of all four, C of B and D but not of E, and F has no value.
    assert one.claims == Counter(stated=3, compared=2, agree=1, comparisons=7, agreeing=6)
    assert not one.verdicts and not one.decided
    numbers = dict(one.numbers())
    assert numbers["distance in points"] == "1 within 1, 2 within 2.5, 3 within 5; median 5.00"
    assert numbers["order of rows"] == "x: 0.80 / 0.60 of 5 rows"
    assert count_within([81.2 - 80.2, -1.01, 2.5, 5.0, -5.001]) == [1, 3, 4]  # whatever the last digit of a float
    report(resolved, tmp_path, tmp_path / "out")
    assert "+11.50 |" in (tmp_path / "out/report.md").read_text("utf-8")
    assert 'class="d no-verdict">+11.50</span>' in (tmp_path / "out/report.html").read_text("utf-8")
    assert not agreement(tmp_path, profile="smoke")[0].differences  # of a trial
    # Three seeds are one apart: without ± noise is 4.3027 / √3 = 2.48, with a ± of 1 it is 3.16.
    one, resolved = agreement(tmp_path, seeds=3)
    assert one.verdicts == Counter({"beyond noise": 4, "within noise": 1})
    assert [round(cell.noise, 2) for cell in results_of(resolved, tmp_path).cells if cell.noise] == [3.16, *[2.48] * 4]
    # Of a claim the seeds shift both sides alike, which does not tell what is chance.
    assert one.decided == Counter({"within noise": 1})
    both = Agreement.total([one, one], 9)
    assert (both.differences, both.published, both.claims["agreeing"]) == (one.differences * 2, 9, 12)
