"""Evaluation protocols: queries over the ``rounds/2`` table that turn counts per client and round into figures.

Papers mean different things by "accuracy" and by "±", so a run stores counts only and each protocol is a query. All
accuracies are in percent, of the personalised models of all clients, after aggregation, on test samples; means are
unweighted and deviations those of a population.

- ``last_rounds`` (FedTP, section IV-B): pooled over clients, at each round measured near the end of training; mean and
  deviation over those rounds. The ± is the fluctuation within one run.
- ``clients`` (FedPerfix, section 4.1): mean and deviation over clients after the last round.
- ``final``: pooled after the last round, for papers that give no spread.
- ``worst_tenth`` (Li et al., q-FFL, ICLR 2020, "worst 10%"): as ``clients``, of the tenth that fare worst, rounded up
  to whole clients. Clients without test samples do not count.
- ``last_position``: as ``last_rounds``, but of a text only the character after its last one counts. Nothing can leak
  there from an attention without causal mask; of images it is the same as ``last_rounds``.
- ``best_by_validation``: pooled at the measured round whose pooled accuracy on validation samples is best, the earliest
  of several; for partitions that hold samples back. One round of one run has no ±.
- ``validation``: as ``last_rounds``, on validation samples: what settings are chosen by. No table shows it.

Of a detector a client's figure is its mean average precision, in the column `precision`, and the plain mean of the
clients' stands wherever accuracy is pooled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pflcore.errors import UserError
from pflcore.files import parse_json
from pflcore.settings import Evaluation, Training

_PRECISION = "precision"
Floats = NDArray[np.float64]
Figures = dict[str, dict[str, float]]
"""Protocol -> ``{"mean": percent, "std": percentage points, "n": what the std is taken over}``, and ``round`` where one
was chosen."""


def summarise(rounds_table: pa.Table, evaluation: Evaluation, rounds: int) -> Figures:
    """Return the figures of a run under every protocol that it was measured for; ``{}`` for a run that diverged.

    Raises :class:`UserError` where a round of the schedule was not measured; `rounds` are from :func:`rounds_trained`.
    """
    if _header(rounds_table).get("diverged") is not None:
        return {}
    measured, accuracy, _ = curve(rounds_table)
    steps = [r for r in evaluation.due(rounds) if evaluation.in_window(r, rounds)]
    if lacking := sorted(set(steps) - set(measured.tolist())):
        raise UserError(
            f"the rounds table lacks round {lacking[0]} of {rounds}, which every = {evaluation.every} and "
            f"window = {evaluation.window} ask for; delete it and run again"
        )
    window = np.isin(measured, steps)
    clients = final_clients(rounds_table)["accuracy"].to_numpy()
    clients = 100.0 * clients[~np.isnan(clients)]
    figures = {
        "last_rounds": _spread(accuracy[window]),
        "clients": _spread(clients),
        "final": _spread(accuracy[-1:]),
        "worst_tenth": worst_tenth(clients),
        "last_position": _spread(curve(rounds_table, last=True)[1][window]),
    }
    held_back, by_validation, _ = curve(rounds_table, "validation")
    if len(held_back):
        best = int(held_back[by_validation.argmax()])  # the first of several
        figures["validation"] = _spread(by_validation[np.isin(held_back, steps)])
        figures["best_by_validation"] = {**_spread(accuracy[measured == best]), "round": best}
    return figures


def rounds_trained(rounds_table: pa.Table, training: Training) -> int:
    """Return the last round of a run that has not diverged: one that may be stopped early was measured there."""
    if training.patience is None:
        return training.rounds
    return int(pc.max(rounds_table["round"]).as_py() or 0)


def worst_tenth(accuracies: Floats) -> dict[str, float]:
    """Return the figures of the protocol ``worst_tenth``, of the accuracies in percent [clients] of one run."""
    return _spread(np.sort(accuracies)[: -(-len(accuracies) // 10)])


def _spread(values: Floats) -> dict[str, float]:
    return {"mean": float(values.mean()), "std": float(values.std()), "n": len(values)}


def final_clients(rounds_table: pa.Table) -> pa.Table:
    """Return the ``evaluation/1`` rows, each client at the last measured round: client, correct, total, accuracy (0 to
    1; NaN for a client without test samples; of a detector its mean average precision), loss; by client."""
    table = _measured(rounds_table, "test")
    last = table.filter(pc.equal(table["round"], pc.max(table["round"]))).sort_by("client")
    correct, total = last["correct"].to_numpy(), last["total"].to_numpy()
    accuracy = np.divide(correct, total, out=np.full(len(total), np.nan), where=total > 0)
    if _PRECISION in last.column_names:
        accuracy = last[_PRECISION].to_numpy()
    columns = last.select(["client", "correct", "total"])
    return columns.append_column("accuracy", pa.array(accuracy)).append_column("loss", last["loss"])


def curve(
    rounds_table: pa.Table, population: str = "test", *, last: bool = False
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return measured rounds in ascending order, and at each the pooled accuracy in percent, with `last` that at last
    positions, and the mean loss over all samples; of detectors the mean of the clients' mean average precisions, where
    one without an object to find does not count. All are empty where the population has none."""
    table = _measured(rounds_table, population)
    table = table.filter(pc.greater(table["total"], 0))
    rounds, index = np.unique(table["round"].to_numpy().astype(np.int64), return_inverse=True)

    def per_round(values: NDArray[Any], rows: Any = slice(None)) -> Floats:
        return np.bincount(index[rows], values[rows], len(rounds)).astype(np.float64)

    total = table["total"].to_numpy()
    pooled = per_round(total)
    loss = per_round(table["loss"].to_numpy() * total) / pooled
    if _PRECISION not in table.column_names:
        column, share = ("last_correct", _header(rounds_table).get("positions", 1)) if last else ("correct", 1)
        return rounds, 100.0 * per_round(table[column].to_numpy()) * share / pooled, loss
    precision = table[_PRECISION].to_numpy()
    known = np.isfinite(precision)
    count = per_round(known)
    mean = np.divide(per_round(precision, known), count, out=np.zeros(len(rounds)), where=count > 0)
    return rounds, 100.0 * mean, loss


def _measured(rounds_table: pa.Table, population: str) -> pa.Table:
    """Return rows of a population at the one moment that the protocols look at."""
    is_of = pc.equal(rounds_table["population"].cast(pa.string()), population)
    is_after = pc.equal(rounds_table["moment"].cast(pa.string()), "after_aggregation")
    return rounds_table.filter(pc.and_(is_of, is_after))


def _header(rounds_table: pa.Table) -> dict[str, Any]:
    header: dict[str, Any] = parse_json((rounds_table.schema.metadata or {}).get(b"pfl", b"{}"))
    return header
