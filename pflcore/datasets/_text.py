"""Datasets of text that is spoken by roles: characters as numbers, and every window of characters as a sample."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import Attribute, Bytes, Samples
from pflcore.datasets._base import Dataset
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.seeds import generator

CHARACTERS = tuple(string.printable)
"""What a character's number stands for: the 100 that Python calls printable, in its order."""

UNKNOWN = 255
"""The number of every other character; no sample holds it."""

_CODES = np.full(129, UNKNOWN, np.uint8)
_CODES[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))

# What Unicode's own decompositions leave as it is.
_PLAIN = {"‘": "'", "’": "'", "‚": "'", "‛": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "′": "'", "″": '"'}
_PLAIN |= {"‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "--", "―": "--", "−": "-"}
_PLAIN |= {"Æ": "AE", "æ": "ae", "Œ": "OE", "œ": "oe", "ø": "o", "Ø": "O", "ß": "ss"}
_LOST = 1000  # one character without a counterpart in so many is passed over; more is another alphabet

_SPACES = re.compile("  +")

Windows = tuple[Bytes, Bytes]
"""Of one role: training and test samples, both uint8 [n, chunk_len + 1]."""


def read_text(data: bytes, where: str) -> str:
    """Return a text file's content in the 100 characters.

    Typographic quotes and dashes, ligatures and accented letters become their nearest plain counterparts, as in the
    editions that papers used; what has none is left out.

    Args:
        data: The whole file.
        where: What to call it in messages.

    Raises:
        UserError: It is not UTF-8, or more than one character in 1,000 has no plain counterpart.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    table = {character: _plain(character) for character in set(text) - set(CHARACTERS)}
    strange = {character: text.count(character) for character, plain in table.items() if plain is None}
    if sum(strange.values()) * _LOST > len(text):
        most = max(strange, key=lambda character: (strange[character], character))
        raise UserError(
            f"{where}: {sum(strange.values()):,} of {len(text):,} characters, most often {most!r}, are outside of the "
            f"{len(CHARACTERS)} printable ASCII characters; use English plain text"
        )
    return text.translate({ord(character): plain for character, plain in table.items()})


def _plain(character: str) -> str | None:
    """Return its counterpart in printable ASCII; "" for a mark that shows nothing, None when there is none."""
    if character in _PLAIN:
        return _PLAIN[character]
    if character.isspace():
        return " "
    if unicodedata.category(character) in ("Mn", "Cf"):
        return ""
    kept = [part for part in unicodedata.normalize("NFKD", character) if part in CHARACTERS]
    return "".join(kept) or None


def encode_text(text: str) -> Bytes:
    """Return indices of :data:`CHARACTERS`, :data:`UNKNOWN` for others: uint8 [n]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    codes: Bytes = _CODES[np.minimum(points, len(_CODES) - 1)]
    return codes


@dataclass(frozen=True, kw_only=True)
class RoleTexts(Dataset):
    """Base of datasets whose samples are windows of what roles say, one character apart.

    A role's lines are split in their order: the first part trains, the last ``max(1, int((1 - train_share) * lines))``
    test. This is the arithmetic of FedTP's and knn-per's released code, where a role of 10 lines has one test line
    because ``1 - 0.8`` is a little less than 0.2 in floating point. Runs of spaces are made one, then the lines of
    each part are joined by a space. Every window of `chunk_len` characters with the character after it is a sample.
    """

    original = (80,)
    class_names = CHARACTERS
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"role": ()}
    smoke: ClassVar[dict[str, Any]] = {"chunk_len": 5}

    chunk_len: int = option(
        80,
        help="Characters that a model reads. LEAF and knn-per use 80; FedTP's released code 5, its paper gives none.",
        ge=1,
        le=1000,
    )
    train_share: float = option(0.8, help="Share of a role's lines, from the first on, that train.", gt=0, lt=1)
    min_lines: int = option(3, help="Roles with fewer lines are dropped.", ge=2)
    role_share: float = option(1.0, help="Share of the roles that is drawn and kept.", gt=0, le=1)
    role_seed: int = option(0, help="Another seed draws other roles; without effect when all are kept.", ge=0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the length of a text."""
        return (self.chunk_len,)

    def from_lines(self, lines: Mapping[str, Sequence[str]], *, where: str, source: str) -> Samples:
        """Return the samples of what the roles say.

        Args:
            lines: Of each role, in their order, in the characters of :data:`CHARACTERS`.
            where: What to call the data in messages.
            source: Where they came from, for the reader of a report.

        Raises:
            UserError: Nothing is left, as the roles say too little.
        """
        names = [name for name, own in lines.items() if len(own) >= self.min_lines]
        if not names:
            raise UserError(
                f"{where}: none of {len(lines)} roles has {self.min_lines} lines or more; use a longer text"
            )
        windows = {name: self._cut(lines[name]) for name in self.draw(names)}
        return self.from_windows(windows, where=where, source=source)

    def draw(self, names: Sequence[str]) -> list[str]:
        """Return the roles that are kept, in the given order; as in released code, before short ones are dropped."""
        if self.role_share == 1:
            return list(names)
        count = max(1, int(self.role_share * len(names)))
        drawn = generator(self.role_seed, f"{self.name} roles").permutation(len(names))[:count]
        return [names[number] for number in sorted(drawn)]

    def _cut(self, lines: Sequence[str]) -> Windows:
        first = len(lines) - max(1, int((1 - self.train_share) * len(lines)))
        train, test = (" ".join(_SPACES.sub(" ", line) for line in part) for part in (lines[:first], lines[first:]))
        return self._slide(train), self._slide(test)

    def _slide(self, text: str) -> Bytes:
        """Return all windows of a text: views of its characters, which take no memory of their own."""
        width = self.chunk_len + 1
        enough = len(text) >= width
        windows: Bytes = sliding_window_view(encode_text(text), width) if enough else np.empty((0, width), np.uint8)
        return windows

    def from_windows(self, windows: Mapping[str, Windows], *, where: str, source: str) -> Samples:
        """Return the samples in the order of the roles, each role's training before its test samples.

        Roles without either are dropped, as nothing could be learned or measured there.

        Raises:
            UserError: No role is left.
        """
        kept = {name: pair for name, pair in windows.items() if all(map(len, pair))}
        if not kept:
            raise UserError(
                f"{where}: none of {len(windows)} roles has training and test text of more than {self.chunk_len} "
                "characters; use a smaller chunk_len, a larger role_share or a longer text"
            )
        parts = [part for pair in kept.values() for part in pair]
        sizes = [len(part) for part in parts]
        inputs, stop = allocate((sum(sizes), self.chunk_len + 1)), 0
        advance = track("cutting text into samples", sum(sizes))
        for part in parts:
            start, stop = stop, stop + len(part)
            inputs[start:stop] = part
            advance(len(part))
        role, test = np.divmod(np.arange(len(parts)), 2)
        return self.complete(
            inputs,
            inputs[:, -1].astype(np.int64),
            np.repeat(test == 0, sizes),
            where=where,
            source=source,
            attributes={"role": Attribute(np.repeat(role, sizes), tuple(kept))},
        )
