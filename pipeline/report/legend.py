"""The text under a table: fixed sentences on its marks and protocol, and facts of its runs as name and value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from pflcore.settings import USUAL
from pipeline.report.cells import DIFFERS, MATCH, PRECISION
from pipeline.report.frame import LAST, LAST_TEN
from pipeline.report.printed import MISPRINT, NO_VALUE, SEPARATOR, TIED, UNPLANNED
from pipeline.report.statistics import NOISE_LEGEND
from pipeline.report.table import Results

_POOLED = "test accuracy (%) pooled over the samples of all clients"
_WITHIN = "the ± of one run is over these, its own fluctuation"
PROTOCOLS = {  # last_rounds is of FedTP, section IV-B, and clients of FedPerfix
    "last_rounds": f"{_POOLED}, mean over n measurements in the last rounds of training; {_WITHIN}.",
    "last_ten": f"{_POOLED}, mean over the last {LAST} measurements; {_WITHIN}.",
    "last_position": "accuracy (%) of the character after each test text, pooled over all clients, mean "
    f"over n measurements in the last rounds of training; {_WITHIN}.",
    "clients": "mean of the test accuracies (%) of n clients after the last round, each counting the same; "
    "the ± of one run is over these.",
    "worst_tenth": "mean test accuracy (%) after the last round of the n clients with the lowest accuracy, a tenth "
    "of all, rounded up; the ± of one run is over these.",
    "final": f"{_POOLED}, after the last round.",
    "best_by_validation": f"{_POOLED}, after the measured round that is best on validation "
    "samples, the earliest of equal ones.",
}
SCORES = {
    "balanced_accuracy": "balanced accuracy (%), the mean recall of the classes that occur in a client's test samples",
    "macro_f1": "macro F1 (%), the mean over the classes that occur in a client's test samples",
    "auc": "area under the ROC curve (%; 50 is chance), each class against all others, the mean over the classes that "
    "occur in a client's test samples; a client with one class has none and does not count",
    "ece": "expected calibration error (%), 15 bins of equal width; the lower the better",
    "nll": "negative log-likelihood (nats per prediction) of the test labels; the lower the better",
}
_UNDER = {
    "last_rounds": "mean over n measurements in the last rounds of training",
    "clients": "n of them, after the last round",
    "worst_tenth": "n of them, the tenth that fares worst after the last round, rounded up",
    "final": "after the last round",
    "best_by_validation": "after the measured round whose accuracy is best on validation samples",
}
VIEWS_LEGEND = (
    "Global: the model that the server has, where all of a model is shared. After training: participants of a round, "
    "before their models are aggregated. On all: on the test samples of all clients together."
)
PROTOCOL_NAMES = {
    "last_rounds": "window",
    "last_ten": "last ten",
    "final": "last round",
    "clients": "mean of clients",
    "worst_tenth": "worst tenth",
    "last_position": "last position",
    "best_by_validation": "best by validation",
    "best_by_test": "best by test",
}
"""Short names of protocols, in the order of display after the table's protocol; others follow."""
LAST_LEGEND = f"a {SEPARATOR} b: a over the last {LAST} measurements, b after the last round; the paper names no round."
_MARKS = (
    "Personalised models of all clients are measured after aggregation. Bold: the best of its column.",
    f"{TIED}: does not differ significantly from the best of its column (moderated paired t tests over the seeds, at 5 "
    "% over all comparisons of a column, Holm); cells that do not share two seeds are not judged and have no mark.",
    f"{NO_VALUE}: not run yet, without such a number, or not to be counted before training; diverged: training of at "
    "least one run of the cell ended in non-finite numbers; not reached: at least one run never had the accuracy; "
    "[n/m]: n of the cell's m runs are done and have such a number; while of a seed only some do, the cell is neither "
    "the best nor judged.",
    "± of a cell of several runs: population standard deviation over them.",
    "Published values are in parentheses and have a best of their own; *: the paper quotes it from an earlier paper; "
    f"{MISPRINT}: printed so, though it cannot be (see Notes); {UNPLANNED}: no run is planned.",
    NOISE_LEGEND,
)
_RANKS = (
    "Ranks are within a column, 1 is the best. Rows that do not differ significantly by their seeds, or are equal as "
    "printed, share the mean of their ranks: from the best downwards as many as do not differ significantly from it, "
    "then again from the next."
)
_PRECISION = (
    "mAP in place of accuracy: mean average precision at an overlap of one half (COCO's, 101 recalls; difficult "
    "objects do not count), the mean over clients."
)
_NOVEL = "Of runs with novel clients the other clients alone are measured, but for what is on all samples."
_BENIGN = "Of runs with attackers the other clients alone are measured."
_PRIVACY = "Runs with privacy are differentially private for a client with ε = {} at δ = {} (RDP)."
_COUNTED = (
    f"Numbers are counted before training or measured in runs. {MATCH}: they differ by less than one in the last "
    f"printed digit; otherwise {DIFFERS}."
)


def describe_metric(metric: str) -> str:
    """Return a description of a metric of predictions, with its protocol."""
    if metric in PROTOCOLS:
        return PROTOCOLS[metric]
    protocol, score = metric.split(".")
    over = "pooled" if score == "nll" and protocol not in ("clients", "worst_tenth") else "mean of clients"
    return f"{SCORES[score]}; {over}, {_UNDER[protocol]}."


def legend(results: Results) -> str:
    """Return the sentences under a table, on its protocol and its marks."""
    quantities, metric = [cell.quantity for cell in results.cells], results.table.metric
    if any(cell.kind for cell in results.cells):
        sentences = [_COUNTED]
    else:
        metrics = dict.fromkeys(map(results.table.metric_of, quantities)) or [metric]
        sentences = [f"{name}: {describe_metric(name)}" for name in metrics]
    if any(quantity and quantity.view != USUAL for quantity in quantities):
        sentences.append(VIEWS_LEGEND)
    if results.heading == PRECISION:
        sentences.append(_PRECISION)
    if metric == LAST_TEN or any(cell.last for cell in results.cells):
        sentences.append(LAST_LEGEND)
    if results.table.derived:
        sentences.append(_RANKS)
    conditions = [run.resolved.record["condition"] for run in results.runs.values() if run.resolved.condition]
    partitions = (run.resolved.record["partition"] for run in results.runs.values())
    if any(value for options in partitions for name, value in options.items() if name.startswith("novel_")):
        sentences.append(_NOVEL)
    if any(condition["name"] == "attack" for condition in conditions):
        sentences.append(_BENIGN)
    epsilons = [run.facts["epsilon"] for run in results.runs.values() if run.facts.get("epsilon") is not None]
    if epsilons:
        deltas = sorted({condition["delta"] for condition in conditions if "delta" in condition})
        ends = dict.fromkeys(f"{epsilon:.3g}" for epsilon in (min(epsilons), max(epsilons)))
        sentences.append(_PRIVACY.format(" to ".join(ends), ", ".join(f"{delta:g}" for delta in deltas)))
    return " ".join([*sentences, *_MARKS])


def facts(results: Results) -> list[tuple[str, str]]:
    """Return the facts of a table and its runs; several values of a fact are in ascending order."""
    table, metric, runs = results.table, results.table.metric, [run.resolved for run in results.runs.values()]
    quantities = _quantity_facts(results)
    if table.counted:
        return quantities
    seeds = [[results.runs[run].resolved.seed for run in cell.runs] for cell in results.cells if cell.runs]
    run_counts, seed_counts = {len(cell) for cell in seeds}, {len(set(cell)) for cell in seeds}
    values = [
        results.runs[run].values(cell.client).get(cell.quantity.key if cell.quantity else metric)
        for cell in results.cells
        if not cell.kind
        for run in cell.runs
    ]
    windows = ""
    if metric.split(".")[0] in ("last_rounds", "last_position"):
        pairs = sorted({(run.evaluation.window, run.evaluation.every) for run in runs})
        windows = ", ".join(f"last {window} rounds, every {every}" for window, every in pairs)
    significant = []
    for column in results.columns if table.derived else ():
        differing, count = results.significant_pairs(column)
        title = results.column_title(column)
        significant.append(f"{differing:,} of {count:,}{f' ({title})' if title else ''}")
    days = [run.kept_since for run in results.runs.values() if run.kept_since]
    named = {
        "protocol": "" if quantities else metric,
        "n": _join_numbers(value.n for value in values if value and value.n),
        "measured": windows,
        "rounds": _join_numbers(run.training.rounds for run in runs),
        "clients": _join_numbers(run.clients for run in runs),
        "seeds per cell": _join_numbers(seed_counts),
        "runs per cell": "" if run_counts == seed_counts else _join_numbers(run_counts),
        "early stopping": _join_numbers(run.training.patience for run in runs if run.training.patience),
        "pairs of rows that differ significantly": ", ".join(significant),
        "single clients": ", ".join(label for labels in table.clients.values() for label in labels),
        "kept results": f"{len(days)} of {len(runs)} runs, {period(days)}" if days else "",
    }
    return [*quantities, *((name, value) for name, value in named.items() if value)]


def _quantity_facts(results: Results) -> list[tuple[str, str]]:
    """Return the labels and the description of each quantity."""
    by_text = defaultdict[str, list[str]](list)
    for cell in results.cells:
        if not (quantity := cell.quantity):
            continue
        if quantity.definition:
            text = quantity.definition.words + (f" {quantity.accuracy:g} %" if quantity.accuracy else "")
        else:
            model, moment, on = (word.replace("_", " ") for word in quantity.view)
            text = f"{quantity.metric}, {model} model, {moment}, on {on} samples"
        if quantity.relative:
            base = " · ".join(quantity.row.values()) or "the backbone without the method"
            text += f"; {'added, ' if quantity.added_to else ''}% of {base}"
        by_text[text].append(" · ".join(cell.key(results.table.quantities)))
    return [("; ".join(filter(None, dict.fromkeys(labels))) or "each number", text) for text, labels in by_text.items()]


def period(days: Collection[str]) -> str:
    """Return ``on 2026-11-22``, or ``from 2026-11-22 to 2026-11-23``."""
    first, last = min(days), max(days)
    return f"on {first}" if first == last else f"from {first} to {last}"


def _join_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:,}" for number in sorted(set(numbers)))
