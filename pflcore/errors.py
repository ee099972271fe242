"""The one exception that a user of the tool is meant to see."""

from __future__ import annotations


class UserError(Exception):
    """Bad input of any kind: a spec, a data file, a checkpoint, an argument.

    The message is one line that says where the problem is and what to do about it. Command-line entry points
    print it without a traceback and exit with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
