"""What the parts of a spec file are made of: strict models, labels, prose."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from pipeline.spec.yamlfile import show


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


_SCALAR = {"type": ["string", "number", "boolean"]}
Label = Annotated[str, BeforeValidator(label_text), WithJsonSchema(_SCALAR)]
Labels = Annotated[
    list[str],
    BeforeValidator(_label_list),
    WithJsonSchema({"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}]}),
]
Line = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
"""Prose for a report; folded YAML text loses its line ends."""
Where = dict[str, Labels]
"""One or several labels per axis; an axis that is not named is not restricted."""


class Part(BaseModel):
    """Base of the parts of a spec: strict types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
