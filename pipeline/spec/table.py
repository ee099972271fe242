"""The resolved table: all that the report stage needs to know about a spec, but for its runs, as one JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pflcore.errors import UserError
from pflcore.files import read_file
from pflcore.settings import LOWER
from pipeline.spec.metrics import SCORED, Line, Metric, Part, Quantity
from pipeline.spec.run import Run, read_records
from pipeline.workspace import RECORDS

Better = Literal["higher", "lower"]
_MAX_BYTES = 1 << 22  # the table of a study of 5,000 runs has a quarter


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Publication(Part):
    """The publication whose table a spec reproduces."""

    name: Line = Field(description="How the paper is called in reports.")
    citation: Line = Field("", description="Authors, title, venue, year.")
    table: Line = Field("", description="Which table or figure, as the paper numbers it.")


class Published(_Frozen):
    """A published value, an accuracy in percent; without `mean` it is unreadable or unknown, and the note says why."""

    mean: float | None
    std: float | None
    quoted: bool  # the paper took it from another one
    note: str
    printed: str = ""  # of a quantity and of a misprint the text as the paper has it, "45.17 K"
    step: float = 0.0  # of a quantity what one is worth in its last digit
    misprint: bool = False  # it cannot be so, as the note says: it has no `mean`, and is compared with nothing
    explained: str = ""  # why what is obtained is another value, as far as that was found out


class TableCell(_Frozen):
    """One cell: a label for each row and column axis. Without `runs` nothing can be obtained for it here."""

    labels: dict[str, str]
    runs: list[str]
    client: int | None = None  # None: all clients
    quantity: Quantity | None = None  # None: accuracy
    published: Published | None = None


class TablePartition(_Frozen):
    """A partition behind the table, for the first of its seeds, and whether there is a page that shows it."""

    federation: str
    words: str
    page: bool = True


class TableClaim(_Frozen):
    """A :class:`~pipeline.spec.schema.Claim`, all of whose labels are named.

    Each cell with the labels of `side` is compared with the same cell with `than` labels; with `over` the means or the
    ranges over these axes are. `within` has no sides and is about the range of each group.
    """

    text: str
    form: str
    side: dict[str, list[str]]
    than: dict[str, list[str]]
    over: list[str]
    where: dict[str, list[str]]
    margin: float  # by which the side has to be better or narrower; of `within` how wide a range may be


class TableRank(_Frozen):
    """Columns of ranks (:class:`~pipeline.spec.schema.Derived`), with all axes named that they are the mean over."""

    over: list[str]


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
    clients: dict[str, dict[str, int]]  # of one axis or none, the labels that stand for one client
    quantities: list[str] = []  # the axes whose labels choose a quantity
    metric: Metric
    better: Better
    decimals: int
    labels: dict[str, list[str]]  # of each row and column axis, in order
    cells: list[TableCell]
    runs: dict[str, str]  # run id → its federation, of every run that a cell names
    tuned: dict[str, str] = {}  # run id → the selection that it waits for
    partitions: list[TablePartition]
    claims: list[TableClaim]
    figures: list[str] | None  # what the report shows; None: the analyses that runs made
    analyses: dict[str, str]  # headings of these, and of the listed ones
    derived: list[TableRank] = []

    @property
    def drawn(self) -> list[str]:
        """The figures that are listed, or the analyses that there are; how settings were chosen is always shown."""
        names = list(self.analyses) if self.figures is None else self.figures
        return ["tuning", *names] if self.tuned and "tuning" not in names else names

    @property
    def counted(self) -> bool:
        """Whether all of its numbers are known before anything is trained."""
        kinds = [cell.quantity.known for cell in self.cells if cell.quantity]
        return len(kinds) == len(self.cells) and all(kind and kind.source == "plan" for kind in kinds)

    @property
    def of_accuracies(self) -> bool:
        """Whether cells without a quantity are accuracies, and not another metric."""
        return self.metric not in SCORED

    @property
    def published_accuracies(self) -> int:
        """How many accuracies are published of it, whether a run is planned for them or not."""
        cells = (cell.published for cell in self.cells if self.of_accuracies and cell.quantity is None)
        return sum(published is not None and published.mean is not None for published in cells)

    def metric_of(self, quantity: Quantity | None) -> str:
        """Return the metric of a cell with this quantity."""
        return (quantity and quantity.metric) or self.metric

    def lower(self, quantity: Quantity | None = None) -> bool:
        """Whether the lower is the better; of metrics that is known, of anything else `better` says it."""
        if score := SCORED.get(self.metric_of(quantity)):
            return score in LOWER
        return self.better == "lower"

    @property
    def axes(self) -> list[str]:
        """Those of the rows, then those of the columns."""
        return [*self.rows, *self.columns]


def train_stage(run: Run) -> str:
    """Return the name of the stage that trains a run; those that read or write more are groups of their own."""
    saved = run.record["training"].get("save_weights")
    more = {"tuned": run.tuned, "pretrained": run.pretrained, "saved": saved, "analysed": run.analyses}
    return f"{'-'.join(['train', *(name for name, has in more.items() if has)])}@{run.id}"


def read_resolved(path: Path) -> ResolvedTable:
    """Return a resolved table. Raises :class:`UserError` when it is missing, or not what `pfl compile` writes."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `pfl compile`")
    try:
        return ResolvedTable.model_validate_json(read_file(path, _MAX_BYTES))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"{part}: " for part in (".".join(map(str, fault["loc"])),) if part)
        raise UserError(f"{path}: not a resolved table ({where}{fault['msg']}); run `pfl compile`") from None


def read_runs(table: ResolvedTable, root: Path) -> dict[str, Run]:
    """Return the runs of a table by id, from their records below the workspace `root`."""
    return {id_: Run(record) for id_, record in read_records(root / RECORDS, table.runs).items()}
