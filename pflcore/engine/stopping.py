"""Early stopping: training ends when accuracy on validation samples no longer improves.

It is a function of the measurements so far, so a run that was interrupted, or that begins where another one ended,
stops where it would have stopped anyway.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pflcore.engine.state import History


def stops_after(history: History, patience: int | None, novel: Collection[int] = ()) -> int | None:
    """The round after which training stops; None as long as it goes on.

    Args:
        history: Without gaps up to its last round.
        patience: Measurements without a better figure of all clients together that end it; None never does.
        novel: Clients that do not count.
    """
    if not patience:
        return None
    best, waited = -1.0, 0
    here = ~np.isin(np.arange(history.clients), sorted(novel))
    for round_ in sorted(history.scores):
        figure = history.figure(round_, here)  # of the same samples in every round
        if figure is None:
            break
        best, waited = (figure, 0) if figure > best else (best, waited + 1)
        if waited == patience:
            return round_
    return None
