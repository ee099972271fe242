"""Divergence: a loss that is not finite ends a run, and the report says so instead of showing a number."""

from __future__ import annotations


class Diverged(Exception):
    """Local training, or the models it left behind, produced a loss that is not finite."""

    def __init__(self, round_: int, client: int) -> None:
        super().__init__(round_, client)  # all that there is, so that it can pass between processes
        self.round = round_
        self.client = client

    def __str__(self) -> str:
        return f"diverged in round {self.round} at client {self.client}: the loss is not finite; try a smaller lr"
