"""The numbers that a table can show: accuracies and other metrics, each under a protocol, and :data:`QUANTITIES`.

A metric other than accuracy is named with its protocol, ``clients.auc``; ``auc`` alone is ``last_rounds.auc``. The
entry of a quantity states what its numbers are, their unit, their source and the options of the quantity.
The types that all models of a spec share are also here: strict models, labels, prose.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_serializer,
)

from pflcore.errors import UserError
from pflcore.settings import METRICS, View
from pipeline.spec.yamlfile import show


def label_text(value: Any) -> str:
    """Return a label as text: 50 is ``"50"``, null is ``"null"``. Raises ``ValueError`` for any other value."""
    if value is None or isinstance(value, bool):
        return show(value)
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"{show(value)} is not a label")


def _label_list(value: Any) -> list[str]:
    if value == []:
        raise ValueError("an empty list selects nothing; leave the axis out to select every label")
    return [label_text(item) for item in (value if isinstance(value, list) else [value])]


_SCALAR = {"type": ["string", "number", "boolean"]}
_SCALARS = {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}]}
Label = Annotated[str, BeforeValidator(label_text), WithJsonSchema(_SCALAR)]
Where = dict[str, Annotated[list[str], BeforeValidator(_label_list), WithJsonSchema(_SCALARS)]]
"""One or several labels per axis; an axis that is not named is not restricted."""
Line = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
"""Prose for a report; folded YAML text loses its line ends."""


class Part(BaseModel):
    """Base of the parts of a spec: strict types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


Protocol = Literal["last_rounds", "last_ten", "clients", "final", "worst_tenth", "last_position", "best_by_validation"]
"""Protocols of accuracies, from :mod:`pflcore.protocols`; and ``last_ten``, the mean of a run's last ten measurements,
for papers that name no round."""

OF_ONE_ROUND = ("final", "best_by_validation")
"""Protocols that measure one round, so their accuracies have no ± within a run."""

PERCENT, COUNT, BYTES, PLAIN = "%", "n", "B", ""
"""Units: percent; numbers in thousands, millions, … (K, M); likewise bytes (kB, MB); numbers as they are."""

BACKBONE = "backbone"
"""In place of a row: the parameters of the backbone, without those that the method adds to it."""


class QuantityKind(NamedTuple):
    """A kind of number other than accuracies and metrics."""

    words: str  # what a number is; it follows "each number is"
    heading: str  # the same in a few words, for the head of a column
    # Counted before training, in the facts of a run, in the curve of its measurements, or in the analysis ``mixing``.
    source: Literal["plan", "run", "curve", "mixing"]
    unit: str = COUNT
    takes: tuple[str, ...] = ()  # the options of :class:`Quantity` that it requires or accepts
    lower: bool = True  # whether lower numbers are better unless a table says otherwise


_STORED = "how many numbers a client holds during a round: what it keeps, a second model included, and what it receives"
_STEP = "floating-point operations of one local step on a whole batch, forward and backward"
_FORWARD = "floating-point operations of one forward pass of one sample"
_FLOPS = "a multiply-add is two, and only matrix products and convolutions count"
_UP, _DOWN = (f"bytes that a client {verb} in a round, the mean over all" for verb in ("sends", "receives"))
_ROUNDS = "the first measured round with a pooled test accuracy of at least"
_ATTENTION = (
    "the weight (0 to 1) that clients give to a kind of local attention at a position in the network, "
    "or the mean over positions"
)
_MODEL = "how many trained parameters the model of a client has, with what the method adds to it"
QUANTITIES: dict[str, QuantityKind] = {
    "parameters": QuantityKind(_MODEL, "parameters", "plan"),
    "shared": QuantityKind("how many of the model's parameters come from the server", "shared parameters", "plan"),
    "personal": QuantityKind("how many of the model's parameters stay on the client", "personal parameters", "plan"),
    "stored": QuantityKind(_STORED, "stored", "plan"),
    "sent": QuantityKind("how many numbers a client sends to the server in a round", "sent", "plan"),
    "step_flops": QuantityKind(f"{_STEP}; {_FLOPS}", "FLOPs of a step", "plan"),
    "forward_flops": QuantityKind(f"{_FORWARD}; {_FLOPS}", "FLOPs of a forward pass", "plan"),
    "bytes_up": QuantityKind(_UP, "bytes up", "run", BYTES),
    "bytes_down": QuantityKind(_DOWN, "bytes down", "run", BYTES),
    "rounds_to": QuantityKind(_ROUNDS, "rounds", "curve", PLAIN, ("accuracy",)),
    "attention_weight": QuantityKind(_ATTENTION, "attention weight", "mixing", PLAIN, ("kind", "position"), False),
}
"""Every quantity by its name, which is the metric of a table or a cell."""

_SCORED_PROTOCOLS = [name for name in get_args(Protocol) if name not in ("last_ten", "last_position")]
SCORED = {f"{protocol}.{score}": score for score in METRICS for protocol in _SCORED_PROTOCOLS}
"""Metrics other than accuracy as a table can name them, and the metric: ``clients.auc`` → ``auc``."""
_NAMES = (*get_args(Protocol), *QUANTITIES, *METRICS)


def _with_protocol(value: Any, check: ValidatorFunctionWrapHandler) -> str:
    """Return a metric with its protocol. :data:`SCORED` has too many names for a message that lists valid names."""
    if isinstance(value, str) and value in SCORED:
        return value
    if isinstance(value, str) and value.partition(".")[2]:
        raise ValueError(f"{show(value)} is no metric under a protocol, such as 'clients.auc'")
    name = str(check(value))
    return f"last_rounds.{name}" if name in METRICS else name


if TYPE_CHECKING:
    Metric = str
else:
    _IN_EDITORS = WithJsonSchema({"enum": [*_NAMES, *SCORED], "type": "string"})
    Metric = Annotated[Literal[_NAMES], WrapValidator(_with_protocol), _IN_EDITORS]
    """What a table can name: a protocol, a metric under one, or one of :data:`QUANTITIES`."""


class Quantity(Part):
    """What cells show in place of the table's metric, or options of that metric."""

    metric: Metric | None = Field(None, description="Default: the table's.")
    percent_of: dict[str, Label] = Field({}, description="Shown in percent of the row with these labels.")
    added_to: dict[str, Label] | Literal["backbone"] | None = Field(
        None, description="Shown as the increase over the row with these labels, or over the backbone, in percent."
    )
    accuracy: float | None = Field(None, gt=0, le=100, description="Of `rounds_to`: the accuracy in percent.")
    kind: Literal["se", "eca", "ca"] | None = Field(None, description="Of `attention_weight`.")
    position: int | None = Field(None, ge=1, description="Of `attention_weight`, from 1; default: the mean over all.")
    model: Literal["personal", "global"] | None = Field(None, description="Whose model; default: each client's own.")
    moment: Literal["after_aggregation", "after_training"] | None = Field(
        None, description="When; default: after aggregation."
    )
    on: Literal["own", "all"] | None = Field(None, description="On whose test samples; default: the client's own.")

    @model_serializer(mode="wrap")
    def _without_unset_view(self, handler: Any) -> dict[str, Any]:
        """Leave out unset fields of the view, so that tables without a view have the text of earlier versions."""
        values: dict[str, Any] = handler(self)
        return {name: value for name, value in values.items() if name not in View._fields or value is not None}

    @property
    def definition(self) -> QuantityKind | None:
        """The entry of :data:`QUANTITIES`; None for an accuracy or another metric."""
        return QUANTITIES.get(self.metric or "")

    @property
    def view(self) -> View:
        """Which model is measured, when, and on whose samples."""
        return View(**{name: value for name in View._fields if (value := getattr(self, name))})

    @property
    def key(self) -> str:
        """The name of a run's value of this quantity: ``parameters``, ``rounds_to 80``, ``clients.auc global``."""
        options = [getattr(self, option) for option in (self.definition.takes if self.definition else ())]
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in options if value is not None]
        return " ".join([self.metric or "", *texts, self.view.words]).rstrip()

    @property
    def row(self) -> dict[str, str]:
        """The labels of the row that is 100 percent; {} if no row is, or if the backbone is."""
        return self.added_to if isinstance(self.added_to, dict) else self.percent_of

    @property
    def relative(self) -> bool:
        """Whether it is shown in percent of something."""
        return bool(self.percent_of or self.added_to)

    @property
    def unit(self) -> str:
        """The unit of the value that is shown."""
        return PERCENT if self.relative or self.definition is None else self.definition.unit

    @property
    def heading(self) -> str:
        """The heading of a table that shows only this quantity."""
        words = self.definition.heading if self.definition else ""
        return f"{words} ({'added, ' if self.added_to else ''}%)" if self.relative else words

    def with_defaults(self, base: Quantity) -> Quantity:
        """Return this quantity with unset fields taken from `base`."""
        if not self.model_fields_set:
            return base
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})

    def problem(self) -> str | None:
        """Return an error message if fields contradict each other or the metric; None if they do not."""
        takes = self.definition.takes if self.definition else View._fields
        for option in ("accuracy", "kind", "position", *View._fields):
            if getattr(self, option) is not None and option not in takes:
                return f"{option!r} is no option of the metric {self.metric!r}"
            if getattr(self, option) is None and option in takes and option not in ("position", *View._fields):
                return f"the metric {self.metric!r} needs {option!r}"
        if self.view.model == "global" and self.view.moment == "after_training":
            return "the global model exists only after aggregation; after training only clients have models"
        if self.percent_of and self.added_to:
            return "'percent_of' and 'added_to' are one too many"
        if self.relative and (self.definition is None or self.definition.source != "plan"):
            return f"the metric {self.metric!r} is not shown in percent of anything"
        return None


_PRINTED = re.compile(r"(?:< ?)?(-?[0-9]+(?:\.([0-9]+))?) ?([KMGT]?)(B?)%?")
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def read_printed(text: str) -> tuple[float, float]:
    """Return the value of a printed number, such as ``45.17 K``, ``45.6 MB`` or ``< 0.01``, and of 1 in its last digit.

    Raises :class:`UserError` for any other text.
    """
    if not (match := _PRINTED.fullmatch(text)):
        raise UserError(f"{text!r} is not a number")
    number, decimals, scale, _ = match.groups()
    return float(number) * _SCALE[scale], _SCALE[scale] * 10.0 ** -len(decimals or "")
