"""The resolved table: a JSON file with all that the report stage needs of a spec, except its runs."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pflcore.errors import UserError
from pflcore.files import read_file
from pflcore.settings import LOWER
from pipeline.spec.metrics import QUANTITIES, SCORED, Metric, Quantity
from pipeline.spec.run import Run, read_records
from pipeline.spec.schema import Better, Claim, Publication
from pipeline.workspace import RECORDS

_MAX_BYTES = 1 << 22  # four times the table of a study of 5,000 runs


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Published(_Frozen):
    """A published value, an accuracy in percent. Without `mean` it is unreadable or unknown, as the note says."""

    mean: float | None
    std: float | None
    quoted: bool  # the paper took it from another paper
    note: str
    printed: str = ""  # the paper's text of a quantity or of a misprint, such as "45.17 K"
    step: float = 0.0  # of a quantity: the value of 1 in its last digit
    misprint: bool = False  # cannot be right, as the note says: without `mean`, and compared with nothing
    explained: str = ""  # why the obtained value differs, if that is known


class TableCell(_Frozen):
    """One cell: a label for each row and column axis. A cell without `runs` has no obtained value."""

    labels: dict[str, str]
    runs: list[str]
    client: int | None = None  # None: all clients
    quantity: Quantity | None = None  # None: the table's metric in the usual view
    published: Published | None = None


class TablePartition(_Frozen):
    """A partition of the table's runs, under its first seed, and whether there is a page that shows it."""

    federation: str
    words: str
    page: bool = True


class ResolvedTable(_Frozen):
    """A table with its cells in reading order, rows first."""

    spec: str
    title: str
    profile: str
    paper: Publication | None
    notes: list[str]
    caption: str
    rows: list[str]
    columns: list[str]
    clients: dict[str, dict[str, int]]  # axis (at most one) → label → client, for labels of one client
    quantities: list[str] = []  # the axes whose labels choose a quantity
    metric: Metric
    better: Better | None
    decimals: int
    labels: dict[str, list[str]]  # labels of each row and column axis, in order
    cells: list[TableCell]
    runs: dict[str, str]  # run id → id of its federation, for every run in a cell
    tuned: dict[str, str] = {}  # run id → id of the selection that it waits for
    partitions: list[TablePartition]
    claims: list[Claim]  # with the labels of `others` written out
    figures: list[str] | None  # figures of the report; None: the analyses that runs made
    analyses: dict[str, str]  # analysis → heading, of those that runs made or `figures` names
    derived: list[list[str]] = []  # columns of ranks (:class:`~pipeline.spec.schema.Derived`): the axes of the mean

    @property
    def drawn(self) -> list[str]:
        """The figures that are listed, or else the analyses of the runs; of tuned runs always the figure ``tuning``."""
        names = list(self.analyses) if self.figures is None else self.figures
        return ["tuning", *names] if self.tuned and "tuning" not in names else names

    @property
    def counted(self) -> bool:
        """Whether all numbers of the table are known before anything is trained."""
        kinds = [cell.quantity.definition for cell in self.cells if cell.quantity]
        return len(kinds) == len(self.cells) and all(kind and kind.source == "plan" for kind in kinds)

    @property
    def shows_accuracy(self) -> bool:
        """Whether cells without a quantity are accuracies, and not another metric."""
        return self.metric not in SCORED

    @property
    def published_accuracies(self) -> int:
        """The number of published accuracies, including those of cells without runs."""
        cells = (cell.published for cell in self.cells if self.shows_accuracy and cell.quantity is None)
        return sum(published is not None and published.mean is not None for published in cells)

    def metric_of(self, quantity: Quantity | None) -> str:
        """Return the metric of a cell with this quantity."""
        return (quantity and quantity.metric) or self.metric

    def lower(self, quantity: Quantity | None = None) -> bool:
        """Return whether lower values are better: a fixed property of metrics. Otherwise `better` states it; by default
        lower costs are better, and higher accuracies and weights of attention."""
        metric = self.metric_of(quantity)
        if score := SCORED.get(metric):
            return score in LOWER
        if self.better:
            return self.better == "lower"
        return metric in QUANTITIES and QUANTITIES[metric].lower

    @property
    def axes(self) -> list[str]:
        """The axes of the rows, then those of the columns."""
        return [*self.rows, *self.columns]


def train_stage(run: Run) -> str:
    """Return the name of a run's train stage. Runs with further inputs or outputs are in groups of their own."""
    saved = run.record["training"].get("save_weights")
    suffixes = {"tuned": run.tuned, "pretrained": run.pretrained, "saved": saved, "analysed": run.analyses}
    return "-".join(["train", *(suffix for suffix, used in suffixes.items() if used)]) + f"@{run.id}"


def read_resolved(path: Path) -> ResolvedTable:
    """Return a resolved table. Raises :class:`UserError` when it is missing, or not what `pfl compile` writes."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`")
    try:
        return ResolvedTable.model_validate_json(read_file(path, _MAX_BYTES))
    except ValidationError:
        raise UserError(f"{path}: edited by hand; run `pfl compile`") from None


def read_runs(table: ResolvedTable, root: Path) -> dict[str, Run]:
    """Return the runs of a table by id, from their records below the workspace `root`."""
    return {id_: Run(record) for id_, record in read_records(root / RECORDS, table.runs).items()}
