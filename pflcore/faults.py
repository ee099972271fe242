"""Where a fault in somebody's code showed: its file and line, and the client, round and step that were at hand.

Whoever knows a part of it says so while the error passes (:func:`during`), what is nearest to the fault first. The
round loop adds the whole as one note (PEP 678), which Python prints below the traceback. An error that goes from one
process to another keeps its traceback as text.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pflcore import extensions
from pflcore.errors import UserError
from pflcore.registry import Entry

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("pflcore", "pipeline")
_ENTRIES = {f"pflcore/{kind}" for kind in ("methods", "backbones", "datasets", "partitions", "analyses")}
_SPOKEN = ("who", "when", "step", "executor", "advice")  # of what is known, in the order of the note
_KNOWN = "_pfl_where"  # the attribute of an error
_LONGEST = 300  # characters of a message in one line


@contextmanager
def during(**facts: str) -> Iterator[None]:
    """Let an error in the block know what was at hand, as :func:`locate` does."""
    try:
        yield
    except Exception as error:
        locate(error, **facts)
        raise


def locate(error: Exception, **facts: str) -> None:
    """Note facts about where an error happened; what is known already, nearer to it, stands.

    Args:
        facts: ``who``, ``when``, ``step``, ``executor``, ``advice``, in words.
    """
    error.__dict__[_KNOWN] = {**facts, **_known(error)}


@contextmanager
def noted() -> Iterator[None]:
    """Add what is known of an error in the block to it, as a note; a :class:`UserError` says all by itself."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        _find(error)
        if words := _words(error):
            error.add_note(words)
        raise


def portable(error: Exception) -> Exception:
    """A copy for another process, with the traceback as its note.

    It has the same type if that can be pickled; otherwise it is a ``RuntimeError`` that names the type.
    """
    if isinstance(error, UserError) or "process" in _known(error):  # of which the traceback is text already
        return error
    _find(error)
    text = "".join(traceback.format_exception(error)).rstrip()
    copy: Exception
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.__dict__[_KNOWN] = {**_known(error), "process": "another"}
    copy.__notes__ = [f"Raised in a worker process:\n{text}"]
    return copy


def in_a_line(error: BaseException) -> str:
    """Type, first line of the message, file and line, and what else is known."""
    if isinstance(error, Exception):
        _find(error)
    message = next(iter(str(error).splitlines()), "")[:_LONGEST]
    told = "; ".join(filter(None, (_known(error).get("line", ""), _words(error))))
    return f"{type(error).__name__}{message and f': {message}'}{told and f' ({told})'}"


def shown(path: str) -> str:
    """A source file as a reader knows it: relative to the project or the study, if it is part of it."""
    if own := extensions.place(path):
        return own
    resolved = Path(path).resolve()
    return resolved.relative_to(_ROOT).as_posix() if resolved.is_relative_to(_ROOT) else path


def _known(error: BaseException) -> dict[str, str]:
    known: dict[str, str] = error.__dict__.get(_KNOWN, {})
    return known


def _words(error: BaseException) -> str:
    known = _known(error)
    return ", ".join(known[fact] for fact in _SPOKEN if known.get(fact))


def _find(error: Exception) -> None:
    """Read from the traceback, which stays in this process: the line to look at, and the entry's function.

    The line is the innermost one in an entry's own file, else in code that entries share, else in the project. The
    function stands for who it is where no client is known: the one by which the engine entered the entry's code.
    """
    line, best, entered, function = "", 0, None, ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        path = Path(shown(frame.f_code.co_filename))
        joined = extensions.place(frame.f_code.co_filename) is not None
        in_project = joined or (path.parts[:1] and path.parts[0] in _PACKAGES)
        of_entry = joined or path.parent.as_posix() in _ENTRIES
        weight = (1 + of_entry * (1 + (path.name[0] != "_"))) if in_project else 0
        if weight and weight >= best:
            line, best = f"{path.as_posix()}:{number}", weight
        owner = frame.f_locals.get("self")
        if isinstance(owner, Entry) and owner is not entered:
            entered, function = owner, f"{frame.f_code.co_name}()"
    locate(error, line=line, who=function)
