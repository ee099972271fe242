"""Files of named tensors under names with their hash, and layers of rows in such files, which checkpoints share.

Of a state in rows, one per client or per measured round, few change from one checkpoint to the next. Those that did
are written as a layer, together with the layers before it that are no more than twice as large. So each layer is less
than half as large as the one before it: there are few, together they have at most twice the rows that there are, and a
row that stays as it is is written again no more often than the number of rows can be halved.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pflcore.engine.state import Rows
from pflcore.files import named
from pflcore.groups import Tensors
from pflcore.json_text import parse_json
from pflcore.method import under

OWN = 2**17
"""Bytes of a part's rows that a checkpoint itself has at most, so that a small state is one file."""
ROWS = 4096
"""Rows in a file at most: their names are in its header, and safetensors reads none of more than 100 MB."""

_STEM = "piece"
_PIECE = re.compile(rf"{_STEM}-[0-9a-f]{{16}}\.safetensors")


@dataclass(frozen=True)
class Layer:
    """Rows of one part that were written together; those of a later layer take the place of those of an earlier one.

    Attributes:
        keys: Which.
        files: The names of the files that have them.
    """

    keys: frozenset[int]
    files: tuple[str, ...]


Layers = Mapping[str, tuple[Layer, ...]]
"""Part of a state → its layers, the oldest first."""


def write_hashed(folder: Path, stem: str, tensors: Mapping[str, Tensor], told: str = "") -> Path:
    """Write ``<stem>-<hash>.safetensors`` into a folder that exists, with a text that :func:`read_hashed` gives back.

    Raises ``OSError`` or ``SafetensorError`` when it cannot.
    """
    temporary = folder / f".{os.getpid()}.part"
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        # One key: the order of several would vary from process to process.
        with named(folder):
            save_file(flat, temporary, {"pfl": told} if told else None)
        path = folder / f"{stem}-{_digest(temporary)}.safetensors"
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        return temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_hashed(path: Path) -> tuple[Any, Tensors]:
    """What was told of the tensors of a file, parsed as JSON, and the tensors.

    Raises:
        ValueError: Its content is not what its name says, or no tensors.
        OSError: It cannot be read.
    """
    if _digest(path) != path.stem.rpartition("-")[2]:
        raise ValueError("its content does not match its name")
    try:
        with safe_open(path, framework="pt") as file:
            told = parse_json((file.metadata() or {}).get("pfl", "{}"))
            # Copies are aligned as any tensor is, so that what continues from them rounds as it would have.
            return told, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except RuntimeError as error:  # how safetensors says that it cannot open a file
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file any more") from None
        raise ValueError(f"not a checkpoint ({error})") from None
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"not a checkpoint ({error})") from None


def divide(folder: Path, rows: Mapping[str, Rows], before: Layers) -> tuple[Tensors, Layers]:
    """What a checkpoint itself has of parts in rows, by full name, and the layers that it lists.

    Args:
        folder: Where new layers are written.
        before: The layers of the checkpoint before it, which have what the parts call stored.
    """
    own: Tensors = {}
    layers = dict(before)
    for part, held in rows.items():
        changed = held.changed()
        fresh = under(f"{part}/", held.rows(changed))
        if sum(tensor.nbytes for tensor in fresh.values()) <= OWN:
            own |= fresh
        else:
            layers[part] = _piled(folder, part, held, changed, before.get(part, ()))
    return own, layers


def _piled(folder: Path, part: str, held: Rows, changed: Iterable[int], before: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers with one more for what has changed, in which those before it that are small are taken up."""
    keys, left = set(changed), list(before)
    while left and len(left[-1].keys) <= 2 * len(keys):
        keys |= left.pop().keys
    ordered = sorted(keys)
    some = (ordered[start : start + ROWS] for start in range(0, len(ordered), ROWS))
    files = tuple(write_hashed(folder, _STEM, under(f"{part}/", held.rows(one))).name for one in some)
    return (*left, Layer(frozenset(keys), files))


def files_of(layers: Layers) -> Iterator[str]:
    """The names of the files of all layers."""
    return (name for several in layers.values() for layer in several for name in layer.files)


def read_layers(folder: Path, told: object) -> tuple[Layers, Tensors]:
    """Layers as a checkpoint tells them, and what they have together.

    Raises:
        ValueError: It tells something else, or a file is missing or not what its name says.
        OSError: One cannot be read.
    """
    layers: dict[str, tuple[Layer, ...]] = {}
    tensors: Tensors = {}
    for part, several in _checked(told).items():
        for names in several:
            found: Tensors = {}
            for name in names:
                try:
                    found |= read_hashed(folder / name)[1]
                except FileNotFoundError:
                    raise ValueError(f"{name} is missing") from None
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
            layers[part] = (*layers.get(part, ()), Layer(keys_of(part, found), tuple(names)))
            tensors |= found
    return layers, tensors


def _checked(told: object) -> dict[str, list[list[str]]]:
    """The names of files, by part and layer. Raises ``ValueError`` for anything else."""
    several = list(told.values()) if isinstance(told, dict) else [None]
    layers = [one for part in several for one in (part if isinstance(part, list) else [None])]
    names = [name for one in layers for name in (one if isinstance(one, list) else [None])]
    if not isinstance(told, dict) or not all(isinstance(name, str) and _PIECE.fullmatch(name) for name in names):
        raise ValueError("it names files that are none of a checkpoint")
    return told


def keys_of(part: str, names: Iterable[str]) -> frozenset[int]:
    """The rows of a part that full names belong to. Raises ``ValueError`` for a name that is of none."""
    return frozenset(int(name.split("/")[1]) for name in names if name.startswith(f"{part}/"))


def stored_pieces(folder: Path) -> list[Path]:
    """The files in a folder that are named as those of layers are."""
    return [path for path in folder.glob(f"{_STEM}-*") if _PIECE.fullmatch(path.name) and path.is_file()]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
