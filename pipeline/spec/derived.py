"""What a spec may say of derived columns: numbers beside a table that are worked out from its cells and their runs.

What each shows is worked out in :mod:`pipeline.report.table.derived`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline.spec.parts import Label, Part

Shown = Literal["mean", "difference", "rank", "worst_tenth", "spread", "share_worse"]

AGAINST_A_ROW = ("difference", "share_worse")
OVER_COLUMNS = ("mean", "rank")
"""Those that are taken over all columns where nothing is said."""


class Derived(Part):
    """Columns to the right of a table: one for each of its columns, or with `over` one for each group of them."""

    show: Shown = Field(
        description="`mean`: of the numbers. `difference`: to another row, in points. `rank`: within a column, 1 the "
        "best. `worst_tenth`, `spread`: mean of the worst tenth of the clients, and standard deviation over clients. "
        "`share_worse`: percent of the clients that are worse than under another row."
    )
    than: dict[str, Label] = Field(
        default_factory=dict, description="Of `difference` and `share_worse`: the labels of the row to compare with."
    )
    over: list[str] | None = Field(
        None, description="Axes of the columns to take the mean over; left out: all for `mean` and `rank`, else none."
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Derived:
        if self.show in AGAINST_A_ROW and not self.than:
            raise ValueError(f"`{self.show}` compares with a row, so 'than' is missing")
        if self.show not in AGAINST_A_ROW and self.than:
            raise ValueError(f"`{self.show}` compares with no row, so 'than' does not belong there")
        return self
