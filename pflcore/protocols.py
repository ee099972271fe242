"""Evaluation protocols: queries over the ``rounds/2`` table that turn counts per client and round into figures.

Papers mean different things by "accuracy" and by "±", so a run stores counts only and each protocol is a query. All
accuracies are in percent, of the personalised models of all clients, after aggregation, on test samples. Means are
unweighted; standard deviations are population standard deviations.

- ``last_rounds`` (FedTP, section IV-B): pooled over clients, at each round measured in the window at the end of
  training; mean and deviation over these rounds. The ± is the fluctuation within one run.
- ``clients`` (FedPerfix, section 4.1): mean and deviation over clients after the last round.
- ``final``: pooled after the last round, for papers that give no spread.
- ``worst_tenth`` (Li et al., q-FFL, ICLR 2020, "worst 10%"): like ``clients``, over the worst tenth of the clients,
  rounded up to whole clients. Clients without test samples do not count.
- ``last_position``: like ``last_rounds``, but of a text only the character after its last one counts. An attention
  without causal mask cannot see that character. For images it equals ``last_rounds``.
- ``best_by_validation``: pooled at the measured round with the best pooled accuracy on validation samples (the earliest
  if several are best); only for partitions that hold samples back. One round of one run has no ±.
- ``validation``: like ``last_rounds``, on validation samples, for choosing settings. No table shows it.

Except for ``last_position`` and ``validation``, each protocol exists for every metric that a run measured
(:data:`METRICS`), as ``<protocol>.<metric>``. `nll` is pooled; for other metrics the mean over clients replaces pooled
accuracy, and a client without the metric does not count. `nll` is in nats, all others are in percent. ``worst_tenth``
takes the highest values if lower is better. Rounds are always chosen by accuracy. Each :class:`View` has figures of
the same kinds, over the clients that were measured in it.

For a detector, a client's figure is its mean average precision (column `precision`), and the unweighted mean over
clients replaces pooled accuracy.
"""

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pflcore.errors import UserError
from pflcore.files import parse_json
from pflcore.settings import LOWER, METRICS, USUAL, Evaluation, Training, View

_PRECISION, _NLL = "precision", "nll"
Floats = NDArray[np.float64]
Figures = dict[str, dict[str, float]]
"""Protocol -> ``{"mean": percent, "std": percentage points, "n": number of values}``; ``best_by_validation`` has also
``round``."""


def summarise(rounds_table: pa.Table, evaluation: Evaluation, rounds: int, view: View = USUAL) -> Figures:
    """Return the figures of a run for every protocol and measured metric; ``{}`` if it diverged or lacks the view.
    Raises :class:`UserError` if a round in the window was not measured; `rounds` is from :func:`rounds_trained`."""
    if _header(rounds_table).get("diverged") is not None:
        return {}
    tested = _measured(rounds_table, "test", view)
    measured, accuracies, _ = _curve(tested)
    if view != USUAL and not len(measured):
        return {}
    steps = [round_ for round_ in evaluation.due(rounds) if evaluation.in_window(round_, rounds)]
    lacking = sorted(set(steps) - set(measured.tolist()))
    if lacking and view == USUAL:  # not every client takes part in every round
        raise UserError(
            f"the rounds table lacks round {lacking[0]} of {rounds}, which every = {evaluation.every} and "
            f"window = {evaluation.window} ask for; delete it and run again"
        )
    window = np.isin(measured, steps)
    held_back, by_validation, _ = curve(rounds_table, "validation", view=view)
    figures = Figures()
    for metric in ("", *(name for name in METRICS if name in rounds_table.column_names)):
        values = _curve(tested, metric=metric)[1] if metric else accuracies
        clients = _final(tested, metric)
        protocols = {
            "last_rounds": _spread(values[window]),
            "clients": _spread(clients),
            "final": _spread(values[-1:]),
            "worst_tenth": worst_tenth(clients, lower=metric in LOWER),
        }
        if not metric:
            is_text = _header(tested).get("positions", 1) != 1
            protocols["last_position"] = _spread((_curve(tested, last=True)[1] if is_text else values)[window])
        if len(held_back) and not metric:
            protocols["validation"] = _spread(by_validation[np.isin(held_back, steps)])
        if len(held_back):
            best = int(held_back[by_validation.argmax()])  # the earliest if several are best
            protocols["best_by_validation"] = {**_spread(values[measured == best]), "round": best}
        figures |= {f"{protocol}.{metric}".rstrip("."): figure for protocol, figure in protocols.items()}
    return figures


def rounds_trained(rounds_table: pa.Table, training: Training) -> int:
    """Return the last round of a run that has not diverged; with `patience` that is the last measured round."""
    if training.patience is None:
        return training.rounds
    return int(pc.max(rounds_table["round"]).as_py() or 0)


def worst_tenth(values: Floats, *, lower: bool = False) -> dict[str, float]:
    """Return the figures of ``worst_tenth`` for one value per client, accuracies in percent or a metric; with `lower`,
    lower values are better."""
    ordered = np.sort(values)[:: -1 if lower else 1]
    return _spread(ordered[: -(-len(values) // 10)])


def _spread(values: Floats) -> dict[str, float]:
    values = values[~np.isnan(values)]
    if not len(values):
        return {"mean": np.nan, "std": np.nan, "n": 0}
    return {"mean": float(values.mean()), "std": float(values.std()), "n": len(values)}


def _final(tested: pa.Table, metric: str) -> Floats:
    """Return the accuracy, or a metric in its unit, of each client that has one after the last round."""
    rows = tested.filter(pc.equal(tested["round"], pc.max(tested["round"]))) if metric else _final_clients(tested)
    values: Floats = rows[metric or "accuracy"].to_numpy()
    return _scale(metric) * values[~np.isnan(values)]


def _scale(metric: str) -> float:
    return 1.0 if metric == _NLL else 100.0


def final_clients(rounds_table: pa.Table) -> pa.Table:
    """Return the ``evaluation/1`` rows of the last measured round, sorted by client: client, correct, total, accuracy
    (0 to 1, NaN for a client without test samples; for a detector mean average precision), loss."""
    return _final_clients(_measured(rounds_table, "test", USUAL))


def _final_clients(tested: pa.Table) -> pa.Table:
    last = tested.filter(pc.equal(tested["round"], pc.max(tested["round"]))).sort_by("client")
    correct, total = last["correct"].to_numpy(), last["total"].to_numpy()
    accuracy = np.divide(correct, total, out=np.full(len(total), np.nan), where=total > 0)
    if _PRECISION in last.column_names:
        accuracy = last[_PRECISION].to_numpy()
    columns = last.select(["client", "correct", "total"])
    return columns.append_column("accuracy", pa.array(accuracy)).append_column("loss", last["loss"])


def curve(
    rounds_table: pa.Table, population: str = "test", *, metric: str = "", view: View = USUAL
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the measured rounds in ascending order, the accuracy in percent, and the mean loss per prediction.

    Accuracy is pooled over clients; for detectors it is the mean over clients of mean average precision, without
    clients that have no object to find. With `metric`, the metric replaces accuracy: `nll` pooled, others as mean over
    clients that have it (NaN if none has). All are empty for an empty population."""
    return _curve(_measured(rounds_table, population, view), metric=metric)


def _curve(table: pa.Table, *, last: bool = False, metric: str = "") -> tuple[NDArray[np.int64], Floats, Floats]:
    table = table.filter(pc.greater(table["total"], 0))
    rounds, index = np.unique(table["round"].to_numpy().astype(np.int64), return_inverse=True)

    def per_round(values: NDArray[Any]) -> Floats:
        return np.bincount(index, values, len(rounds)).astype(np.float64)

    total = table["total"].to_numpy()
    pooled = per_round(total)
    loss = per_round(table["loss"].to_numpy() * total) / pooled
    scored = metric or (_PRECISION if _PRECISION in table.column_names else "")
    if not scored:
        column, share = ("last_correct", _header(table).get("positions", 1)) if last else ("correct", 1)
        return rounds, 100.0 * per_round(table[column].to_numpy()) * share / pooled, loss
    values = table[scored].to_numpy()
    weights = np.isfinite(values) * (total if scored == _NLL else 1)
    count = per_round(weights)
    default = np.full(len(rounds), np.nan if metric else 0.0)
    mean = np.divide(per_round(np.where(weights > 0, values, 0) * weights), count, out=default, where=count > 0)
    return rounds, _scale(metric) * mean, loss


def train_losses(rounds_table: pa.Table) -> Floats:
    """Return the train loss at each round of :func:`curve`: the mean over clients that trained in it, NaN for none."""
    table = _measured(rounds_table, "test", USUAL)
    table = table.filter(pc.greater(table["total"], 0))
    if "train_loss" not in table.column_names:  # of a ledger entry from before train losses were measured
        return np.full(len(np.unique(table["round"].to_numpy())), np.nan)
    means = table.group_by("round").aggregate([("train_loss", "mean")]).sort_by("round")
    return cast(Floats, means["train_loss_mean"].to_numpy())


def _measured(rounds_table: pa.Table, population: str, view: View) -> pa.Table:
    """Return the rows of a population and a view; the table lacks a column of views if it has usual values only."""
    rows = pc.equal(rounds_table["population"].cast(pa.string()), population)
    for name, value in view._asdict().items():
        if name in rounds_table.column_names:
            rows = pc.and_(rows, pc.equal(rounds_table[name].cast(pa.string()), value))
        elif value != getattr(USUAL, name):
            rows = pc.and_(rows, False)
    return rounds_table.filter(rows)


def _header(rounds_table: pa.Table) -> dict[str, Any]:
    return dict(parse_json((rounds_table.schema.metadata or {}).get(b"pfl", b"{}")))
