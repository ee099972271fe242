"""Compare the pins with what the code gives now, or record them: ``python -m pins [--record] [KIND …]``."""

import argparse
import sys
import time

from pflcore.files import write_text
from pins.pins import KINDS, compare, read_pins, record
from pipeline.compile.compiler import source_folder
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import RECORD, Engine


def main():
    """Print what changed, and record the sources of the engine where no number did; return 1 when something changed."""
    parser = argparse.ArgumentParser(prog="python -m pins", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="All of them when left out.")
    parser.add_argument("--record", action="store_true", help="Write down what the code gives now.")
    options = parser.parse_args()
    bad = 0
    for kind in options.kinds or KINDS:
        started = time.monotonic()
        found = dict(KINDS[kind]())
        lines = record(kind, found) if options.record else compare(kind, read_pins(kind), found)
        bad += len(lines)
        print(f"{kind}: {len(found)} pins, {len(lines)} changes, {time.monotonic() - started:.0f} s", flush=True)
        for line in lines:
            print(f"  {line}")
        if kind == "numbers" and not lines:  # with these sources the numbers are those of the engine's version
            code = Code(source_folder())
            write_text(code.source / RECORD, Engine.on_disk(code).text)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
