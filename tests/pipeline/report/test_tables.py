"""What tables have beside accuracies: columns of ranks, marks of ties, and quantities, by hand and from runs."""

import pandas as pd
import pyarrow as pa
import pytest
from support import report_demo as rd
from support.figure_demo import record, write_analysis
from support.pages import squeezed
from support.report_demo import RECORD, by_seed, cell, changed, report, results_of, table, with_records, write_run
from support.rounds import rounds_table

from pflcore.artifacts import write_table
from pflcore.errors import UserError
from pipeline.report.frame import Value, concat_runs, tidy_rounds
from pipeline.report.legend import facts
from pipeline.report.printed import format_difference, format_value
from pipeline.report.spec_report import SpecReport
from pipeline.spec.metrics import Quantity, read_printed
from pipeline.spec.table import Published


def pages(resolved, root):
    """The report of a table: its lines in Markdown, LaTeX and HTML."""
    report(resolved, root, root / "out")
    markdown, *others = ((root / f"out/report.{kind}").read_text("utf-8") for kind in ("md", "tex", "html"))
    return squeezed(markdown), *others


# In the hard setting two seeds tell nobody apart, and in the easy one FedTP from two that are equal.
RANKED = {
    "Local": {"hard": [62.5, 65.0], "easy": [80.0, 81.0]},
    "FedAvg": {"hard": [65.0, 55.0], "easy": [80.0, 81.0]},
    "FedTP": {"hard": [70.0, 75.0], "easy": [50.0, 50.5]},
}
OVER = {"derived": [[], ["setting"]]}


def test_columns_of_ranks(tmp_path):
    rows = [("Local",), ("FedAvg",), ("FedTP",)]
    lacking = {**RANKED, "FedTP": {"hard": [70.0, 75.0], "easy": [50.0, None]}}
    for at, (seeds, easy, of_last) in enumerate(((RANKED, 3, 2.5), (lacking, None, None))):
        root = tmp_path / str(at)
        each, mean = results_of(by_seed(root, seeds, **OVER), root).rank_columns
        assert [[each.values.get((row, at)) for row in rows] for at in (0, 1)] == [[2, 2, 2], [1.5, 1.5, easy]]
        assert [mean.values.get((row, 0)) for row in rows] == [1.75, 1.75, of_last]
    lines, tex, page = pages(by_seed(tmp_path, RANKED, **OVER), tmp_path)
    start = lines.index("| method | | | rank | | |")
    assert lines[start + 2] == "| | *hard* | *easy* | *hard* | *easy* | *mean rank* |"
    assert lines[start + 4].startswith("| FedAvg |") and lines[start + 4].endswith(" 2 | 1.5 | 1.75 |")
    assert r" & 2 & 1.5 & 1.75 \\" in tex and r"\cmidrule(lr){4-5}" in tex
    assert r"\multicolumn{2}{c}{rank}" in tex and r"{2-3}" not in tex
    assert '<th class="span" scope="colgroup" colspan="2">rank</th>' in page
    assert '<td class="derived" data-obtained="1.75" data-published="1.75"' in page
    frame = pd.read_csv(tmp_path / "out/table.csv").set_index(["method", "setting"])
    assert frame.loc[("FedTP", "easy"), ["rank", "rank_over_setting"]].tolist() == [3, 2.5]


# Seeds are worth ten points, methods a few: by unpaired deviations nothing would differ. B is one less in about
# each seed, C sometimes more.
SEEDS = {"A": [70.0, 80.0, 90.0], "B": [69.5, 79.0, 89.6], "C": [69.9, 80.5, 88.0], "D": [60.0, 70.5, 80.2]}


def one_column(root, rows, **changes):
    return by_seed(root, {method: {"here": values} for method, values in rows.items()}, **changes)


def test_ties_by_seeds(tmp_path):
    resolved = one_column(tmp_path, SEEDS)
    lines, tex, page = pages(resolved, tmp_path)
    assert {"| A | **80.00±8.16** |", "| B | 79.37±8.21‡ |", "| D | 70.23±8.25 |"} <= set(lines)
    assert any("‡: does not differ significantly from the best of its column" in line for line in lines)
    assert r"B & 79.37$\pm$8.21$\ddagger$ \\" in tex
    assert '<span class="sd">±8.21</span><span class="tied">‡</span>' in page and page.count('class="tied"') == 2
    assert [cell.tied for cell in results_of(resolved, tmp_path).cells] == [None, True, True, False]
    turned = {"A": SEEDS["D"], "B": SEEDS["B"], "C": [None, None, 5.0], "D": SEEDS["A"]}
    # A and D, B and D, C and D; a row without a number has no part in it.
    assert results_of(resolved, tmp_path).significant_pairs(("here",)) == (3, 6)
    lacking = one_column(tmp_path / "lacking", {**SEEDS, "E": [None, 1.0, 2.0]})
    assert results_of(lacking, tmp_path / "lacking").significant_pairs(("here",)) == (3, 6)
    equal = {"A": [80.0], "B": [70.0], "C": [80.001]}  # as printed
    for at, (rows, expected) in enumerate(((SEEDS, [2, 2, 2, 4]), (equal, [1.5, 3, 1.5]), (turned, [3, 1.5, 1.5]))):
        root = tmp_path / str(at)
        assert list(results_of(one_column(root, rows), root).ranks(("here",)).values()) == expected
    # Numbers of a trial are neither best nor compared.
    cells = resolved.model_dump()["cells"]
    for one, mean in zip(cells, (80.0, 10.0, 79.0, 60.0), strict=True):
        one["published"] = {"mean": mean, "std": None, "quoted": False, "note": ""}
    lines, _, page = pages(rd.changed(resolved, cells=cells, profile="smoke"), tmp_path)
    assert {"| A | 80.00±8.16 (**80.00**) |", "| B | 79.37±8.21 (10.00) |"} <= set(lines)
    assert "## Against the published values" not in lines
    assert '"o best"' not in page and "+69.37" not in page


# By split and seed of training. A: means 72, 85 and 60.5 of the seeds that all splits have, variances 8, 50 and 0.5.
# Within 19.5, between 150.25 − 19.5 / 2 = 140.5. B: equal means. C has one split, D none that is held.
CROSSED = {("A", 0): [70.0, 74.0], ("A", 4): [80.0, 90.0], ("A", 7): [60.0, 61.0, 99.0], ("B", 0): [70.0, 74.0]}
CROSSED |= {("B", 4): [71.0, 73.0], ("C", 0): [70.0, 74.0], ("D", None): [70.0, 74.0]}


@pytest.mark.parametrize("columns", [["draw"], [], ["shown"]])
def test_how_much_of_a_spread_is_the_splits(columns, tmp_path):
    """Also where a column shows another quantity of the same runs."""
    cells, records = {}, {}
    for (method, split), values in CROSSED.items():
        labels = {"method": method} | {axis: {"draw": str(split), "shown": "own"}[axis] for axis in columns}
        own = cells.setdefault(tuple(labels.items()), [])
        for seed, value in enumerate(values):
            own.append(run := f"{method}{split}{seed}")
            partition = {"name": "iid"} | ({} if split is None else {"seed": split})
            records[run] = RECORD | {"partition": partition, "seed": seed, "method": {"name": method}}
            rd.write_metrics(tmp_path, run, value)
    made = [cell(dict(labels), runs) for labels, runs in cells.items()]
    if columns == ["shown"]:
        size = {"quantity": Quantity(metric="final")}
        made += [one.model_copy(update={"labels": one.labels | {"shown": "end"}} | size) for one in made]
    made = table(made, ["method"], columns, quantities=columns if columns == ["shown"] else [])
    lines, tex, page = pages(with_records(tmp_path, made, records), tmp_path)
    at = lines.index("| A | 3 | 2 | 11.85 | 4.42 | 88 % |")
    assert "## Spread" in lines[at - 6 : at] and lines[at + 1 : at + 3] == ["| B | 2 | 2 | 0.00 | 2.24 | 0 % |", ""]
    assert "11.85" in tex and "share of the split" in page


def shows(quantity, label="A", **more):
    return cell({"m": label}, ["run"]).model_copy(update={"quantity": quantity, **more})


def test_quantities_of_runs(tmp_path):
    asked = [Quantity(metric="bytes_up"), *(Quantity(metric="rounds_to", accuracy=at) for at in (100.0, 20.0, 75.0))]
    write_run(tmp_path, "run", 80.0, clients=2)
    made = table([shows(one, str(at)) for at, one in enumerate(asked)], ["m"], [])
    up, never, early, late = (one.obtained for one in results_of(made, tmp_path).cells)
    # It rises as 80 (1 - 0.8 exp(-r / 20)), give or take a point.
    assert up == Value(1e9) and never is None and early.mean == 10 and 40 <= late.mean <= 60
    # A mean over the runs that reach an accuracy would be too good, and nothing is a percentage of 0.
    write_run(tmp_path, "slow", 30.0, clients=2)
    both = cell({"m": "A"}, ["run", "slow"]).model_copy(update={"quantity": asked[3]})
    (reached,) = results_of(table([both], ["m"], []), tmp_path).cells
    assert (reached.obtained, reached.verdict, reached.n) == (None, "not reached", 0)
    zero = [shows(Quantity(metric="bytes_up")), shows(Quantity(metric="bytes_up", percent_of={"m": "A"}), "B")]
    for mean, share in ((0.0, None), (8.0, 100.0)):
        rd.write_evaluation(tmp_path, "run", {"bytes_up": {"mean": mean, "std": 0.0, "n": 1}})
        of_a = results_of(table(zero, ["m"], []), tmp_path).cells[1]
        assert (of_a.obtained and of_a.obtained.mean) == share and (of_a.verdict == "percent of 0") == (mean == 0)
    (tmp_path / "artifacts/runs/run/figures.json").unlink()
    # The added parameters of a method: prompts, in each of two blocks three of eight numbers.
    vit = {"name": "tiny_vit", "depth": 2, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 12, "patch": 4}
    changes = {"backbone": vit, "method": {"name": "prompts", "count": 3}, "training": {"rounds": 1}}
    cells = [shows(Quantity(metric="parameters", added_to="backbone")), shows(Quantity(metric="parameters"), "B")]
    made = with_records(tmp_path, table(cells, [], ["m"], quantities=["m"]), {"run": RECORD | changes})
    added, every = (one.obtained for one in results_of(made, tmp_path).cells)
    assert added.mean == pytest.approx(100 * 48 / (every.mean - 48))
    # Learned weights by client, kind and position.
    weights = {0: {"one.se": 0.2, "one.eca": 0.8, "two.se": 0.4, "two.eca": 0.6}, 1: {"one.se": 0.6, "two.se": 1.0}}
    rows = [("mixing", client, item, 0, value) for client, own in weights.items() for item, value in own.items()]
    write_analysis(tmp_path, "run", rows)
    cells = [
        cell({"client": name, "at": str(at)}, ["run"], client=client).model_copy(
            update={"quantity": Quantity(metric="attention_weight", kind="se", position=at)}
        )
        for name, client in {"A": 0, "B": 1, "all": None}.items()
        for at in (1, 2, None)
    ]
    made = table(cells, ["client"], ["at"], clients={"client": {"A": 0, "B": 1}}, quantities=["at"])
    made = with_records(tmp_path, made, {"run": RECORD | {"clients": 2}})
    found = [one.obtained.mean for one in results_of(made, tmp_path).cells]
    assert found == pytest.approx([0.2, 0.4, 0.3, 0.6, 1.0, 0.8, 0.4, 0.7, 0.55])


def test_numbers_in_print_and_verdicts_on_their_digits(tmp_path):
    texts = {"45.17 K": (45_170, 10), "21.03M": (21_030_000, 1e4), "45.6 MB": (45_600_000, 1e5), "< 0.01": (0.01, 0.01)}
    assert all(read_printed(text) == pytest.approx(number) for text, number in texts.items())
    for wrong in ("", "many", "1,000", "1.5 P", "1e3"):
        with pytest.raises(UserError):
            read_printed(wrong)
    printed = Published(mean=45_170, std=None, quoted=False, note="", printed="45.17 K", step=10)
    backbone = {"name": "convnet", "channels": [1, 1], "kernel": 3, "padding": 1}
    made = table([shows(Quantity(metric="parameters"), published=printed)], ["m"], [])
    made = with_records(tmp_path, made, {"run": {**RECORD, "backbone": backbone}})
    for counted, verdict in ((45_178, "match"), (45_180, "differs")):  # it may be cut off
        rd.write_evaluation(tmp_path, "run", {"parameters": {"mean": counted, "std": 0.0, "n": 1}})
        assert [one.verdict for one in results_of(made, tmp_path).cells] == [verdict]
    bound = printed.model_copy(update={"printed": "< 45.17 K"})
    made = changed(made, cells=[one.model_copy(update={"published": bound}) for one in made.cells])
    for counted, verdict in ((45_169, "match"), (45_170, "differs"), (12, "match")):
        rd.write_evaluation(tmp_path, "run", {"parameters": {"mean": counted, "std": 0.0, "n": 1}})
        assert [one.verdict for one in results_of(made, tmp_path).cells] == [verdict]
    numbers = {"n": (0, 692, 45_178, 999_999, 1.2e10, 1.76e12), "B": (12, 45_600, 45_600_000)}
    texts = [format_value(Value(number, unit=unit), 2) for unit, own in numbers.items() for number in own]
    assert texts == ["0", "692", "45.18 K", "1.00 M", "12.00 G", "1.76 T", "12 B", "45.60 kB", "45.60 MB"]
    assert format_difference(-670_000, 2, "n") == "−670.00 K" and format_difference(-0.5, 2) == "−0.50"
    write_run(tmp_path / "b", "run", 80.0)
    lines, *_ = pages(table([shows(Quantity(metric="bytes_up"))], ["m"], []), tmp_path / "b")
    assert "| m | bytes up |" in lines and "| A | 1.00 GB |" in lines
    assert any(line.startswith("- each number: bytes that a client sends in a round") for line in lines)


SHARES = {"s0": [50, 90, 60, 80, 80, 40], "s1": [10, 30, 20, 40, 60, 60]}
"""Correct per hundred test samples: run → of two clients after round 1, 2 and 3."""


def test_values_of_a_client_are_its_own(tmp_path):
    for run, shares in SHARES.items():
        rounds = rounds_table([(1 + at // 2, at % 2, share, 100, 1.0) for at, share in enumerate(shares)])
        path = tmp_path / f"artifacts/runs/{run}/rounds.parquet"
        write_table(path, rounds, "rounds/2", run=run, positions=1, diverged=None)
    clients = {"A": 0, "B": 1}
    cells = [cell({"method": "M", "domain": name}, [*SHARES], client=clients.get(name)) for name in ("A", "B", "*")]
    settings = {"training": {"rounds": 3}, "evaluation": {"every": 1, "window": 1, "curve_every": 1}}
    runs = {run: {**record("fedbn", seed=number, clients=2), **settings} for number, run in enumerate(SHARES)}
    for metric, first, second in (
        ("clients", Value(70.0, 10.0), Value(50.0, 10.0)),  # after the last round 80 and 60, 40 and 60
        ("last_rounds", Value(55.0, 15.0), Value(55.0, 5.0)),  # over the last two rounds 70 and 40, 60 and 50
    ):
        shown = table(cells, ["method"], ["domain"], metric=metric, clients={"domain": clients})
        results = results_of(with_records(tmp_path, shown, runs), tmp_path)
        assert [one.obtained for one in results.cells[:2]] == [first, second]
        assert dict(facts(results))["n"] == ("1, 2" if metric == "clients" else "2")  # clients, or measurements
    curves = SpecReport(results).sections[0]
    found = [curves.data[name].tolist() for name in curves.data if name != "round"]
    assert found == [[30.0, 40.0, 70.0], [60.0, 60.0, 50.0], [45.0, 50.0, 60.0]]


def test_ranks_within_a_column_go_by_what_is_better_there(tmp_path):
    cells, nll = [], Quantity(metric="final.nll")
    for method, values in {"high": (1.5, 1.6, 1.7), "low": (0.5, 0.7, 0.6)}.items():
        for seed, value in enumerate(values):
            rd.write_evaluation(tmp_path, f"{method}{seed}", {nll.key: {"mean": value, "std": 0.0, "n": 1}})
        one = cell({"method": method, "shown": "NLL"}, [f"{method}{seed}" for seed in range(3)])
        cells.append(one.model_copy(update={"quantity": nll}))
    made = table(cells, ["method"], ["shown"], quantities=["shown"])
    made = with_records(tmp_path, made, {run: RECORD | {"seed": int(run[-1])} for run in made.runs})
    assert results_of(made, tmp_path).ranks(("NLL",)) == {("low",): 1, ("high",): 2}


def test_a_cell_of_participants_is_read_from_their_rows(tmp_path):
    usual = rounds_table([(1 + at // 2, at % 2, share, 100, 1.0) for at, share in enumerate(SHARES["s0"])])
    trained = [(1, 0, 20, 100, 1.0), (2, 1, 30, 100, 1.0), (3, 0, 70, 100, 1.0)]
    rounds = pa.concat_tables([usual, rounds_table(trained, moment="after_training")])
    path = tmp_path / "artifacts/runs/run/rounds.parquet"
    write_table(path, rounds, "rounds/2", run="run", positions=1, diverged=None)
    cells = [cell({"shown": name}, ["run"]) for name in ("own", "clients", "last_ten")]
    for at in (1, 2):
        shown = {"quantity": Quantity(metric=cells[at].labels["shown"], moment="after_training")}
        cells[at] = cells[at].model_copy(update=shown)
    settings = {"training": {"rounds": 3}, "evaluation": {"every": 1, "window": 1, "curve_every": 1}, "clients": 2}
    made = table(cells, [], ["shown"], metric="clients", quantities=["shown"])
    made = with_records(tmp_path, made, {"run": {**RECORD, **settings}})
    results = results_of(made, tmp_path)
    assert [one.obtained.mean for one in results.cells] == [60.0, 70.0, 40.0]
    assert dict(facts(results))["n"] == "1, 2, 3"  # participants, clients, measurements


def test_an_axis_named_like_a_column_of_results_keeps_its_labels():
    rows = rounds_table([(1, 0, 20, 100, 1.0)])
    more = rows.append_column("model", pa.array(["personal"]))
    more = pa.concat_tables([more, more.set_column(more.column_names.index("model"), "model", pa.array(["global"]))])
    labels = [{"model": "small", "run": "A", "nll": "x"}, {"model": "big", "run": "B", "nll": "x"}]
    made = table([cell(labels[0], ["r0"]), cell(labels[1], ["r1"])], ["model", "run"], ["nll"])
    both = concat_runs([tidy_rounds(made, "r0", 0, rows, {}), tidy_rounds(made, "r1", 0, more, {})])
    columns = ["model (axis)", "run (axis)", "nll (axis)", "run", "seed", "client", "model"]
    small, big = ["small", "A", "x", "r0", 0, 0], ["big", "B", "x", "r1", 0, 0]
    wanted = [[*small, "personal"], [*big, "personal"], [*big, "global"]]
    assert both[columns].to_numpy().tolist() == wanted


# Mean over two seeds: by method and what a cell shows. FedPer has no global model; of Local nothing is there.
SHOWN = {
    "clients": {"FedAvg": (60.0, 62.0), "FedPer": (80.0, 81.5)},
    "clients.auc": {"FedAvg": (90.0, 91.0), "FedPer": (85.0, 85.5)},
    "last_rounds.nll": {"FedAvg": (0.5, 0.7), "FedPer": (0.9, 1.0)},
    "clients global": {"FedAvg": (55.0, 54.0)},
    "final global": {"FedAvg": (55.0, 54.0), "One class": (50.0, 50.0)},
}
QUANTITIES = {"AUC": {"metric": "clients.auc"}, "NLL": {"metric": "nll"}, "global": {"model": "global"}}


def test_metrics_and_models_side_by_side(tmp_path):
    cells = []
    for name in ("FedAvg", "FedPer", "Local", "One class"):
        for label in ("own", *QUANTITIES):
            quantity = QUANTITIES.get(label)
            published = (0.6, 0.1) if label == "NLL" else None
            made = cell({"method": name, "shown": label}, [f"{name}-0", f"{name}-1"], published)
            full = quantity and Quantity(**quantity).with_defaults(Quantity(metric="clients"))
            cells.append(made.model_copy(update={"quantity": full}))
        for seed in (0, 1):
            figures = {key: {"mean": of[name][seed], "std": 0.0, "n": 3} for key, of in SHOWN.items() if name in of}
            if figures:
                rd.write_evaluation(tmp_path, f"{name}-{seed}", figures)
    sides = {"method": ["FedAvg"]}, {"method": ["FedPer"]}
    better = [rd.claim(*sides, where={"shown": [one]}) for one in ("own", "NLL")]
    resolved = table(cells, ["method"], ["shown"], metric="clients", quantities=["shown"], claims=better)
    resolved = with_records(tmp_path, resolved, {run: RECORD | {"seed": int(run[-1])} for run in resolved.runs})
    lines, *_ = pages(resolved, tmp_path)
    assert "| FedAvg | 61.00±1.00 | **90.50±0.50** | **0.60±0.10** (**0.60±0.10**) | **54.50±0.50** |" in lines
    assert "| FedPer | **80.75±0.75** | 85.25±0.25 | 0.95±0.05‡ (**0.60±0.10**) | no global model |" in lines
    assert "| One class | — | — | — (**0.60±0.10**) | — |" in lines
    assert "| Local | — | — | — (**0.60±0.10**) | — |" in lines
    assert "- AUC: clients.auc, personal model, after aggregation, on own samples" in lines
    # Of runs that are asked about different views.
    both = concat_runs([pd.DataFrame({"client": [3]}), pd.DataFrame({"client": [4], "model": ["global"]})])
    assert both["model"].tolist() == ["personal", "global"]
    judged = SpecReport(results_of(resolved, tmp_path)).judgements
    assert [one.obtained.judged[0].effect.difference for one in judged] == pytest.approx([-19.75, 0.35])
