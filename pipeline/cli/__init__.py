"""The command line: ``pfl``. What takes time to import is imported when it is known to be needed here."""

from __future__ import annotations

import os
import sys

from pflcore.errors import UserError, in_words
from pipeline.encoding import print_everywhere
from pipeline.running import repro
from pipeline.running.addresses import check_address_space


def main() -> None:
    """Entry point. A :class:`UserError` or a failing disk becomes one line and exit code 2; an interruption one line
    and 130."""
    print_everywhere()
    if sys.argv[1:2] == ["stage"]:
        repro.execute(_call)
    else:
        _call()


def _call() -> None:
    try:
        if sys.argv[1:2] == ["stage"] and sys.argv[2:3] != ["guard"]:  # which only compiles
            check_address_space()
        from pipeline.cli.commands import app

        app()
    except UserError as error:
        print(f"pfl: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        raise
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
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # `pfl list methods | head`: a reader that has left is no error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
