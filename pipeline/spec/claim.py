"""What a spec may say of a claim: its keys, and which of them go with which form.

What a form measures and how it is told is one file in ``pipeline/report/claims/forms``.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from pipeline.spec.parts import Line, Part, Where

COMPARISONS = ("better", "steadier")
"""The forms that compare the cells of some labels with others; the key of a form is its name."""
_AMONG_THEMSELVES = ("within",)
FORMS = (*COMPARISONS, *_AMONG_THEMSELVES)
_OF_COMPARISONS = ("than", "margin")


class Claim(Part):
    """A statement of the paper that the obtained values can support or not, in one of three forms.

    `better`: cells, or with `over` their means, are better than others. `steadier`: the range over the axes of `over`
    is narrower, or without `over` the ±. `within`: the range over the axes of `over` is that narrow.
    """

    text: Line = Field(description="The statement in prose.")
    better: Where | None = Field(None, description="Labels of the cells said to be better.")
    steadier: Where | None = Field(
        None, description="Labels of the cells said to vary less: over the axes of `over`, or by their own ±."
    )
    within: float | None = Field(
        None, ge=0, description="How far apart cells may be, in points, that differ on the axes of `over` only."
    )
    than: Where | None = Field(
        None, description="Labels they are compared with, on the same axes; `others` is all other labels."
    )
    over: list[str] = Field(default_factory=list, description="Axes that means or ranges are taken over.")
    where: Where = Field(default_factory=dict, description="Labels that restrict the comparison, on other axes.")
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
        said = [form for form in FORMS if getattr(self, form) is not None]
        if len(said) != 1:
            *most, last = (f"`{form}`" for form in FORMS)
            forms = f"{', '.join(most)} and {last}"
            raise ValueError(f"needs one of {forms}" if not said else f"has {len(said)} of {forms}; state one")
        if self.form in COMPARISONS:
            if self.than is None:
                raise ValueError("'than' is missing")
            return self
        for key in _OF_COMPARISONS:
            if key in self.model_fields_set:
                raise ValueError(f"`{self.form}` compares cells among themselves, so {key!r} does not belong there")
        if not self.over:
            raise ValueError("'over' is missing: the axes on which the cells differ that are close together")
        return self

    @property
    def form(self) -> str:
        """The one of :data:`FORMS` that it is in."""
        return next(form for form in FORMS if getattr(self, form) is not None)

    @property
    def side(self) -> Where:
        """The labels that it speaks for; of `within` none."""
        return self.better or self.steadier or {}


def forms_schema(claim: dict[str, Any]) -> dict[str, Any]:
    """What an editor is to know of a claim's forms: which keys go together, and that `than` may be `others`."""
    forms: list[dict[str, Any]] = [{"required": [form, "than"], "properties": {}} for form in COMPARISONS]
    foreign = dict.fromkeys(_OF_COMPARISONS, False)
    forms += [{"required": [form, "over"], "properties": foreign} for form in _AMONG_THEMSELVES]
    than = {"anyOf": [{"const": "others"}, claim["properties"]["than"]]}
    return {"properties": {**claim["properties"], "than": than}, "oneOf": forms}
