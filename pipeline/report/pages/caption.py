"""What stands under a table: what its marks mean, and what a number and its ± are, with how many measurements."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.report.drawing.sections import NO_VALUE, counted
from pipeline.report.statistics.noise import LEGEND
from pipeline.report.table.cells import DIFFERS, MATCH, Cell
from pipeline.report.table.layout import Key, Layout
from pipeline.report.table.measured import LAST, Measured
from pipeline.report.table.printed import ACCURACY, BESIDE, MISPRINT, TIED
from pipeline.report.table.results import Results
from pipeline.spec.table import ResolvedTable

_POOLED = "the share of all clients' test samples that are classified correctly, in percent"
_PRECISIONS = (
    "the mean over clients, every one counting the same, of the mean average precision at an overlap of one half "
    "(COCO's, 101 recalls; difficult objects do not count) on a client's own test images, in percent"
)
_NEXT = "the share of all clients' test texts after which the next character is predicted correctly, in percent"
_MEAN_OF_CLIENTS = (
    "the mean of the clients' test accuracies after the last round, in percent, every client counting the same"
)
_WORST_TENTH = (
    "the mean test accuracy after the last round, in percent, of the tenth of a run's clients that fare worst, rounded "
    "up to whole clients"
)
_BY_VALIDATION = (
    "after the measured round that is best, by pooled accuracy, on samples held back for validation; of equal rounds "
    "the earliest"
)
_BY_TEST = (
    "after that of the measured rounds where this number is highest, as published; since test samples choose the "
    "round, it is too high"
)
TWO_NUMBERS = f"a {BESIDE} b: a over the last {LAST} measurements, b after the last round; the paper names no round."


def legend(table: ResolvedTable, cells: list[Cell]) -> list[str]:
    """What the marks of a table mean, a sentence each."""
    lowest = "lowest" if table.better == "lower" else "highest"
    published = any(cell.published for cell in cells)
    bold = any(cell.best_obtained for cell in cells)
    lines = ["Obtained values, published values in parentheses."] if published else []
    if bold or (published and not any(cell.quantity for cell in cells)):
        of = "value" if not published else "of its kind" if bold else "published value"
        lines.append(f"Bold: the {lowest} {of} {'in' if published else 'of'} the column.")
    lines += _apart(cells, [cell.key(table.columns) for cell in cells])
    if any(cell.quoted for cell in cells):
        lines.append("*: the paper quotes this value from an earlier paper.")
    if any(cell.misprint for cell in cells):
        lines.append(f"{MISPRINT}: printed so, though it cannot be (see Notes); compared with nothing.")
    if any(cell.verdict == "missing" for cell in cells):
        lines.append(f"{NO_VALUE}: {_not_yet(table)}.")
    if any(cell.verdict == "diverged" for cell in cells):
        lines.append("diverged: training of at least one run of the cell ended in non-finite numbers.")
    if any(cell.obtained and not cell.complete for cell in cells):
        lines.append("[n/m]: n of the cell's m runs are done.")
    if any(cell.last for cell in cells):
        lines.append(TWO_NUMBERS)
    if any(cell.verdict in (MATCH, DIFFERS) for cell in cells):
        lines.append(f"{MATCH}: apart by less than one in the last digit that is printed; else {DIFFERS}.")
    if table.claims or any(cell.published and not cell.quantity for cell in cells):
        lines.append(LEGEND)
    return lines


def _not_yet(table: ResolvedTable) -> str:
    """Why a cell with runs has no number."""
    if table.counted:
        return "cannot be counted before training"
    reached = any(cell.quantity and cell.quantity.metric == "rounds_to" for cell in table.cells)
    return "not run yet, or not reached" if reached else "not run yet"


def _apart(cells: list[Cell], columns: list[Key]) -> list[str]:
    """What can be said of differences to the best of a column, and where it cannot."""
    best = {column for cell, column in zip(cells, columns, strict=True) if cell.best_obtained}
    others = [
        (cell.tied, column)
        for cell, column in zip(cells, columns, strict=True)
        if cell.obtained and not cell.best_obtained and column in best
    ]
    unknown = {column for tied, column in others if tied is None}
    lines = []
    how = "(moderated paired t tests over the seeds, at 5 % over all comparisons of a column, Holm)"
    if any(tied for tied, _ in others):
        lines.append(f"{TIED}: cannot be told apart from the best of the column {how}.")
    elif others and not unknown:
        lines.append(f"All others can be told apart from the best of their column {how}.")
    if unknown:
        where = (
            "" if len(unknown) == len({column for _, column in others}) else f" in {counted(len(unknown), 'column')}"
        )
        lines.append(f"One seed{where}: differences cannot be judged.")
    return lines


def _quantities_in_words(results: Results) -> str:
    """What the numbers of a table without accuracies are, by the labels that choose among them."""
    of: dict[str, dict[str, None]] = {}
    for cell in results.cells:
        assert cell.quantity and cell.quantity.known
        said = f"{cell.quantity.known.words}{f' {cell.quantity.accuracy:g} %' if cell.quantity.accuracy else ''}"
        if cell.quantity.relative:
            row = " · ".join(cell.quantity.row.values())
            than = f"{row!r}" if row else "the backbone without the method"
            said += f"; in percent of {than}, {'what comes on top' if cell.quantity.added_to else 'which has 100'}"
        of.setdefault(said, {})[" · ".join(cell.labels[axis] for axis in results.table.quantities)] = None
    several = len(of) > 1
    sentences = [
        f"{'; '.join(labels)}: {said}." if several else f"Each number is {said}." for said, labels in of.items()
    ]
    cells = [cell for cell in results.cells if len(cell.runs) > 1]
    if cells and not results.table.counted:
        sentences.append(f"± is the population standard deviation over {_runs(cells, results)}.")
    if results.table.counted:
        sentences.append("All of that is counted on the nets that the runs of a cell have; nothing is trained for it.")
    return " ".join(sentences)


def protocol_in_words(results: Results) -> str:
    """What the numbers and the ± mean, in sentences."""
    if any(cell.quantity for cell in results.cells):
        return _quantities_in_words(results)
    number, over = _of_a_run(results)
    cells = [cell for cell in results.cells if cell.runs]
    several = [cell for cell in cells if len(cell.runs) > 1]
    words = f"Each number is {number}"
    if over and len(several) < len(cells):
        words += f"; ± is the population standard deviation over {over}"
    sentences = [f"{words}."]
    if several:
        which = "" if len(several) == len(cells) else " of several runs"
        sentences.append(
            f"A cell{which} is the mean over {_runs(several, results)}, and ± is the population standard deviation "
            "over these, not the fluctuation within a run."
        )
    sentences.append("Personalised models of all clients are measured after aggregation.")
    return " ".join([*sentences, *filter(None, [_stopped(results.runs.values()), _alone(results.layout)])])


def _of_a_run(results: Results) -> tuple[str, str]:
    """What the number of one run is, and what its ± is taken over; "" where it has none."""
    metric, schedule = results.table.metric, _schedule(results.runs.values())
    pooled = _POOLED if results.layout.figure == ACCURACY else _PRECISIONS
    mean_of_clients = _MEAN_OF_CLIENTS if pooled == _POOLED else f"{_PRECISIONS}, after the last round"
    values = [run.values[metric] for run in results.runs.values() if metric in run.values]
    n = _range(value.n for value in values if value.n is not None)
    rounds = f"averaged over {f'the {n} measurements' if n else 'the rounds measured'}{schedule}"
    over_rounds = f"these {n} measurements" if n else "these rounds"
    match metric:
        case "last_rounds":
            return f"{pooled}, {rounds}", f"{over_rounds}, the fluctuation within one run (FedTP, section IV-B)"
        case "last_ten":
            return f"{pooled}, averaged over the last {n or LAST} measurements of a run", over_rounds
        case "last_position":
            return f"{_NEXT}, {rounds}", f"{over_rounds}, the fluctuation within one run"
        case "clients":
            clients = f"the {n} clients" if n else "clients"
            return mean_of_clients, f"{clients} of a run (protocol of FedPerfix)"
        case "worst_tenth":
            return _WORST_TENTH, f"these {n} clients" if n and n != "1" else ""
        case "best_by_validation":
            return f"{pooled}, {_BY_VALIDATION}", ""
        case "best_by_test":
            return f"{pooled}, {_BY_TEST}", ""
        case _:
            return f"{pooled}, after the last round of training", ""


def _stopped(runs: Iterable[Measured]) -> str:
    """When runs were stopped early, in a sentence; "" where none can be."""
    patience = sorted({run.resolved.training.patience for run in runs} - {None}, key=lambda rounds: rounds or 0)
    if not patience:
        return ""
    return (
        "A run was stopped early when its pooled accuracy on samples held back for validation had not improved for "
        f"{' or '.join(map(str, patience))} measurements; its last round is the one where it stopped."
    )


def _runs(cells: list[Cell], results: Results) -> str:
    """How many runs the numbers of cells are the means of: ``3 seeds``, or ``6 runs of 3 seeds``."""
    runs = _range(cell.n or len(cell.runs) for cell in cells)
    by_cell = [[results.runs[run].resolved.seed for run in cell.runs] for cell in cells]
    if all(len(set(seeds)) == len(seeds) for seeds in by_cell):
        return f"{runs} seeds"
    seeds = _range(len(set(seeds)) for seeds in by_cell)
    return f"{runs} runs of {seeds} seed{'' if seeds == '1' else 's'}"


def _range(numbers: Iterable[int]) -> str:
    """``11``, or ``7 to 11``; "" of nothing."""
    found = sorted(set(numbers))
    return " to ".join(str(number) for number in dict.fromkeys((found[0], found[-1]))) if found else ""


def _alone(layout: Layout) -> str:
    """Which labels are of single clients, in a sentence; "" where none is."""
    names = list(layout.client_names.values())
    if not names:
        return ""
    words = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    return f"Under {words} the same is taken of the test samples of one client alone."


def _schedule(runs: Iterable[Measured]) -> str:
    schedules = {(run.resolved.evaluation.window, run.resolved.evaluation.every) for run in runs}
    if len(schedules) != 1:
        return " at the end of training"
    window, every = schedules.pop()
    if not window:
        return " last"
    return f" in the last {window} rounds of training" + (f", every {every}" if every > 1 else "")
