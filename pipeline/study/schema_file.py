"""The schema of specs as a file of this machine, which editors complete and check YAML by."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from pflcore.files import write_text
from pipeline.spec.catalog import load_catalog
from pipeline.spec.editor_schema import json_schema

SCHEMA = ".pfl/schema.json"


def write_schema(home: Path) -> Path:
    """Bring it up to date with all that specs of a study can name, its own parts included."""
    path, text = home / SCHEMA, json.dumps(json_schema(load_catalog(home)), indent=1) + "\n"
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return path
    write_text(path, text)
    return path
