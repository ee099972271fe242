"""Everything that is to be known of a GPU in one command: whether it computes what a CPU does, and how fast.

Needs this repository and torch, numpy, safetensors and filelock, no network and no artifacts. A line per result goes to
``gpu.jsonl`` in the folder, at once; when the last section has ended, or there is no time left, a table of each section
is printed and written to ``gpu.md``. A section that fails, hangs or breaks the device loses itself alone.

    python benchmarks/gpu.py --deadline 540 --out FOLDER
    python benchmarks/gpu.py --out FOLDER --only w1 w2           # some sections
    python benchmarks/gpu.py --device cpu --quick --out FOLDER   # does it run at all? a minute
    python benchmarks/gpu.py --summary --out FOLDER              # the tables of a command that was killed
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where nothing is installed

import numpy
import torch
from card import checks, speed
from card.section import LINES, Bench, Section, lines, run_sections, summary

from pflcore.engine import device_name, select_device


def machine(bench: Bench) -> None:
    """What the numbers were obtained with."""
    device = select_device(bench.device)
    bench.write(device=device_name(device), python=platform.python_version(), torch=torch.__version__)
    bench.write(numpy=numpy.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        bench.write(memory_gb=about.total_memory / 2**30, multiprocessors=about.multi_processor_count)


# What each does and the seconds that it may take, the most valuable first. All of them fit into the usual deadline,
# even if every single one has to be killed.
SECTIONS: dict[str, tuple[Section, float]] = {
    "machine": (machine, 12),
    "agree": (checks.agree, 58),
    "methods": (checks.methods, 70),
    "w1": (speed.w1, 55),
    "w2": (speed.w2, 66),
    "uncapturable": (checks.uncapturable, 15),
    "resume": (checks.resume, 40),
    "resident": (checks.resident, 16),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.jsonl and gpu.md")
    parser.add_argument("--deadline", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="little of everything, on small models")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="sections; all without it")
    parser.add_argument("--summary", action="store_true", help="only the tables of what is in the folder")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.device == "cpu":
        os.environ.setdefault("PFL_THREADS", "1")  # of steps this short, several threads only wait for each other
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what `timeout` sends; tables are printed all the same
    try:
        if not chosen.summary:
            (chosen.out / LINES).unlink(missing_ok=True)
            sections = {name: one for name, one in SECTIONS.items() if name in (chosen.only or SECTIONS)}
            run_sections(sections, chosen.device, chosen.quick, chosen.out, chosen.deadline)
    finally:
        text = f"{summary(lines(chosen.out))}\n{time.monotonic() - started:.0f} s\n"
        (chosen.out / "gpu.md").write_text(text)
        print(text, end="", flush=True)


if __name__ == "__main__":
    main()
