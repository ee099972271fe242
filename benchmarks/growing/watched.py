"""Many changes: ``pfl report --watch`` through as many edits as it would see in hours."""

from __future__ import annotations

import csv
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from growing.grown import Grown, memory

from pipeline.papers import watch as watching
from pipeline.workspace import Workspace

SPECS = Path(__file__).parents[2] / "specs"


def watch(count: int, folder: Path) -> list[Grown]:
    """``pfl report --watch`` on FedTP's Table 2 while its title, or a published value, is edited again and again."""
    for name in ("base.yaml", "fifty.yaml", "settings.yaml", "table2.yaml", "table2.csv"):
        (folder / "specs/fedtp").mkdir(parents=True, exist_ok=True)
        shutil.copy(SPECS / "fedtp" / name, folder / "specs/fedtp")
    (folder / "pyproject.toml").write_text("[tool.pfl]\n")
    speed, resident = Grown("s per change", 2.0), Grown("resident MiB", 1.15)
    files = Grown("files below reports/ and .pfl/", 1.05)
    changes = _changes(folder / "specs/fedtp")
    last = done = 0.0
    said: list[str] = []

    def edit(_: float) -> None:
        nonlocal last, done
        now = time.process_time()
        if done:
            speed.add(done, now - last)
            resident.add(done, memory())
            files.add(done, sum(path.is_file() for part in ("reports", ".pfl") for path in (folder / part).rglob("*")))
        if done >= count:
            raise KeyboardInterrupt
        done += 1
        next(changes)
        last = time.process_time()

    watching.time = Clock(edit)  # type: ignore[assignment]
    watching.watch(Workspace(folder, folder), [], said.append)
    written = sum("fedtp.html" in line for line in said) - 1
    print(f"{count} changes, the pages written anew after {written} of them")
    if written != count:
        sys.exit("a change was not followed: " + "\n".join(said[-3:]))
    return [speed, resident, files]


@dataclass
class Clock:
    """Stands for the module ``time`` where nobody waits."""

    sleep: Callable[[float], None]
    strftime: Callable[[str], str] = time.strftime


def _changes(specs: Path) -> Iterator[None]:
    """Edits of a title and of a published value, in turns."""
    spec, published = specs / "table2.yaml", specs / "table2.csv"
    text, rows = spec.read_text(), list(csv.reader(published.read_text().splitlines()))
    at = rows[0].index("mean")
    number = 0
    while True:
        number += 1
        if number % 2:
            spec.write_text(text.replace("title: ", f"title: Edit {number}. ", 1))
        else:
            rows[1][at] = f"{50 + number % 40}.{number % 100:02d}"
            with published.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        yield
