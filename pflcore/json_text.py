"""JSON of files that may be damaged."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says. Raises ``ValueError``, and nothing else, for whatever is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
