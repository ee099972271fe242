"""Who says which lines: the forms in which Shakespeare's plays are published as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from pflcore.errors import UserError

Lines = dict[str, list[str]]
"""The lines of each role in their order."""

_AUTHOR = "by William Shakespeare"
_END = re.compile(r"End of this Etext|(?:\*\*\* ?)?END OF (?:THE |THIS )?PROJECT GUTENBERG", re.IGNORECASE)

# The edition of 1994: a speech begins at two spaces and goes on at four.
_CUE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_MORE = re.compile(r"    (.*)")
# One of its plays is not indented, so that whatever follows a role's name is taken for its lines.
_UNINDENTED = "THE COMEDY OF ERRORS"
_FLAT_CUE = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_FLAT_MORE = re.compile(r"(.*)")

# The current edition: a speech is a paragraph under the role's name in capitals.
_CAPITALS = re.compile(r"([A-Z][A-Z' ,&-]*)\.(?: (.*))?")
_HEADING = re.compile(r"(?:ACT|SCENE) (?:[IVX]+|\d+)\b")
_CAST = "dramatis person"
_DIRECTION = re.compile(r"\[_[^\]]*\]")


def read_plays(text: str, where: str) -> Lines:
    """Return the lines of every role of every play in the complete works, by ``PLAY_ROLE``.

    Both editions of Project Gutenberg's ebook 100 are read. That of 1994, which all papers used, is taken apart by
    the rules of LEAF's and knn-per's preprocessing, its oddities included: stage directions that are indented like
    speech are speech, and so is nearly everything in The Comedy of Errors. The current edition is laid out in
    another way, which has no released rules: there the paragraph under a role's name is its speech.

    Args:
        text: The whole file, in printable ASCII characters.
        where: What to call it in messages.

    Raises:
        UserError: There is no play in it.
    """
    lines = text.splitlines()
    plays = _indented_plays(lines) or _spaced_plays(lines)
    if not plays:
        raise UserError(
            f"{where}: no plays found, neither as indented speeches (edition of 1994) nor as paragraphs under a role's "
            "name; use the plain text of Project Gutenberg's ebook 100"
        )
    roles: Lines = {}
    for title, cast in plays:
        for role, own in cast.items():
            # A space and a comma are two underscores, as in the released names.
            roles.setdefault(re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_")), []).extend(own)
    return roles


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


def _indented_plays(lines: Sequence[str]) -> list[tuple[str, Lines]]:
    """Return the plays of the edition of 1994."""
    # Its first work are the sonnets. The first line may name the author of the whole file.
    authors = [number for number, line in enumerate(lines) if number and _AUTHOR in line]
    starts = authors[1:] or authors
    end = next((n for n in range(starts[0], len(lines)) if _END.search(lines[n])), len(lines)) if starts else 0
    plays = []
    for start, stop in zip(starts, [*starts, end][1:], strict=True):
        # The line next to the author's is ignored, as it is in the released code.
        above = [lines[n].strip() for n in range(start - 2, max(start - 8, -1), -1)]
        title = next(filter(None, above), "")
        plays.append((title, _indented_cast(lines[start + 1 : stop], title == _UNINDENTED)))
    return [(title, cast) for title, cast in plays if len(cast) > 1]


def _indented_cast(lines: Sequence[str], flat: bool) -> Lines:
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


def _spaced_plays(lines: Sequence[str]) -> list[tuple[str, Lines]]:
    """Return the plays of the current edition: works begin at a title that the table of contents lists."""
    contents = next((n for n, line in enumerate(lines) if line.strip() == "Contents"), len(lines))
    titles: set[str] = set()
    after = contents + 1
    while after < len(lines) and (not lines[after].strip() or lines[after].startswith("    ")):
        titles.add(lines[after].strip())
        after += 1
    titles.discard("")
    end = next((n for n in range(after, len(lines)) if _END.search(lines[n])), len(lines))
    starts = [n for n in range(after, end) if lines[n].rstrip() in titles or _heads_play(lines, n)]
    plays = [
        (lines[start].strip(), _spaced_cast(lines[start + 1 : stop]))
        for start, stop in zip(starts, [*starts, end][1:], strict=True)
    ]
    return [(title, cast) for title, cast in plays if len(cast) > 1]


def _heads_play(lines: Sequence[str], number: int) -> bool:
    """Return whether a line in capitals stands over a play's own contents or cast, whatever the table calls it."""
    if not lines[number].isupper() or _HEADING.match(lines[number]):
        return False
    below = next((line.strip() for line in lines[number + 1 : number + 10] if line.strip()), "")
    return below == "Contents" or below.lower().startswith(_CAST)


def _spaced_cast(lines: Sequence[str]) -> Lines:
    """Return speeches from the first scene after the list of the cast on; poems have no scenes."""
    listed = next((n for n, line in enumerate(lines) if line.lower().startswith(_CAST)), 0)
    first = next((n for n in range(listed, len(lines)) if _HEADING.match(lines[n])), len(lines))
    cast: Lines = {}
    for filled, paragraph in groupby(lines[first:], lambda line: bool(line.strip())):
        head, *rest = paragraph
        if filled and not _HEADING.match(head) and (cue := _CAPITALS.fullmatch(head.rstrip())):
            said = _DIRECTION.sub("", "\n".join([cue[2] or "", *rest])).replace("_", "")
            cast.setdefault(cue[1], []).extend(line.strip() for line in said.split("\n") if line.strip())
    return cast
