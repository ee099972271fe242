"""All checks and measurements of a GPU in one command: whether it computes what a CPU does, and how fast.

It needs this repository, torch, numpy, safetensors and filelock, but no network and no artifacts. Each result becomes a
line of ``gpu.jsonl`` in the folder at once. When the last section has ended, or there is no time left, a table of each
section is printed and written to ``gpu.md``. Each section runs in a separate process, forked from one that has imported
everything and never uses the device, so a section that fails, hangs or breaks the device affects no other. Lines of
checks have `ok`; differences are the largest ones between parameters, and between clients' accuracies.

    python benchmarks/gpu.py --deadline 540 --out FOLDER
    python benchmarks/gpu.py --out FOLDER --only w1 w2           # some sections
    python benchmarks/gpu.py --device cpu --quick --out FOLDER   # test of the script itself, a minute
    python benchmarks/gpu.py --summary --out FOLDER              # the tables of a command that was killed
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the packages need not be installed

from gpu_checks import agree, machine, methods, resident, resume, uncapturable
from gpu_section import LINES, MARGIN, Bench, first_line, start
from gpu_speed import speed

USUAL = 540.0  # the deadline for which the sections' times are set; with a later one they have more time

# Each section's function and the seconds that it may take, the most valuable section first. All of them fit into the
# usual deadline, even if every one has to be killed.
SECTIONS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "machine": (machine, 12),
    "agree": (agree, 58),
    "methods": (methods, 90),
    "w1": (partial(speed, name="W1"), 55),
    "w2": (partial(speed, name="W2"), 66),
    "uncapturable": (uncapturable, 15),
    "resume": (resume, 40),
    "resident": (resident, 16),
}


def run_sections(names: Sequence[str], device: str, quick: bool, out: Path, deadline: float) -> None:
    """Run sections one after the other until all are done or `deadline` seconds have passed.

    The last line of each section has its ``status``: done, failed (an earlier line has the error), killed (it exceeded
    its time) or skipped (there was no time).
    """
    started = time.monotonic()
    for name in names:
        begun, (function, seconds) = time.monotonic(), SECTIONS[name]
        allowed = min(seconds * max(1.0, deadline / USUAL), deadline - (begun - started) - 2 * MARGIN)
        bench = Bench(device, quick, out, name, begun + allowed)
        if allowed < MARGIN:
            bench.write(status="skipped", seconds=0.0)
            continue
        process = start(perform, function, bench)
        try:
            process.join(allowed + MARGIN)
            status = "killed" if process.is_alive() else "failed" if process.exitcode else "done"
        finally:
            with suppress(ProcessLookupError):  # ends the processes that the section started, however it ended
                os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        bench.write(status=status, seconds=time.monotonic() - begun)


def perform(function: Callable[[Bench], None], bench: Bench) -> None:
    os.setsid()  # a process group, so that its child processes can be killed with it
    bench.limit()
    try:
        function(bench)
    except Exception as error:
        traceback.print_exc()
        bench.write(ok=False, error=first_line(error))
        raise SystemExit(1) from None


def summary(out: Path) -> str:
    """Return the number of checks that held, and a table per section of the lines written so far, except a cut one."""
    written = [json.loads(line) for line in (out / LINES).read_text().splitlines() if line.endswith("}")]
    held = [line["ok"] for line in written if "ok" in line]
    parts = [f"{sum(map(bool, held))} of {len(held)} checks held\n"]
    for section in dict.fromkeys(line["section"] for line in written):
        own = [line for line in written if line["section"] == section]
        ends = [f"{line['status']}, {line['seconds']} s" for line in own if "status" in line]
        rows = [{name: line[name] for name in line if name != "section"} for line in own if "status" not in line]
        parts.append(f"## {section} ({ends[0] if ends else 'not ended'})\n")
        if names := list(dict.fromkeys(name for row in rows for name in row)):
            body = ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
            parts.append("\n".join([f"| {' | '.join(names)} |", "|" + "---|" * len(names), *body]) + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.jsonl and gpu.md")
    parser.add_argument("--deadline", type=float, default=USUAL, help="seconds for everything")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="little of everything, on small models")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections; all without it")
    parser.add_argument("--summary", action="store_true", help="only the tables of what is in the folder")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.device == "cpu":
        os.environ.setdefault("PFL_THREADS", "1")  # in such short steps, several threads only wait for each other
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `timeout` sends SIGTERM; tables are printed even then
    try:
        if not chosen.summary:
            (chosen.out / LINES).unlink(missing_ok=True)
            names = [name for name in SECTIONS if name in chosen.only]
            run_sections(names, chosen.device, chosen.quick, chosen.out, chosen.deadline)
    finally:
        text = f"{summary(chosen.out)}\n{time.monotonic() - started:.0f} s\n"
        (chosen.out / "gpu.md").write_text(text)
        print(text, end="", flush=True)


if __name__ == "__main__":
    main()
