"""A study, as Python sees it: results, tables, runs and partitions as DataFrames, and the models that were trained."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pflcore.artifacts import read_table
from pflcore.engine.trained import ClientModel, Trained
from pflcore.errors import UserError
from pipeline.library.found import KEPT, TRAINED, Found, NotUpToDate
from pipeline.library.frames import owners, run_row, tidy
from pipeline.library.models import find_run, trained
from pipeline.spec.specs import find_specs
from pipeline.workspace import PAPER, Workspace, report_path


@dataclass(frozen=True)
class Study:
    """A folder of specs and what was obtained for them. Nothing here trains or writes anything.

    Specs are compiled anew at every call, so what is told is about the specs and the code as they are then. Where
    something is stale, that is trained with code, data or settings that have changed since, it is left out with a
    warning, :class:`NotUpToDate`, that says what to type.
    """

    workspace: Workspace

    @property
    def specs(self) -> list[str]:
        """The names of all specs."""
        return list(find_specs(self.workspace.specs))

    def results(self, spec: str) -> pd.DataFrame:
        """What was measured: a row per run, client, measured round and population, in the order of the spec's table.

        The columns are a label for each axis of the table; ``run``, ``seed``, ``client``, ``round``; ``population``:
        ``test``, ``novel`` for the test samples of clients that never train, ``validation``; ``accuracy`` from 0 to 1,
        ``loss`` per prediction, ``correct`` and ``total`` predictions. Texts have ``last_correct`` too, the correct
        ones at last positions, and detectors ``precision``, the mean average precision. Kept results hold no losses
        of single clients: there ``loss`` is missing. A run that stands in several cells has its rows in each.

        Raises:
            UserError: There is no such spec, or nothing of it has been trained.
        """
        found = Found.of(self.workspace, spec)
        runs, states = found.runs, found.states()
        usable = [run for run in runs if states[run.id] in (TRAINED, KEPT)]
        if not usable:
            raise found.nothing(states.values())
        if len(usable) < len(runs):
            left = Counter(state for state in states.values() if state not in (TRAINED, KEPT))
            words = ", ".join(f"{count} {state}" for state, count in left.items())
            self._warn(f"{found.spec}: {words} of {len(runs)} runs are left out; type `{found.command}`")
        return pd.concat([tidy(found, run) for run in usable], ignore_index=True)

    def table(self, spec: str) -> pd.DataFrame:
        """The table of the spec's report, a row per cell: labels, published and obtained values, verdict, runs,
        and ``by_seed``, the value of each seed.

        It is ``reports/SPEC/table.parquet``. Where that is not up to date, a warning says so.

        Raises:
            UserError: There is no such spec, or its report has not been made.
        """
        found = Found.of(self.workspace, spec)
        path = f"{report_path(found.spec)}/table.parquet"
        if not (self.workspace.root / path).is_file():
            raise UserError(f"{found.spec}: its report has not been made; type `{found.command}`")
        if not found.recorded.holds(path):
            self._warn(f"{path} is not up to date: specs, code or results have changed; type `{found.command}`")
        rows, _ = read_table(self.workspace.root / path, "table/2")
        return pd.DataFrame(rows.to_pandas())

    def runs(self, spec: str) -> pd.DataFrame:
        """The runs of a spec, a row each: labels, id, settings in short, and what there is of it.

        ``state`` is ``trained``, ``kept`` (in the ledger), ``stale`` or ``missing``; of the first two there are further
        columns: whether it diverged, the last round that was measured, the device, the bytes that a client sends and
        receives in a round, what was chosen for it if it was tuned.

        Raises:
            UserError: There is no such spec.
        """
        found = Found.of(self.workspace, spec)
        rows = [row for run in found.runs for row in run_row(found, run)]
        return pd.DataFrame(rows)

    def partition(self, spec: str) -> pd.DataFrame:
        """Who holds which samples: a row per federation of the spec, client and sample.

        The columns are ``federation``, ``seed``, ``client``, ``sample`` (its row in the dataset), ``split`` (``train``,
        ``test`` or ``validation``), ``label`` and, where the dataset has any, further facts such as ``domain``.

        Raises:
            UserError: There is no such spec, or none of its data has been dealt here.
        """
        found = Found.of(self.workspace, spec)
        frames, left = owners(found)
        if not frames:
            raise found.undealt()
        if left:
            self._warn(f"{found.spec}: {left} federations are left out, not dealt or stale; type `{found.command}`")
        return pd.concat(frames, ignore_index=True)

    def model(self, run: str, client: int, *, seed: int | None = None, device: str = "cpu") -> ClientModel:
        """A client's model as it was measured after the last round of a run: see :class:`ClientModel`.

        The run's weights have to have been saved (``training: {save_weights: true}``), or its last state has to be in
        ``.pfl/states`` still, where the last checkpoint of each run stays.

        Args:
            run: Its id, or a cell of a table, ``"quickstart: FedTP, pathological"``.
            seed: Which of a cell's runs.
            device: A PyTorch device, or ``auto``. On that on which it was measured it predicts the same.

        Raises:
            UserError: There is no such run or client; it was not trained, has become stale or diverged; its weights
                are not there; or it is a detector.
        """
        return self.trained(run, seed=seed, device=device).client(client)

    def trained(self, run: str, *, seed: int | None = None, device: str = "cpu") -> Trained:
        """A run whose ``client(7)`` are models, for those who want many: its data is read once. As :meth:`model`."""
        return trained(*find_run(self.workspace, run, seed), device)

    @staticmethod
    def _warn(words: str) -> None:
        warnings.warn(words, NotUpToDate, stacklevel=3)


def open(path: str | os.PathLike[str] = ".", profile: str = PAPER) -> Study:
    """Return the study around a folder, in it or above it.

    Args:
        profile: ``paper``, or another under which specs were run, as by ``pfl run --profile smoke``.

    Raises:
        UserError: There is no folder ``specs/``.
    """
    return Study(Workspace.find(Path(path), profile))
