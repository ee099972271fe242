"""The command line: ``pfl``. What takes time to import is imported when it is known to be needed here."""

from __future__ import annotations

import sys

from pflcore.errors import UserError, in_words
from pipeline.cli.output import check_output, guard_output
from pipeline.running import repro


def main() -> None:
    """Entry point. A :class:`UserError` or a failing disk becomes one line and exit code 2; an interruption one line
    and 130."""
    guard_output()
    if sys.argv[1:2] == ["stage"]:
        repro.execute(_call)
        return
    try:
        _call()
    finally:
        check_output()


def _call() -> None:
    try:
        from pipeline.cli.commands import app

        app()
    except UserError as error:
        print(f"pfl: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a file cannot be written or read, and is left as it was
        print(f"pfl: {in_words(error)}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if type(error).__module__ != "sqlite3":
            raise
        print(f"pfl: DVC's own database of files: {error}; is the disk full?", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # what Typer makes of a KeyboardInterrupt
            print("pfl: interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        raise
