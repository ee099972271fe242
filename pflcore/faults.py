"""The place of an error in a user's code: its file and line, and notes about client, step and round."""

import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pflcore import extensions
from pflcore.errors import UserError

_ROOT = Path(__file__).resolve().parent.parent
_ENTRIES = {f"pflcore/{kind}" for kind in ("methods", "backbones", "datasets", "partitions", "conditions", "analyses")}


@contextmanager
def during(words: str) -> Iterator[None]:
    """Add a note to any error in the block except :class:`UserError`, which already states its place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(words)
        raise


def portable(error: Exception) -> Exception:
    """Return a copy for another process, with the traceback as a note; a ``RuntimeError`` if pickling fails."""
    if isinstance(error, UserError):
        return error
    copy: Exception
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    text = "".join(traceback.format_exception(error)).rstrip()
    copy.__notes__ = [f"Raised in a worker process:\n{text}", *_place(error), *getattr(error, "__notes__", ())]
    return copy


def error_line(error: BaseException) -> str:
    """Return an error as one line: type, first line of the message, file and line, and notes."""
    message = next(iter(str(error).splitlines()), "")[:300]
    notes = list(getattr(error, "__notes__", ()))
    lines = [note for note in notes if "\n" not in note]
    if len(lines) == len(notes):  # the error of a worker has a traceback and its place as notes
        lines = [*_place(error), *lines]
    context = ", ".join(lines)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{text} ({context})" if context else text


def display_path(path: str) -> str:
    """Return the path of a source file for messages: relative to the project or the study if it belongs to one."""
    if relative := extensions.place(path):
        return relative
    resolved = Path(path).resolve()
    return resolved.relative_to(_ROOT).as_posix() if resolved.is_relative_to(_ROOT) else path


def caller() -> str:
    """Return file and line of the call of the function that calls :func:`caller`."""
    frame = sys._getframe(2)
    return f"{display_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _place(error: BaseException) -> list[str]:
    """Return the place to report, at most one: the innermost line in an entry's own file, else in the project."""
    lines = {}
    for frame, number in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        path, in_extension = Path(display_path(name)), extensions.place(name) is not None
        if in_extension or path.parts[0] in ("pflcore", "pipeline"):
            # Entries share the files whose names begin with an underscore.
            in_entry = (in_extension or path.parent.as_posix() in _ENTRIES) and not path.name.startswith("_")
            lines[in_entry] = f"{path.as_posix()}:{number}"
    return [lines.get(True, lines.get(False, ""))] if lines else []
