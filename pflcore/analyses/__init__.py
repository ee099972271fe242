"""What is looked at after the last round: one module per analysis, with the functions of :class:`Analysis`.

A module is imported by its name when a run asks for it, and by nothing else. So its code is a dependency of those runs
alone, and an edit of one makes no other run stale.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from pflcore.analyses._base import Analysis, Finding, Findings, Subject

__all__ = ["Analysis", "Finding", "Findings", "Subject", "check", "find", "load"]


def load(name: str) -> Analysis:
    """The analysis called `name`, one of :data:`pflcore.settings.ANALYSES`."""
    module: Any = importlib.import_module(f"pflcore.analyses.{name}")
    analysis: Analysis = module
    return analysis


def check(subject: Subject) -> None:
    """Before the first round: raises :class:`pflcore.errors.UserError` for an analysis that the run cannot have."""
    for name in subject.evaluation.analyses:
        load(name).check(subject)


def find(subject: Subject) -> Findings:
    """After the last round: what the analyses that the run asks for find.

    On a CPU they use one thread, as clients do, so that sums do not depend on how many there are.
    """
    if not subject.evaluation.analyses:
        return {}
    threads = torch.get_num_threads()
    if subject.trainer.data.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        return {name: list(load(name).findings(subject)) for name in subject.evaluation.analyses}
    finally:
        torch.set_num_threads(threads)
