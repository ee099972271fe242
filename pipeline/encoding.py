"""Terminals whose encoding lacks a character of what is printed: the nearest that they have is shown instead."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

_PLAIN = {
    "±": "+-",
    "‡": "++",
    "†": "+",
    "×": "x",
    "·": "-",
    "…": "...",
    "−": "-",
    "–": "-",
    "—": "-",
    "→": "->",
    "←": "<-",
}


def print_everywhere() -> None:
    """Let standard output and error replace what their encoding lacks, in place of raising an error after the work."""
    codecs.register_error("pfl", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="pfl")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """In ASCII, with the nearest that there is: a letter without its accent, a box's line, a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    near = (_PLAIN.get(char) or _ascii(unicodedata.normalize("NFKD", char)) or _box(char) for char in lost)
    return "".join(near), error.end


def _ascii(text: str) -> str:
    return text.encode("ascii", "ignore").decode()


def _box(char: str) -> str:
    name = unicodedata.name(char, "")
    if not name.startswith("BOX DRAWINGS"):
        return "?"
    return "-" if name.endswith("HORIZONTAL") else "|" if name.endswith("VERTICAL") else "+"
