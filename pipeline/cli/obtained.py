"""The results of a spec, as rows for a terminal or a CSV file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from pflcore.settings import METRICS
from pipeline.cli.common import print_table
from pipeline.library.study import NotUpToDate, Study, labels_of
from pipeline.progress import warn
from pipeline.report.cells import WITHOUT_VALUE
from pipeline.workspace import Workspace

_CELL = ("obtained_mean", "obtained_std", "n", "published_mean", "published_std", "difference", "verdict")


def load_results(workspace: Workspace, spec: str, per_client: bool) -> pd.DataFrame:
    """Return a row per cell of a spec's table, or with `per_client` per run and client after the run's last round."""
    study = Study(workspace)
    with printed_warnings():
        if per_client:
            return _last_rounds(study.results(spec))
        table = study.table(spec)
    verdicts = table["verdict"].where(table["published_mean"].notna() | table["verdict"].isin(WITHOUT_VALUE))
    return table.assign(verdict=verdicts)[[*labels_of(table), *_CELL]]


@contextmanager
def printed_warnings() -> Iterator[None]:
    """Print the warnings of a study in the block, each as one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotUpToDate)
        yield
    warn(str(warning.message) for warning in caught)


def print_frame(frame: pd.DataFrame) -> None:
    """Print rows as a table. Numbers are aligned to the right, floats have two decimals, empty columns are left out."""
    frame = frame.dropna(axis="columns", how="all")
    numbers = [str(name) for name in frame if pd.api.types.is_numeric_dtype(frame[name])]
    text = frame.map(lambda value: f"{value:.2f}" if isinstance(value, float) else str(value))
    print_table(frame.columns, numbers, text.where(frame.notna(), "").itertuples(index=False))


def _last_rounds(measured: pd.DataFrame) -> pd.DataFrame:
    """Return the measurements after each run's last round, in percent except losses."""
    last = measured[measured["round"] == measured.groupby("run")["round"].transform("max")]
    percent = [name for name in ("accuracy", "precision", *METRICS) if name in last and name != "nll"]
    return last.assign(**{name: 100 * last[name] for name in percent})
