"""Reading the pickled batches of the official CIFAR archives without running anything that a file asks for.

The batches are Python 2 pickles of a dict with lists, strings and one uint8 array. Pickle rebuilds an array by calling
functions that the file names; here those names lead to two inert classes, and every other name is refused. So neither
foreign code nor NumPy's own unpickling, with its object arrays and arbitrary dtypes, is within reach of a file.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from pflcore.data.samples import Bytes
from pflcore.errors import UserError


def load_batch(data: bytes, where: str) -> dict[str, Any]:
    """The dict of a pickled batch: keys as str; uint8 arrays, lists, ints, bytes and str as values.

    Args:
        data: The whole pickle.
        where: What to call it in messages.

    Raises:
        UserError: The pickle is damaged, holds no dict, or names anything but a uint8 array.
    """
    try:
        batch = _Unpickler(io.BytesIO(data), where).load()
    except UserError:
        raise
    except Exception as error:  # pickle promises no particular exceptions for damaged input
        raise UserError(f"{where}: not a readable CIFAR batch ({type(error).__name__}: {error})") from None
    if not isinstance(batch, dict):
        raise UserError(f"{where}: holds a {type(batch).__name__}, not the dict of a CIFAR batch")
    return {_text(key): value.pixels if isinstance(value, _Array) else value for key, value in batch.items()}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, where: str) -> None:
        super().__init__(file, encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _NAMES:
            raise UserError(f"{self._where}: refused: the pickle asks for {module}.{name}; use the official file")
        return _NAMES[module, name]


class _Uint8:
    """Stands for ``numpy.dtype("u1", 0, 1)``."""

    __slots__ = ()

    def __init__(self, code: Any, *_: Any) -> None:
        if _text(code) not in ("u1", "|u1"):
            raise ValueError(f"an array of type {code!r} instead of uint8")

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: nothing to keep for single bytes."""


class _Array:
    """Stands for ``numpy.ndarray`` and for the function that makes an empty one; filled by ``__setstate__``."""

    __slots__ = ("pixels",)

    pixels: Bytes

    def __init__(self, *_: Any) -> None:
        self.pixels = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, data = state
        if not isinstance(dtype, _Uint8) or not isinstance(data, bytes):
            raise ValueError("an array of another type than uint8")
        self.pixels = np.frombuffer(data, np.uint8).reshape(shape, order="F" if column_major else "C")


_NAMES: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Uint8,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,  # NumPy 1 and Python 2
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # NumPy 2
}


def _text(word: Any) -> str:
    return word.decode("latin1") if isinstance(word, bytes) else str(word)
