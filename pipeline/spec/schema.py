"""What a spec file may say: its structure as pydantic models, and the whole language as a JSON Schema for editors.

Runs and patches of runs are plain mappings here; :mod:`pipeline.spec.draft` checks them against the catalog.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from pipeline.spec.catalog import Catalog
from pipeline.spec.fields import Fields
from pipeline.spec.figures import figure_names
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.table import Better, Metric
from pipeline.spec.yamlfile import show

SCALARS: dict[str, tuple[int, str]] = {
    "clients": (1, "Number of clients in the federation."),
    "seed": (0, "Seed of every random stream: partition, initial weights, sampling, batches."),
}
"""Whole-number fields of a run: smallest value and help."""


def label_text(value: Any) -> str:
    """A label as text: 50 is ``"50"``, 0.1 is ``"0.1"``, null is ``"null"``. Raises ``ValueError`` for the rest."""
    if value is None or isinstance(value, bool):
        return show(value)
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"{show(value)} is not a label")


def _label_list(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("an empty list picks nothing; leave the axis out to pick every label")
    return [label_text(item) for item in items]


def _each_once(names: list[str]) -> list[str]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{show(twice[0])} is named twice; a report has one of each figure")
    return names


_SCALAR = {"type": ["string", "number", "boolean"]}
Label = Annotated[str, BeforeValidator(label_text), WithJsonSchema(_SCALAR)]
Labels = Annotated[
    list[str],
    BeforeValidator(_label_list),
    WithJsonSchema({"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}]}),
]
Line = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
"""Prose for a report; folded YAML text loses its line ends."""
Selection = dict[str, Labels]
"""One or several labels per axis; an axis that is not named is not restricted."""

# Placeholders that json_schema() replaces by the definitions it makes from the catalog.
RunPatch = Annotated[dict[str, Any], WithJsonSchema({"$comment": "run"})]
Axes = Annotated[dict[str, Any], WithJsonSchema({"$comment": "axes"})]
FigureName = Annotated[str, WithJsonSchema({"$comment": "figure"})]
ProfileName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
ClientNumber = Annotated[int, Field(ge=0)]
ClaimKey = Literal["better", "sooner", "steadier", "within"]
COMPARISONS: tuple[ClaimKey, ...] = ("better", "sooner", "steadier")
"""The forms of a claim that compare some cells with others."""
FORMS: tuple[ClaimKey, ...] = (*COMPARISONS, "within")


class Part(BaseModel):
    """Base of the parts of a spec: strict types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Publication(Part):
    """The publication whose table a spec reproduces."""

    name: Line = Field(description="How the paper is called in reports.")
    citation: Line = Field("", description="Authors, title, venue, year.")
    table: Line = Field("", description="Which table or figure, as the paper numbers it.")


class Include(Part):
    """One more run, outside the product of the axes."""

    labels: dict[str, Label] = Field(description="A label for every axis; labels that an axis has apply its value.")
    set: RunPatch = Field(default_factory=dict, description="A patch of the run, applied last.")


class Override(Part):
    """A patch of the runs with certain labels."""

    when: Selection = Field(description="Labels of the runs to patch; all named axes must match.")
    set: RunPatch = Field(description="A patch of the run, applied after the axes.")


class Resources(Part):
    """What a run of a spec needs on a cluster. Not part of the run: the result does not depend on it."""

    cpus: float = Field(1.0, gt=0, description="Processor cores.")
    gpus: float = Field(
        0.0, ge=0, description="GPUs: a share of one, such as 0.25, or several that train a run together."
    )
    memory: float = Field(0.0, ge=0, description="GiB of the host's memory; 0 does not say.")

    @model_validator(mode="after")
    def _shared_or_whole(self) -> Resources:
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus: {self.gpus} is neither a share of one GPU nor a whole number of them")
        return self

    def at_least(self, other: Resources) -> Resources:
        """What satisfies both."""
        return Resources(
            cpus=max(self.cpus, other.cpus), gpus=max(self.gpus, other.gpus), memory=max(self.memory, other.memory)
        )


class Grid(Part):
    """The runs of a spec."""

    base: RunPatch = Field(default_factory=dict, description="What all runs share.")
    axes: Axes = Field(default_factory=dict, description="What varies: every combination of values is a run.")
    include: list[Include] = Field(default_factory=list, description="Further runs.")
    exclude: list[Selection] = Field(default_factory=list, description="Combinations that are no runs.")
    overrides: list[Override] = Field(default_factory=list, description="Patches of some runs, applied in order.")


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
    metric: Metric = Field("last_rounds", description="The protocol under which accuracy is reported.")
    better: Better = Field("higher", description="Which values are set in bold.")
    decimals: int = Field(2, ge=0, le=6, description="Decimal places of printed values.")
    published: str | None = Field(None, description="CSV file of the published values, relative to this file.")
    absent: dict[str, dict[str, Line]] = Field(
        default_factory=dict, description="Per axis: published labels that have no run here, and why."
    )


class Claim(Part):
    """A statement of the paper that the obtained values can support or not, in one of four forms.

    `better`: cells, or with `over` their means, are better than others. `sooner`: their runs come near their final
    accuracy in fewer rounds. `steadier`: the range over the axes of `over` is narrower, or without `over` the ±.
    `within`: the range over the axes of `over` is that narrow.
    """

    text: Line = Field(description="The statement in prose.")
    better: Selection | None = Field(None, description="Labels of the cells said to be better.")
    sooner: Selection | None = Field(None, description="Labels of the cells said to converge sooner.")
    steadier: Selection | None = Field(
        None, description="Labels of the cells said to vary less: over the axes of `over`, or by their own ±."
    )
    within: float | None = Field(
        None, ge=0, description="How far apart cells may be, in points, that differ on the axes of `over` only."
    )
    than: Selection | None = Field(
        None, description="Labels they are compared with, on the same axes; `others` is all other labels."
    )
    over: list[str] = Field(default_factory=list, description="Axes that means or ranges are taken over.")
    where: Selection = Field(default_factory=dict, description="Labels that restrict the comparison, on other axes.")
    reach: float | None = Field(
        None, gt=0, le=1, description="Of `sooner`: the share of its last accuracy that a run must reach; 0.9."
    )
    margin: float = Field(0.0, ge=0, description="By how much better or narrower, in points; of `sooner` in rounds.")

    @model_validator(mode="before")
    @classmethod
    def _others(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("than") == "others":
            sides = (data[form] for form in COMPARISONS if isinstance(data.get(form), dict))
            return {**data, "than": dict.fromkeys(next(sides, {}), "others")}
        return data

    @model_validator(mode="after")
    def _one_form(self) -> Claim:
        said = [form for form in FORMS if getattr(self, form) is not None]
        if len(said) != 1:
            forms = "`better`, `sooner`, `steadier` and `within`"
            raise ValueError(f"needs one of {forms}" if not said else f"has {len(said)} of {forms}; state one")
        (form,) = said
        if form == "within":
            for key in ("than", "margin"):
                if key in self.model_fields_set:
                    raise ValueError(f"`within` compares cells among themselves, so {key!r} does not belong there")
            if not self.over:
                raise ValueError("'over' is missing: the axes on which the cells differ that are close together")
        elif self.than is None:
            raise ValueError("'than' is missing")
        if self.reach is not None and form != "sooner":
            raise ValueError("'reach' belongs to `sooner`")
        if self.over and form == "sooner":
            raise ValueError("'over' does not belong to `sooner`; restrict axes with `where`")
        return self

    @property
    def form(self) -> ClaimKey:
        """The one of :data:`FORMS` that it is in."""
        return next(form for form in FORMS if getattr(self, form) is not None)

    @property
    def side(self) -> Selection:
        """The labels that it speaks for; of `within` none."""
        return self.better or self.sooner or self.steadier or {}


class SpecFile(Part):
    """One experiment: a grid of runs, the table it becomes, published values and claims."""

    extends: str | None = Field(None, description="A spec to inherit from, relative to this file.")
    abstract: bool = Field(False, description="Only to be inherited from: compiles to nothing.")
    title: Line = Field("", description="One line, the heading of the report.")
    paper: Publication | None = None
    notes: list[Line] = Field(default_factory=list, description="Lines printed under the table.")
    profiles: dict[ProfileName, RunPatch] = Field(
        default_factory=dict, description="Named patches of all runs, chosen when compiling."
    )
    resources: Resources = Field(default_factory=Resources, description="What its runs need on a cluster.")
    grid: Grid = Field(default_factory=Grid)
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
            "properties": {"name": False, **_all_options(fields, kind)},
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
    definitions["axes"] = _axes(fields, run)
    definitions["figure"] = {"enum": figures_of(catalog)}
    replaced: dict[str, Any] = _resolve_comments(schema)
    replaced["$defs"]["Claim"] |= _claim_forms(replaced["$defs"]["Claim"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **replaced}


def figures_of(catalog: Catalog) -> list[str]:
    """The figures that a spec can list."""
    return sorted({*figure_names(), *catalog.names("analysis")})


def _entries(fields: Fields, kind: str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """What names an entry of a kind, alone or with its options, which are added to the definitions."""
    names = fields.catalog.names(kind)
    definitions |= {f"{kind}_{name}": fields.model(kind, name).model_json_schema() for name in names}
    return [{"enum": names}, *({"$ref": f"#/$defs/{kind}_{name}"} for name in names)]


def _claim_forms(claim: dict[str, Any]) -> dict[str, Any]:
    """What an editor is to know of a claim's forms: which keys go together, and that `than` may be `others`."""
    foreign = {"within": ("than", "margin", "reach"), "better": ("reach",), "steadier": ("reach",), "sooner": ("over",)}
    forms = [
        {"required": [form, *also], "properties": dict.fromkeys(foreign[form], False)}
        for form, *also in (*((form, "than") for form in COMPARISONS), ("within", "over"))
    ]
    than = {"anyOf": [{"const": "others"}, claim["properties"]["than"]]}
    return {"properties": {**claim["properties"], "than": than}, "oneOf": forms}


def _all_options(fields: Fields, kind: str) -> dict[str, Any]:
    """Per option of any entry of the kind: what one of the entries accepts."""
    accepted: dict[str, list[Any]] = {}
    names = [kind] if kind in SETTINGS else fields.catalog.names(kind)
    for name in names:
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
    axes = {
        name: {"anyOf": [{"type": "array", "items": value}, {"type": "object", "additionalProperties": value}]}
        for name, value in values.items()
    }
    labelled = {"type": "object", "additionalProperties": {"$ref": "#/$defs/run"}}
    return {"type": "object", "properties": axes, "additionalProperties": labelled}


def _resolve_comments(value: Any) -> Any:
    if isinstance(value, list):
        return [_resolve_comments(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: _resolve_comments(item) for key, item in value.items() if key != "$comment"}
    return {"$ref": f"#/$defs/{value['$comment']}", **result} if "$comment" in value else result
