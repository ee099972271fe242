"""Forms in which Shakespeare's plays are published: plain text of plays or of speeches, and LEAF's JSON shards."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflcore.data.preparation import track
from pflcore.data.samples import Bytes
from pflcore.datasets._files import reading
from pflcore.datasets._text import CHARACTERS, UNKNOWN, Windows, encode_text
from pflcore.errors import UserError
from pflcore.reading import read_file

Lines = dict[str, list[str]]
"""The lines of each role in their order."""

LEAF_LENGTH = 80
"""Characters of a text in LEAF's shards."""
MAX_SHARD_BYTES = 2**30

_AUTHOR = "by William Shakespeare"
_END = re.compile(r"End of this Etext|(?:\*\*\* ?)?END OF (?:THE |THIS )?PROJECT GUTENBERG", re.IGNORECASE)
# A speech begins at two spaces and goes on at four.
_CUE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_MORE = re.compile(r"    (.*)")
# One of the plays is not indented, so that whatever follows a role's name is taken for its lines.
_UNINDENTED = "THE COMEDY OF ERRORS"
_FLAT_CUE = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_FLAT_MORE = re.compile(r"(.*)")


def read_plays(text: str, where: str) -> Lines:
    """Return the lines of every role of every play in the complete works of 1994, by ``PLAY_ROLE``.

    All papers used this edition of Project Gutenberg's ebook 100. It is taken apart by the rules of LEAF's and
    knn-per's preprocessing, its oddities included: stage directions that are indented like speech are speech, and so is
    nearly everything in The Comedy of Errors.

    Args:
        text: The whole file, in printable ASCII characters.
        where: What to call it in messages.

    Raises:
        UserError: There is no play in it.
    """
    lines = text.splitlines()
    # Its first work are the sonnets. The first line may name the author of the whole file.
    authors = [number for number, line in enumerate(lines) if number and _AUTHOR in line]
    starts = authors[1:] or authors
    end = next((n for n in range(starts[0], len(lines)) if _END.search(lines[n])), len(lines)) if starts else 0
    roles: Lines = {}
    for start, stop in zip(starts, [*starts, end][1:], strict=True):
        # The line next to the author's is ignored, as it is in the released code.
        above = [lines[n].strip() for n in range(start - 2, max(start - 8, -1), -1)]
        title = next(filter(None, above), "")
        cast = _read_cast(lines[start + 1 : stop], title == _UNINDENTED)
        for role, own in cast.items() if len(cast) > 1 else ():
            # A space and a comma are two underscores, as in the released names.
            roles.setdefault(re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_")), []).extend(own)
    if not roles:
        raise UserError(
            f"{where}: no plays with indented speeches found; use the edition of 1994 of Project Gutenberg's ebook 100"
        )
    return roles


def _read_cast(lines: Sequence[str], flat: bool) -> Lines:
    cue, more = (_FLAT_CUE, _FLAT_MORE) if flat else (_CUE, _MORE)
    cast: Lines = {}
    current = None
    for line in lines:
        if match := cue.match(line):
            current = match[1].upper()  # casing varies within a play
            if flat and current.startswith("ACT "):
                current = None
            else:
                cast.setdefault(current, []).append(match[2])
        elif current is not None and (match := more.match(line)):
            if flat and match[1].startswith("<"):
                current = None
            else:
                cast[current].append(match[1])
    return cast


def read_speakers(text: str, where: str) -> Lines:
    """Return the lines of every speaker of a text of speeches: a line ``NAME:``, lines of text, and a blank line.

    Names are kept as they are written.

    Raises:
        UserError: A speech without a name, by its line.
    """
    roles: Lines = {}
    current = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            current = None
        elif current is None:
            current, colon, rest = line.strip().rpartition(":")
            if not current or not colon or rest:
                raise UserError(
                    f"{where}: line {number}: expected a speaker's NAME: after a blank line, "
                    f"found {line.strip()[:40]!r}"
                )
            roles.setdefault(current, [])
        else:
            roles[current].append(line)
    return roles


def read_shards(train: Sequence[Path], test: Sequence[Path], length: int) -> dict[str, Windows]:
    """Return training and test samples of each user from LEAF's shards of either kind.

    Args:
        train, test: The files.
        length: Characters of a sample's text; of longer ones the last are taken.

    Raises:
        UserError: A damaged file, another layout, or a user in two files of a kind.
    """
    parts = [_read_shards(paths, length) for paths in (train, test)]
    names = dict.fromkeys([*parts[0], *parts[1]])  # in order, once each
    nothing = np.empty((0, length + 1), np.uint8)
    return {name: (parts[0].get(name, nothing), parts[1].get(name, nothing)) for name in names}


def _read_shards(paths: Sequence[Path], length: int) -> dict[str, Bytes]:
    """Return the rows of each user, uint8 [n, length + 1]."""
    found: dict[str, Bytes] = {}
    advance = track("reading JSON shards", len(paths))
    for path in paths:
        with reading(path, "use shards made by LEAF's preprocessing of shakespeare"):
            shard = json.loads(read_file(path, MAX_SHARD_BYTES))
            for name, count in zip(shard["users"], shard["num_samples"], strict=True):
                if name in found:
                    raise ValueError(f"user {name!r} is there already")
                user = shard["user_data"][name]
                # Copied, as otherwise all characters of the text would stay in memory.
                found[str(name)] = _rows(user["x"], user["y"], count, name)[:, -length - 1 :].copy()
        advance(1)
    return found


def _rows(texts: list[str], targets: list[str], count: int, name: str) -> Bytes:
    if not len(texts) == len(targets) == count:
        raise ValueError(f"user {name!r} must have {count} texts and as many next characters")
    if any(len(text) != LEAF_LENGTH or len(target) != 1 for text, target in zip(texts, targets, strict=True)):
        raise ValueError(f"the texts of user {name!r} must have {LEAF_LENGTH} characters and one more each")
    rows = encode_text("".join(map("".join, zip(texts, targets, strict=True)))).reshape(-1, LEAF_LENGTH + 1)
    if (rows == UNKNOWN).any():
        raise ValueError(f"user {name!r} says more than the {len(CHARACTERS)} printable ASCII characters")
    return rows
