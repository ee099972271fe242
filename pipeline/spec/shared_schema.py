"""What a JSON Schema says in several places, said once: options that many entries have make most of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

_LONG = 80  # characters of JSON; what is shorter is easier to read where it is needed
_NAMED = ("properties", "$defs")  # keywords whose values are schemas by name
_DATA = ("default", "const", "enum", "examples")  # keywords whose values are no schemas


def share(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with a definition, named after its property, for each longer part that occurs more than once.

    Titles that only repeat a property's name are left out.
    """
    uses: Counter[str] = Counter()
    _count(schema, uses)
    return _Sharing(uses).of(schema)


def _count(part: Any, uses: Counter[str]) -> None:
    """How often each schema occurs, not counting what is within another that has been seen."""
    for key, inner in part.items() if isinstance(part, dict) else enumerate(part if isinstance(part, list) else ()):
        if key in _NAMED:
            _count([*inner.values()], uses)
        elif isinstance(inner, dict) and key not in _DATA:
            uses[text := _text(inner)] += 1
            if uses[text] == 1:
                _count(inner, uses)
        elif isinstance(inner, list):
            _count(inner, uses)


class _Sharing:
    def __init__(self, uses: Counter[str]) -> None:
        self.uses = uses
        self.names: dict[str, str] = {}  # by content
        self.added: dict[str, Any] = {}

    def of(self, schema: dict[str, Any]) -> dict[str, Any]:
        own = {name: self._inside(part, name) for name, part in schema["$defs"].items()}
        rest = self._inside({key: part for key, part in schema.items() if key != "$defs"}, "")
        return {**rest, "$defs": {**own, **dict(sorted(self.added.items()))}}

    def _inside(self, part: Any, name: str) -> Any:
        """A part whose own parts are shared; `name` is that of the nearest property."""
        if isinstance(part, list):
            return [self._placed(inner, name) for inner in part]
        if not isinstance(part, dict):
            return part
        made: dict[str, Any] = {}
        for key, inner in part.items():
            if key == "properties":
                made[key] = {property_: self._placed(value, property_) for property_, value in inner.items()}
            elif key != "title" or inner != name.replace("_", " ").title():
                made[key] = inner if key in _DATA else self._placed(inner, name)
        return made

    def _placed(self, part: Any, name: str) -> Any:
        """A part, or in its place where its definition is."""
        if not isinstance(part, dict) or self.uses[text := _text(part)] < 2 or len(text) < _LONG:
            return self._inside(part, name)
        if text not in self.names:
            stem = f"option.{name.rpartition('.')[2].removesuffix('+')}"
            taken = sum(other == stem or other.startswith(f"{stem}.") for other in self.names.values())
            self.names[text] = f"{stem}.{taken + 1}" if taken else stem
            self.added[self.names[text]] = self._inside(part, name)
        return {"$ref": f"#/$defs/{self.names[text]}"}


def _text(part: Any) -> str:
    return json.dumps(part, sort_keys=True)
