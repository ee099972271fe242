"""Cells of unlike runs: means that would mislead, verdicts that nothing supports, and what the text says of them."""

import pandas as pd
import pytest
from support.report_demo import (
    RECORD,
    by_seed,
    cell,
    changed,
    claim,
    report,
    results_of,
    table,
    with_records,
    write_evaluation,
    write_metrics,
)

from pipeline.report.agreement import Agreement
from pipeline.report.claim_tables import weakest_pairs
from pipeline.report.claims import judge_claims
from pipeline.report.frame import Value
from pipeline.report.legend import legend
from pipeline.report.printed import print_cell
from pipeline.spec.metrics import Quantity
from pipeline.spec.table import Published


def test_a_mean_over_a_part_of_a_seeds_runs_is_neither_best_nor_judged(tmp_path):
    """Each seed has an easy and a hard run; of B all easy ones are there, of C all but the last hard one."""
    levels, records, cells = {"A": 0.0, "B": -1.0, "C": -2.0}, {}, []
    for method, more in levels.items():
        runs = [f"{method}-{kind}-{seed}" for kind in ("easy", "hard") for seed in range(4)]
        cells.append(cell({"method": method}, runs, (70.0, None)))
        for run in runs:
            kind, seed = run.split("-")[1:]
            records[run] = RECORD | {"seed": int(seed)}
            if kind == "easy" or method == "A" or (method, seed) in (("C", "0"), ("C", "1"), ("C", "2")):
                write_metrics(tmp_path, run, {"easy": 90.0, "hard": 50.0}[kind] + more * (1 + int(seed) / 10))
    ahead = claim({"method": ["A"]}, {"method": ["B"]})
    made = with_records(tmp_path, table(cells, ["method"], [], claims=[ahead]), records)
    results = results_of(made, tmp_path)
    a, b, c = results.cells
    (judgement,) = judge_claims(results)
    assert (judgement.agreeing, judgement.comparable) == (0, 0)
    assert Agreement.from_results(results, []).differences == [0.0]  # A's own difference
    assert [one.best_obtained for one in (a, b, c)] == [True, False, False]
    assert (b.by_seed, b.obtained.mean, b.n) == ({}, pytest.approx(90.0 - 1.15), 4)
    assert c.by_seed == pytest.approx({0: 68.0, 1: 67.8, 2: 67.6}) and c.n == 7
    assert "[n/m]: n of the cell's m runs are done and have such a number" in legend(results_of(made, tmp_path))
    assert (b.verdict, c.verdict, b.tied, c.tied) == ("no verdict", "no verdict", None, None)


def test_counts_that_differ_between_the_runs_of_a_cell_have_a_mean(tmp_path):
    one = cell({"m": "A"}, ["small", "large"]).model_copy(update={"quantity": Quantity(metric="parameters")})
    backbone = {"name": "convnet", "kernel": 3, "padding": 1}  # fits the images, though its own counts do not matter
    records = {run: RECORD | {"backbone": backbone} for run in one.runs}
    for sizes, expected in (((100.0, 300.0), Value(200.0, 100.0)), ((300.0, 300.0), Value(300.0))):
        for run, size in zip(one.runs, sizes, strict=True):
            write_evaluation(tmp_path, run, {"parameters": {"mean": size, "std": 0.0, "n": 1}})
        assert (
            results_of(with_records(tmp_path, table([one], ["m"], []), records), tmp_path).cells[0].obtained == expected
        )


def test_no_common_seed_decides_no_claim_and_equal_seeds_have_no_verdict(tmp_path):
    rows = {"A": {"x": [80.0, 81.0, 82.0, None, None, None]}, "B": {"x": [None, None, None, 60.0, 61.0, 62.0]}}
    made = by_seed(tmp_path, rows, claim({"method": ["A"]}, {"method": ["B"]}))
    cells = [one.model_copy(update={"runs": own}) for one in made.cells for own in [one.runs[:3], one.runs[3:]]]
    (judgement,) = judge_claims(results_of(changed(made, cells=[cells[0], cells[3]]), tmp_path))
    assert judgement.obtained.verdict == "one seed: undecided" and not judgement.decided
    # Nothing is known of the chance behind three equal numbers, and these are not fewer than three.
    made = by_seed(tmp_path / "equal", {"A": {"x": [80.0, 80.0, 80.0]}})
    printed = cell({}, [], (79.0, None)).published
    made = changed(made, cells=[made.cells[0].model_copy(update={"published": printed})])
    found = dict(Agreement.from_results(results_of(made, tmp_path / "equal"), []).numbers())
    assert found["verdicts"] == "1 without a verdict"


def test_numbers_of_claims_have_the_unit_of_their_cells(tmp_path):
    up = {"A": {"x": [1000.0, 1100.0, 1200.0], "y": [3000.0, 3000.0, 3000.0]}}
    up["B"] = {"x": [2000.0, 2150.0, 2200.0], "y": [5000.0, 5000.0, 5000.0]}
    sides, quantity = ({"method": ["A"]}, {"method": ["B"]}), Quantity(metric="bytes_up")
    claims = [claim(*sides, over=["setting"]), claim(*sides, "steadier", where={"setting": ["x"]})]
    made = by_seed(tmp_path, up, *claims, metric="bytes_up", better=None)
    for one in made.cells:
        for run, value in zip(one.runs, up[one.labels["method"]][one.labels["setting"]], strict=True):
            write_evaluation(tmp_path, run, {"bytes_up": {"mean": value, "std": 0.0, "n": 1}})
    made = changed(made, cells=[one.model_copy(update={"quantity": quantity}) for one in made.cells])
    pairs = weakest_pairs(judge_claims(results_of(made, tmp_path)), 2)
    means, spreads = (dict(zip(pairs.header, row, strict=True)) for row in pairs.rows)
    # Leads are 3000, 3050 and 3000 in the sum of two settings, so 1508 on average; t is 4.303 and s / √3 is 8.33.
    assert (means["first"], means["second"], means["difference"]) == ("2.05 kB±41 B", "3.56 kB±42 B", "+1.51 kB")
    assert means["95 % interval"] == "+1.47 kB to +1.54 kB"
    assert (spreads["first"], spreads["second"], spreads["difference"]) == ("82 B", "85 B", "+3 B")


def test_noise_has_the_unit_of_the_difference(tmp_path):
    """Three seeds are 1000 apart, so 4.303 · 1000 / √3 is chance."""
    one = by_seed(tmp_path, {"A": {"x": [7000.0, 8000.0, 9000.0]}}).cells[0]
    for run, value in zip(one.runs, (7000.0, 8000.0, 9000.0), strict=True):
        write_evaluation(tmp_path, run, {"bytes_up": {"mean": value, "std": 0.0, "n": 1}})
    printed = Published(mean=9000.0, std=None, quoted=False, note="", printed="9 kB", step=1.0)
    one = one.model_copy(update={"quantity": Quantity(metric="bytes_up"), "published": printed})
    records = {run: RECORD | {"seed": int(run[-1])} for run in one.runs}
    (found,) = results_of(with_records(tmp_path, table([one], ["method"], ["setting"]), records), tmp_path).cells
    assert print_cell(found, 2).comparison == "\N{MINUS SIGN}1.00 kB within noise (2.48 kB)"


def test_the_text_says_what_the_second_number_is_and_who_is_left_out(tmp_path):
    figures = {"last_ten": 71.0, "final": 72.0, "clients": 73.0}
    write_evaluation(tmp_path, "run", {name: {"mean": mean, "std": 0.5, "n": 10} for name, mean in figures.items()})
    cells = [cell({"shown": "own"}, ["run"]), cell({"shown": "ten"}, ["run"])]
    cells[1] = cells[1].model_copy(update={"quantity": Quantity(metric="last_ten")})
    made = table(cells, [], ["shown"], metric="clients", quantities=["shown"])
    assert "a / b: a over the last 10 measurements" in legend(results_of(made, tmp_path))
    report(made, tmp_path, tmp_path / "out")
    assert "**71.00±0.50** / 72.00" in (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert pd.read_csv(tmp_path / "out/table.csv")["last_round"].tolist()[1] == 72.0
    assert "a / b" not in legend(results_of(changed(made, cells=cells[:1]), tmp_path))
    for share, said in ((0.0, False), (0.25, True)):
        record = RECORD | {"partition": {"name": "iid", "novel_share": share}}
        results = results_of(with_records(tmp_path, made, {"run": record}), tmp_path)
        assert ("Of runs with novel clients the other clients alone are measured" in legend(results)) == said


def test_a_misprint_alone_is_in_every_format(tmp_path):
    write_metrics(tmp_path, "run", 80.0)
    printed = Published(mean=None, std=None, quoted=False, note="above 100", printed="190.5", misprint=True)
    one = cell({"m": "A"}, ["run"]).model_copy(update={"published": printed})
    report(table([one], ["m"], []), tmp_path, tmp_path / "out")
    for name in ("report.md", "report.tex", "table.tex", "report.html"):
        assert "190.5" in (tmp_path / "out" / name).read_text(encoding="utf-8"), name


def test_whole_numbers_are_in_full_in_files(tmp_path):
    one = cell({"m": "A"}, ["run"]).model_copy(update={"quantity": Quantity(metric="bytes_up")})
    write_evaluation(tmp_path, "run", {"bytes_up": {"mean": 123456789.0, "std": 0.0, "n": 1}})
    report(table([one], ["m"], []), tmp_path, tmp_path / "out")
    assert ",123456789," in (tmp_path / "out/table.csv").read_text(encoding="utf-8")
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")  # a click shows the cell's run in the cell's unit
    assert "seed 0: 123.46 MB" in page and '["metric bytes_up","123.46 MB"]' in page
