"""By what a round may be chosen: by validation, where samples are held back for it, and not by test."""

from __future__ import annotations

from collections.abc import Iterable

from pflcore.settings import impatience
from pipeline.spec.draft import Options, Patch, Patcher
from pipeline.spec.run import Run
from pipeline.spec.schema import TableSection
from pipeline.spec.yamlfile import Address


def validates(run: Run) -> bool:
    """Whether the partition of a run holds samples back for validation."""
    return bool(run.record["partition"].get("validation_share"))


def check_choice(layout: TableSection, runs: Iterable[Run], patcher: Patcher) -> None:
    """Raises :class:`UserError` when a table chooses rounds by validation samples that a run lacks."""
    lacking = next((run for run in runs if not validates(run)), None)
    if layout.metric == "best_by_validation" and lacking:
        raise patcher.document.error(
            ("table", "metric"),
            f"{layout.metric!r} needs validation samples, and the partition {lacking.partition!r} on {lacking.dataset} "
            "holds none back; set its validation_share",
        )


def check_patience(run: Run, draft: Patch, patcher: Patcher) -> None:
    """Raises :class:`UserError`, at the place that says so, when a run is to be stopped early and cannot be."""
    if reason := impatience(run.training, run.evaluation, validates(run)):
        part = draft["training"]
        address: Address = ("grid", "base", "training")
        if isinstance(part, Options) and "patience" in part.values:
            address = part.values["patience"].address
        raise patcher.document.error(address, reason)
