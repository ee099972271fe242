"""The weights stage: it converts a file of pretrained weights, of any supported format, to one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file

from pflcore.backbones import read_weights
from pflcore.errors import UserError
from pflcore.files import atomic_path
from pipeline.spec.run import ABSENT, content_of


def run(record: Mapping[str, str], out: Path, home: Path) -> str:
    """Convert the file at the record's `path`, relative to `home`, and write it to `out`; return a line to show."""
    path, expected = record["path"], record["content"]
    content = content_of(home, path)
    if content.startswith(ABSENT):
        raise UserError(f"{path}: no such file of pretrained weights; put it there and run `pfl compile`")
    if content != expected:
        change = "came" if expected.startswith(ABSENT) else "was changed"
        raise UserError(f"{path}: {change} after the specs were compiled; run `pfl compile`")
    tensors = read_weights(home / path)
    with atomic_path(out) as temporary:
        save_file(tensors, temporary)
    return f"{path}: {len(tensors):,} entries, {sum(tensor.numel() for tensor in tensors.values()):,} numbers"
