"""What a spec file may say: its structure as pydantic models, and the whole language as a JSON Schema for editors.

Runs and patches of runs are plain mappings here; :mod:`pipeline.spec.draft` checks them against the catalog.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, Field, WithJsonSchema

from pipeline.spec.catalog import Catalog
from pipeline.spec.claim import Claim, forms_schema
from pipeline.spec.fields import Fields
from pipeline.spec.figures import figure_names
from pipeline.spec.inherit import ADD
from pipeline.spec.metrics import Metric, Quantity
from pipeline.spec.parts import Line, Part, Where
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.shared_schema import share
from pipeline.spec.table import Better, Publication
from pipeline.spec.yamlfile import show

SCALARS: dict[str, tuple[int, str]] = {
    "clients": (1, "Number of clients in the federation."),
    "seed": (0, "Seed of every random stream: partition, initial weights, sampling, batches."),
}
"""Whole-number fields of a run: smallest value and help."""


def _each_once(names: list[str]) -> list[str]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{show(twice[0])} is named twice; a report has one of each figure")
    return names


# Placeholders that json_schema() replaces by the definitions it makes from the catalog.
RunPatch = Annotated[dict[str, Any], WithJsonSchema({"$comment": "run"})]
Axes = Annotated[dict[str, Any], WithJsonSchema({"$comment": "axes"})]
FigureName = Annotated[str, WithJsonSchema({"$comment": "figure"})]
ClientNumber = Annotated[int, Field(ge=0)]


class Override(Part):
    """A patch of the runs with certain labels."""

    when: Where = Field(description="Labels of the runs to patch; all named axes must match.")
    set: RunPatch = Field(description="A patch of the run, applied after the axes.")


class Resources(Part):
    """What a run of a spec needs on a cluster. Not part of the run: the result does not depend on it."""

    cpus: float = Field(1.0, gt=0, description="Processor cores.")
    gpus: float = Field(0.0, ge=0, le=1, description="The share of a GPU, such as 0.25, or 1.")
    memory: float = Field(0.0, ge=0, description="GiB of the host's memory; 0 does not say.")

    def at_least(self, other: Resources) -> Resources:
        """What satisfies both."""
        return Resources(
            cpus=max(self.cpus, other.cpus), gpus=max(self.gpus, other.gpus), memory=max(self.memory, other.memory)
        )


class Grid(Part):
    """The runs of a spec."""

    base: RunPatch = Field(default_factory=dict, description="What all runs share.")
    axes: Axes = Field(default_factory=dict, description="What varies: every combination of values is a run.")
    only: Where = Field(
        default_factory=dict, description="Of the axes named here these labels are kept, and all others left out."
    )
    exclude: list[Where] = Field(default_factory=list, description="Combinations that are no runs.")
    overrides: list[Override] = Field(default_factory=list, description="Patches of some runs, applied in order.")


Space = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], WithJsonSchema({"$comment": "space"})]


class MoreToTune(Part):
    """What is otherwise in the tuning of some runs."""

    when: Where = Field(description="Labels of these runs; all named axes must match.")
    space: Space = Field(default_factory=dict, description="Further settings → values, as in `space`.")
    trial: RunPatch = Field(default_factory=dict, description="A patch of these runs' trials, after that of all.")


class Tune(Part):
    """What is chosen by accuracy on validation samples before the runs of a grid are trained."""

    space: Space = Field(
        default_factory=dict,
        description="Setting → values to try, `training.lr: [0.01, 0.1]`; of `training`, `method` or `backbone`.",
    )
    also: list[MoreToTune] = Field(
        default_factory=list, description="What is otherwise for some runs: further settings, other trials."
    )
    where: Where = Field(default_factory=dict, description="Labels of the runs that are tuned; left out: all.")
    trials: int | None = Field(
        None, ge=1, description="Most combinations that are tried, drawn at random where there are more; null: all."
    )
    draw: int = Field(0, ge=0, description="Seed of that draw; equal spaces draw the same.")
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=lambda: [1000], min_length=1, description="Seeds of the trials, none of which a run may have."
    )
    trial: RunPatch = Field(
        default_factory=dict, description="A patch of every trial, such as `training: {rounds: 10}` to make it shorter."
    )


class Derived(Part):
    """Columns of ranks to the right of a table: one for each of its columns, or for each group of them."""

    show: Literal["rank"] = Field(description="The rank of a row within a column, 1 the best.")
    over: list[str] | None = Field(None, description="Axes of the columns to take the mean over; left out: all.")


class TableSection(Part):
    """How runs become the cells of a table."""

    caption: Line = ""
    rows: list[str] = Field(default_factory=list, description="Axes that vary down the table, outer to inner.")
    columns: list[str] = Field(default_factory=list, description="Axes that vary across the table, outer to inner.")
    average_over: list[str] = Field(default_factory=list, description="Axes that are averaged inside a cell.")
    clients: dict[str, dict[str, ClientNumber]] = Field(
        default_factory=dict,
        description="Of one axis: labels whose cells are of a single client, and its number, counted from 0.",
    )
    metric: Metric = Field(
        "last_rounds", description="The protocol under which accuracy is reported, or another quantity."
    )
    quantity: Quantity = Field(default_factory=Quantity, description="What more is to be said of a metric.")
    quantities: dict[str, dict[str, Quantity]] = Field(
        default_factory=dict, description="Per axis: labels whose cells show another quantity, and which."
    )
    better: Better = Field("higher", description="Which values are set in bold.")
    decimals: int = Field(2, ge=0, le=6, description="Decimal places of printed values.")
    derived: list[Derived] = Field(default_factory=list, description="Ranks of the rows, to the right of the columns.")
    published: str | None = Field(None, description="CSV file of the published values, relative to this file.")


class SpecFile(Part):
    """One experiment: a grid of runs, the table it becomes, published values and claims."""

    extends: str | list[str] | None = Field(
        None, description="A spec to inherit from, relative to this file, or several, each laid over those before it."
    )
    abstract: bool = Field(False, description="Only to be inherited from: compiles to nothing.")
    title: Line = Field("", description="One line, the heading of the report.")
    paper: Publication | None = None
    notes: list[Line] = Field(default_factory=list, description="Lines printed under the table.")
    resources: Resources = Field(default_factory=Resources, description="What its runs need on a cluster.")
    grid: Grid = Field(default_factory=Grid)
    tune: Tune | None = Field(None, description="Settings that are chosen before the runs of the grid are trained.")
    table: TableSection | None = None
    claims: list[Claim] = Field(default_factory=list)
    figures: Annotated[list[FigureName], AfterValidator(_each_once)] | None = Field(
        None,
        description="What the report shows beside its table, in this order; left out: the analyses that its runs made.",
    )


def known_keys(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that a spec may have where an unknown one was found at `loc`."""
    annotation: Any = SpecFile
    for part in loc[:-1]:
        if hasattr(annotation, "model_fields"):
            annotation = annotation.model_fields[str(part)].annotation
        else:  # the items of a list, the values of a mapping
            annotation = get_args(annotation)[-1]
        if get_origin(annotation) is UnionType:  # of something and None
            annotation = get_args(annotation)[0]
    return list(getattr(annotation, "model_fields", {}))


def json_schema(catalog: Catalog) -> dict[str, Any]:
    """The spec language as JSON Schema (draft 2020-12), for editors: `# yaml-language-server: $schema=…`."""
    fields = Fields.of(catalog)
    schema = SpecFile.model_json_schema()
    definitions = schema["$defs"]
    run: dict[str, Any] = {}
    for kind in COMPONENTS:
        update = {
            "description": f"Options that update the {kind} set elsewhere.",
            "type": "object",
            "properties": {"name": False, **_with_additions(_all_options(fields, kind))},
            "additionalProperties": False,
        }
        definitions[kind] = {"anyOf": [*_entries(fields, kind, definitions), update]}
        run[kind] = {"$ref": f"#/$defs/{kind}"}
    for field, kind in LISTS.items():
        items = {"anyOf": _entries(fields, kind, definitions)}
        run[field] = {"type": "array", "items": items, "description": f"Of `pfl list {field}`, each at most once."}
    for name, (least, description) in SCALARS.items():
        run[name] = {"type": "integer", "minimum": least, "description": description}
    for kind in SETTINGS:
        definitions[kind] = fields.model(kind, kind).model_json_schema()
        run[kind] = {"$ref": f"#/$defs/{kind}"}
    run = {name: run[name] for name in RUN_FIELDS}
    definitions["run"] = {
        "description": "A run, or a patch of one.",
        "type": "object",
        "properties": run,
        "additionalProperties": False,
    }
    # No entry has a dot in its name, so none of its definitions is called like these.
    definitions |= {f"{kind}.axis": _with_settings(fields, kind, run) for kind in COMPONENTS}
    definitions["axes"] = _axes(fields, {**run, **{kind: {"$ref": f"#/$defs/{kind}.axis"} for kind in COMPONENTS}})
    definitions["space"] = {
        "type": "object",
        "propertyNames": {"pattern": r"^(training|method|backbone)\."},
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    definitions["figure"] = {"enum": figures_of(catalog)}
    replaced: dict[str, Any] = _resolve_comments(schema)
    definitions = replaced["$defs"]
    definitions["Claim"] |= forms_schema(definitions["Claim"])
    del definitions["Publication"]["required"]  # its name may be inherited
    for part in (replaced, *(definitions[name] for name in ("Grid", "TableSection", "run", "axes"))):
        part["properties"] = _with_additions(part["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **share(replaced)}


def figures_of(catalog: Catalog) -> list[str]:
    """The figures that a spec can list."""
    return sorted({*figure_names(), *catalog.names("analysis")})


def _entries(fields: Fields, kind: str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """What names an entry of a kind, alone or with its options, which are added to the definitions."""
    names = fields.catalog.names(kind)
    definitions |= {f"{kind}_{name}": fields.model(kind, name).model_json_schema() for name in names}
    told = [fields.catalog.entry(kind, name).summary for name in names]  # which editors show beside the names
    return [{"enum": names, "enumDescriptions": told}, *({"$ref": f"#/$defs/{kind}_{name}"} for name in names)]


def _with_settings(fields: Fields, kind: str, run: dict[str, Any]) -> dict[str, Any]:
    """A component as a value of its axis: what else of the run goes with it may stand beside its options."""
    beside = {field: run[field] for field in fields.beside(kind)}
    both = {
        "description": f"A {kind}, and what of the run goes with it in this row or column.",
        "type": "object",
        "properties": {"name": {"enum": fields.names(kind)}, **_all_options(fields, kind), **beside},
        "anyOf": [{"required": [field]} for field in beside],
        "additionalProperties": False,
    }
    return {"anyOf": [{"$ref": f"#/$defs/{kind}"}, both]}


def _with_additions(properties: dict[str, Any]) -> dict[str, Any]:
    """With a key for each list that adds to what is inherited of it."""
    added = {}
    for key, value in properties.items():
        for arm in value.get("anyOf", [value]) if isinstance(value, dict) else ():
            if arm.get("type") == "array":
                added[key + ADD] = {**arm, "description": f"Added to the {key} that are inherited."}
    return {**properties, **added}


def _all_options(fields: Fields, kind: str) -> dict[str, Any]:
    """Per option of any entry of the kind: what one of the entries accepts."""
    accepted: dict[str, list[Any]] = {}
    for name in fields.names(kind):
        properties = fields.model(kind, name).model_json_schema()["properties"]
        for option in fields.known(kind, name):
            if properties[option] not in accepted.setdefault(option, []):
                accepted[option].append(properties[option])
    return {option: arms[0] if len(arms) == 1 else {"anyOf": arms} for option, arms in sorted(accepted.items())}


def _axes(fields: Fields, run: dict[str, Any]) -> dict[str, Any]:
    """Run fields and `part.option` take lists or labelled values; any other name takes labelled patches."""
    values = dict(run)
    for kind in (*COMPONENTS, *SETTINGS):
        values |= {f"{kind}.{option}": value for option, value in _all_options(fields, kind).items()}
    axes = {name: {"anyOf": [{"type": "array", "items": value}, *_labelled(value)]} for name, value in values.items()}
    labelled = {"anyOf": _labelled({"$ref": "#/$defs/run"})}
    return {"type": "object", "properties": axes, "additionalProperties": labelled}


def _labelled(value: dict[str, Any]) -> list[dict[str, Any]]:
    """A value per label; null takes an inherited one out, or the axis."""
    null = {"type": "null"}
    return [{"type": "object", "additionalProperties": {"anyOf": [value, null]}}, null]


def _resolve_comments(value: Any) -> Any:
    if isinstance(value, list):
        return [_resolve_comments(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: _resolve_comments(item) for key, item in value.items() if key != "$comment"}
    return {"$ref": f"#/$defs/{value['$comment']}", **result} if "$comment" in value else result
