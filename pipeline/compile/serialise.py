"""Generated files as text: YAML that people and DVC read, JSON that is quick to write and to compare."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import yaml


class Line(dict[str, Any]):
    """A mapping that YAML has on one line."""


def to_yaml(value: Any) -> str:
    """Return YAML with keys as given and nothing folded or aliased."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return text


def to_json(value: Any, levels: int = 2) -> str:
    """Return JSON with an item per line on so many of the outer levels, and no line end after the last."""
    if not levels or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(to_json(item, levels - 1) for item in value) + "\n]"
    items = (f"{json.dumps(key, ensure_ascii=False)}: {to_json(item, levels - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + "\n}"


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    ignore_aliases: Callable[..., bool] = staticmethod(lambda data: True)


# DVC reads YAML 1.2, where ids like `12e45678` and `00000008` are numbers, too: they are quoted.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|0o[0-7]+$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
_Dumper.add_representer(Line, lambda dumper, line: dumper.represent_mapping("tag:yaml.org,2002:map", line, True))
