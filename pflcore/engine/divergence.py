"""Divergence: a loss that is not finite ends a run, and the report says so instead of showing a number."""

from __future__ import annotations


class Diverged(Exception):
    """Local training, or the models it left behind, produced a loss that is not finite."""

    def __init__(self, round_: int, client: int) -> None:
        super().__init__(f"diverged in round {round_} at client {client}: the loss is not finite; try a smaller lr")
        self.round = round_
        self.client = client
