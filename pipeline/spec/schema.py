"""The structure of spec files, as pydantic models.

Runs and patches of runs are plain mappings here; :mod:`pipeline.spec.patches` checks them against the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema, model_validator

from pflcore.registry import did_you_mean
from pipeline.spec.metrics import Line, Metric, Part, Quantity, Where
from pipeline.spec.yamlfile import Address, show

SCALARS: dict[str, tuple[int, str]] = {
    "clients": (1, "Number of clients in the federation."),
    "seed": (0, "Seed of every random stream: initial weights, sampling, batches, and a partition without its own."),
}
"""Whole-number fields of a run: smallest value and help."""


def _check_unique(names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{show(name)} is named twice; a report has one of each figure")
    return names


# Placeholders that :mod:`pipeline.spec.editor_schema` replaces by the definitions it makes from the catalog.
RunPatch = Annotated[dict[str, Any], WithJsonSchema({"$comment": "run"})]
Axes = Annotated[dict[str, Any], WithJsonSchema({"$comment": "axes"})]
Space = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], WithJsonSchema({"$comment": "space"})]
FigureName = Annotated[str, WithJsonSchema({"$comment": "figure"})]
Natural = Annotated[int, Field(ge=0)]
Better = Literal["higher", "lower"]


class Publication(Part):
    """The publication whose table a spec reproduces."""

    name: Line = Field(description="Its name in reports.")
    citation: Line = Field("", description="Authors, title, venue, year.")
    table: Line = Field("", description="Which table or figure, as the paper numbers it.")


class Pretrain(Part):
    """The training of an encoder, by SGD with batches of 64, on a share of the training samples that no client gets."""

    share: float = Field(0.2, gt=0, lt=1, description="Share of the training samples, drawn at random.")
    epochs: int = Field(10, ge=1, description="Passes over them.")
    lr: float = Field(0.05, gt=0, description="Learning rate; the momentum is 0.9.")
    seed: Natural = Field(0, description="Seed of the draw, initial weights and batches; the run's seed has no effect.")


class Features(Part):
    """A frozen encoder, run once: clients get the input of its classifier in place of each sample."""

    backbone: str = Field(description="A name of `pfl list backbones`; its options stand beside it.")
    weights: str | None = Field(None, description="File of weights, as `pretrained` of a backbone takes it.")
    pretrain: Pretrain | None = Field(
        None, description="Instead of weights: train the encoder on some of the training samples."
    )

    @model_validator(mode="after")
    def _trained_in_one_way(self) -> Features:
        if (self.weights is None) == (self.pretrain is None):
            raise ValueError("an encoder has either `weights: FILE` or `pretrain: {}`, with options of that")
        return self


class Override(Part):
    """A patch of the runs with certain labels."""

    when: Where = Field(description="Labels of the runs to patch; all named axes must match.")
    set: RunPatch = Field(description="A patch of the run, applied after the axes.")


class Resources(Part):
    """What a run of a spec needs on a cluster. It is not part of the run, as the result does not depend on it."""

    cpus: float = Field(1.0, gt=0, description="Processor cores.")
    gpus: float = Field(0.0, ge=0, le=1, description="The share of a GPU, such as 0.25, or 1.")
    memory: float = Field(0.0, ge=0, description="GiB of the host's memory; 0: not stated.")

    def at_least(self, other: Resources) -> Resources:
        """Return the larger value of each field of both."""
        return Resources(**{name: max(getattr(self, name), getattr(other, name)) for name in Resources.model_fields})


class Grid(Part):
    """The runs of a spec."""

    base: RunPatch = Field({}, description="What all runs share.")
    axes: Axes = Field({}, description="What varies: every combination of values is a run.")
    only: Where = Field({}, description="Axis → the labels to use; its other labels are left out.")
    exclude: list[Where] = Field([], description="Combinations of labels that are left out.")
    overrides: list[Override] = Field([], description="Patches of some runs, applied in order.")


class TuneOverride(Part):
    """Search-space override for some runs."""

    when: Where = Field(description="Labels of these runs; all named axes must match.")
    space: Space = Field({}, description="Further settings → values, as in `space`.")
    trial: RunPatch = Field({}, description="A patch of these runs' trials, after that of all.")


class Tune(Part):
    """Settings that are chosen by accuracy on validation samples before the runs of a grid are trained."""

    space: Space = Field(
        {}, description="Setting of training, method or backbone → values: `training.lr: [0.01, 0.1]`."
    )
    also: list[TuneOverride] = Field([], description="Exceptions for some runs: further settings, other trials.")
    where: Where = Field({}, description="Labels of the runs to tune; default: all.")
    trials: int | None = Field(None, ge=1, description="Number of combinations to try, drawn at random; null: all.")
    seeds: list[Natural] = Field([1000], min_length=1, description="Seeds of the trials; runs must have other seeds.")
    trial: RunPatch = Field({}, description="A patch of every trial, such as `training: {rounds: 10}`.")


class Derived(Part):
    """Columns of ranks to the right of a table: one for each of its columns, or for each group of them."""

    show: Literal["rank"] = Field(description="The rank of a row within a column, 1 the best.")
    over: list[str] | None = Field(None, description="Axes of the columns to take the mean over; default: all.")


class TableSection(Part):
    """How runs become the cells of a table."""

    caption: Line = ""
    rows: list[str] = Field([], description="Axes that vary down the table, outer to inner.")
    columns: list[str] = Field([], description="Axes that vary across the table, outer to inner.")
    average_over: list[str] = Field([], description="Axes that are averaged inside a cell.")
    clients: dict[str, dict[str, Natural]] = Field({}, description="Of one axis: label → the client it shows, from 0.")
    metric: Metric = Field("last_rounds", description="The protocol of the accuracies, or another quantity.")
    quantity: Quantity = Field(Quantity(), description="Options of the metric.")
    quantities: dict[str, dict[str, Quantity]] = Field({}, description="Per axis: labels that show another quantity.")
    better: Better | None = Field(
        None, description="Which values are better, for bold and claims; default: lower costs, higher accuracies."
    )
    decimals: int = Field(2, ge=0, le=6, description="Decimal places of printed values.")
    derived: list[Derived] = Field([], description="Ranks of the rows, to the right of the columns.")
    published: str | None = Field(None, description="CSV file of the published values, relative to this file.")


COMPARISONS = ("better", "steadier")
"""The forms of claims that compare the cells of some labels with others; each form is also the key of a claim."""


class Claim(Part):
    """A statement of the paper that the obtained values can support or not, in one of three forms.

    `better`: cells, or with `over` their means, are better than others. `steadier`: the range over the axes of `over`
    is narrower; without `over`, the ± is smaller. `within`: the range over the axes of `over` is at most this value.
    """

    text: Line = Field(description="The statement in prose.")
    better: Where | None = Field(None, description="Labels of the cells said to be better.")
    steadier: Where | None = Field(None, description="Labels of the cells said to vary less, over axes or by their ±.")
    within: float | None = Field(None, ge=0, description="Largest range, in points, of cells over the axes of `over`.")
    than: Where | None = Field(None, description="Labels of the cells to compare with; `others`: all other labels.")
    over: list[str] = Field([], description="Axes that means or ranges are taken over.")
    where: Where = Field({}, description="Labels that restrict the comparison, on other axes.")
    margin: float = Field(0.0, ge=0, description="By how much better or narrower, in points.")

    @model_validator(mode="before")
    @classmethod
    def _others(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("than") == "others":
            sides = (data[form] for form in COMPARISONS if isinstance(data.get(form), dict))
            return {**data, "than": dict.fromkeys(next(sides, {}), "others")}
        return data

    @model_validator(mode="after")
    def _one_form(self) -> Claim:
        count = sum(getattr(self, form) is not None for form in (*COMPARISONS, "within"))
        if count != 1:
            forms = "`better`, `steadier` and `within`"
            raise ValueError(f"has {count} of {forms}; state one" if count else f"needs one of {forms}")
        if self.form in COMPARISONS and self.than is None:
            raise ValueError("'than' is missing")
        if self.form == "within":
            for key in ("margin", "than"):
                if getattr(self, key) not in (None, 0.0):
                    raise ValueError(f"`within` compares cells among themselves, so {key!r} does not belong there")
            if not self.over:
                raise ValueError("'over' is missing: the axes on which the cells differ that are close together")
        return self

    @property
    def form(self) -> str:
        """One of :data:`COMPARISONS`, or ``within``."""
        return next((form for form in COMPARISONS if getattr(self, form) is not None), "within")

    @property
    def side(self) -> Where:
        """The labels of the cells said to be better or steadier; {} for `within`."""
        return self.better or self.steadier or {}

    @property
    def limit(self) -> float:
        """By how much the side must be better or narrower; for `within` the largest range."""
        return self.margin if self.within is None else self.within


class SpecFile(Part):
    """One experiment: a grid of runs, the table it becomes, published values and claims."""

    extends: str | list[str] | None = Field(
        None, description="Specs to inherit from; later ones override earlier ones."
    )
    abstract: bool = Field(False, description="True: only for other specs to inherit from, without runs.")
    title: Line = Field("", description="One line, the heading of the report.")
    paper: Publication | None = None
    notes: list[Line] = Field([], description="Lines printed under the table.")
    resources: Resources = Field(Resources(), description="What its runs need on a cluster.")
    grid: Grid = Grid()
    tune: Tune | None = Field(None, description="Settings that are chosen before the runs of the grid are trained.")
    table: TableSection | None = None
    claims: list[Claim] = Field([])
    figures: Annotated[list[FigureName], AfterValidator(_check_unique)] | None = Field(
        None, description="Figures beside the table; default: the analyses that its runs made."
    )


_PYDANTIC_STEP = re.compile(r"\[key\]$|(dict|list|literal|function-[a-z]+)\[")
"""Steps that pydantic adds to the address of an error, for a bad key of a mapping and for an arm of a union."""

_FAULTS = {  # pydantic's type of error → what the value must be
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "finite",
    "bool_type": "true or false",
    "string_type": "text; quote it",
    "list_type": "a list",
    "dict_type": "`key: value` lines",
    "model_type": "`key: value` lines",
    "literal_error": "one of {expected}",
    "too_short": "a list with items",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "greater than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


def first_error(error: ValidationError, model: type[Part], noun: str = "key") -> tuple[Address, str]:
    """Return address and message of an error; missing keys come last, as a misspelt key can be the cause of one."""
    details = min(error.errors(include_url=False), key=lambda item: item["type"] == "missing")
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        *path, key = details["loc"]  # the user's key, even if it looks like a step of pydantic
        loc = (*_without_pydantic_steps(path), key)
        return loc, f"unknown {noun}{did_you_mean(str(key), _valid_keys(model, loc)) or '; there are none'}"
    loc = _without_pydantic_steps(details["loc"])
    if kind == "missing":
        return loc[:-1], f"{show(loc[-1])} is missing"
    if kind == "value_error":
        return loc, str(details["ctx"]["error"])
    words = _FAULTS.get(kind, f"otherwise: {details['msg']}").format(**details.get("ctx", {}))
    hint = f"; write {value:.0f}" if kind == "int_type" and isinstance(value, float) and value.is_integer() else ""
    return loc, f"{show(value)} must be {words}{hint}"


def _without_pydantic_steps(loc: Iterable[str | int]) -> Address:
    return tuple(part for part in loc if not _PYDANTIC_STEP.match(str(part)))


def _valid_keys(model: type[Part], loc: Address) -> list[str]:
    """Return the keys that a model may have where an unknown one was found at `loc`."""
    annotation: Any = model
    for part in loc[:-1]:
        if hasattr(annotation, "model_fields"):
            annotation = annotation.model_fields[str(part)].annotation
        else:  # the items of a list, the values of a mapping
            annotation = get_args(annotation)[-1]
        if get_origin(annotation) is UnionType:  # of something and None
            annotation = get_args(annotation)[0]
    return [field.alias or name for name, field in getattr(annotation, "model_fields", {}).items()]
