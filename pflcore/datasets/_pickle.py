"""Reading pickles that datasets are published as, without running anything that a file asks for.

CIFAR's batches are Python 2 pickles of a dict with lists, strings and one uint8 array; FedBN's files are pairs of
images and labels, or of paths and names of classes. Pickle rebuilds an array by calling functions that the file names;
here those names lead to a few inert classes, and every other name is refused. So neither foreign code nor NumPy's own
unpickling, with its object arrays and arbitrary dtypes, is within reach of a file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pflcore.errors import UserError

Column = npt.NDArray[np.integer[Any]] | list[str]
"""Half of a pickled pair."""

# The unpickler makes room for as many objects to remember as a file claims; one of FedBN's has some ten.
_MOST_REMEMBERED = 1_000_000
# Of a pickle's instructions; CIFAR-100's training set, the longest, has some 200,000.
_MOST_STEPS = 2_000_000


def load_batch(data: bytes, where: str) -> dict[str, Any]:
    """The dict of a pickled batch: keys as str; uint8 arrays, lists, ints, bytes and str as values.

    Args:
        data: The whole pickle.
        where: What to call it in messages.

    Raises:
        UserError: The pickle is damaged, holds no dict, or names anything but a uint8 array.
    """
    try:
        check_claims(data)
        batch = _Unpickler(io.BytesIO(data), where).load()
    except UserError:
        raise
    except Exception as error:  # pickle promises no particular exceptions for damaged input
        raise UserError(f"{where}: not a readable CIFAR batch ({_reason(error)}); get the file again") from None
    if not isinstance(batch, dict):
        raise UserError(f"{where}: holds a {type(batch).__name__}, not the dict of a CIFAR batch")
    return {_text(key): value.values if isinstance(value, _Array) else value for key, value in batch.items()}


def load_pair(data: bytes, where: str) -> tuple[Column, Column]:
    """The halves of a pickled pair, each an array of whole numbers, or a list of str from whatever holds them.

    Args:
        data: The whole pickle, of a size that the caller has bounded.
        where: What to call it in messages.

    Raises:
        UserError: The pickle is damaged, holds anything else, or names anything but such arrays.
    """
    try:
        check_claims(data)
        pair = _Unpickler(io.BytesIO(data), where, _Plain).load()
        pair = list(pair.values) if isinstance(pair, _Array) else pair
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"it holds a {type(pair).__name__} instead of a pair")
        first, second = (_column(half) for half in pair)
    except UserError:
        raise
    except Exception as error:  # pickle promises no particular exceptions for damaged input
        reason = _reason(error)
        raise UserError(f"{where}: not a readable pickle of two columns ({reason}); get the file again") from None
    return first, second


def check_claims(data: bytes) -> None:
    """Raises ``ValueError`` for lengths beyond the end, and more instructions or remembered objects than can be."""
    for step, (code, argument, _) in enumerate(pickletools.genops(data)):
        if step > _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_STEPS:,} instructions")
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument is not None and argument > _MOST_REMEMBERED:
            raise ValueError(f"it claims to remember {argument:,} objects")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _column(half: Any) -> Column:
    values = half.values if isinstance(half, _Array) else half
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return values
    words = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(words, list | tuple):
        raise ValueError("a column is neither whole numbers nor words")
    words = [word.value if isinstance(word, _Word) else word for word in words]
    if not all(isinstance(word, str) for word in words):
        raise ValueError("a column is neither whole numbers nor words")
    return words


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, where: str, dtype: type[_Uint8] | None = None) -> None:
        super().__init__(file, encoding="bytes")
        self._where = where
        self._names = _NAMES if dtype is None else _NAMES | _PLAIN_NAMES | {("numpy", "dtype"): dtype}

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self._names:
            raise UserError(f"{self._where}: refused: the pickle asks for {module}.{name}; use the official file")
        return self._names[module, name]


class _Uint8:
    """Stands for ``numpy.dtype("u1", 0, 1)``."""

    __slots__ = ("dtype",)

    codes: ClassVar[str] = r"\|?u1"
    called: ClassVar[str] = "uint8"

    def __init__(self, code: Any, *_: Any) -> None:
        if not re.fullmatch(self.codes, _text(code)):
            raise ValueError(f"an array of type {code!r} instead of {self.called}")
        self.dtype = np.dtype(_text(code))

    def __setstate__(self, state: Any) -> None:
        """Of byte order and the like only the byte order matters, and not for single bytes."""
        if _text(state[1]) == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Plain(_Uint8):
    """Stands for the dtypes of whole numbers, words, and objects, which have to be words."""

    __slots__ = ()

    codes: ClassVar[str] = r"[|<>=]?([iu][1248]|U[0-9]{1,4}|O8)"
    called: ClassVar[str] = "whole numbers or words"


class _Array:
    """Stands for ``numpy.ndarray`` and for the function that makes an empty one; filled by ``__setstate__``."""

    __slots__ = ("values",)

    values: Any

    def __init__(self, *_: Any) -> None:
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, data = state
        if isinstance(dtype, _Plain) and dtype.dtype.hasobject:
            self.values = data  # a list of words, or refused where it is looked at
        else:
            self.fill(data, dtype, shape, "F" if column_major else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(dtype, _Uint8) or dtype.dtype.hasobject or not isinstance(data, bytes | bytearray):
            raise ValueError("an array of another type than uint8")
        self.values = np.frombuffer(data, dtype.dtype).reshape(shape, order=order)


class _Buffered(_Array):
    """Stands for the function that makes an array of bytes, dtype, shape and order, which protocol 5 asks for."""

    __slots__ = ()

    def __init__(self, data: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.fill(data, dtype, shape, order)


class _Word:
    """Stands for the function that makes a NumPy scalar; here of a word."""

    __slots__ = ("value",)

    def __init__(self, dtype: Any, data: Any) -> None:
        if not isinstance(dtype, _Plain) or dtype.dtype.kind != "U" or not isinstance(data, bytes):
            raise ValueError("a number among the words")
        self.value = str(np.frombuffer(data, dtype.dtype)[0])


_NAMES: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Uint8,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,  # NumPy 1 and Python 2
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # NumPy 2
}
_PLAIN_NAMES: dict[tuple[str, str], type] = {
    (f"numpy.{core}.{module}", name): stand_in
    for core in ("core", "_core")
    for module, name, stand_in in (("numeric", "_frombuffer", _Buffered), ("multiarray", "scalar", _Word))
}


def _text(word: Any) -> str:
    return word.decode("latin1") if isinstance(word, bytes) else str(word)
