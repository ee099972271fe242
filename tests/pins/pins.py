"""What is pinned, how it is computed now, and how it is compared with what was recorded.

Every pin is one line of a CSV file beside this one: a name, a quantity and its values.

- ``runs.csv``: the ids of all runs of each spec, in both profiles, as a number and a hash.
- ``data.csv``: samples of every loader's miniature files and of every dataset's stand-in, as digests.
- ``numbers.csv``: small runs, and the versions of the code that made them.
- ``tables.csv``: cells of some specs' ``table.csv`` in the smoke profile.
- ``figures.csv``: every kept run's accuracy, from which docs/results.md is made.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import pflcore
from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS, stand_in
from pflcore.registry import registry_of
from pins.cases import CASES, Case
from pins.numbers import Numbers, differences, numbers_of_run, of_samples
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Ledger
from pipeline.results.keep import curve_of
from pipeline.spec.specs import find_specs
from pipeline.study.small_run import SEQUENTIAL, same_everywhere
from pipeline.workspace import Workspace

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Pins = dict[str, Numbers]
"""Name → quantity → values."""

SMOKE = (
    *("quickstart", "fedtp/fig1", "fedtp/fig8", "fedtp/fig9", "fedtp/fig11", "fedtp/backbones", "fedtp/v1_fig10b"),
    *("fedofa/table_s1", "fedperfix/table2_resources", "fedperfix/table5", "pfedla/table2", "pfedla/fig4b"),
    *("checks/bccd", "checks/precision", "checks/shakespeare_last"),
)
"""Specs whose tables are pinned; together they use what the language has."""

CELL_TOLERANCE = 1.0  # points
_HEADER = ["name", "quantity", "values"]


def read_pins(kind: str) -> Pins:
    """Read the recorded pins of a kind."""
    pins: Pins = {}
    path = HERE / f"{kind}.csv"
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for name, quantity, values in list(csv.reader(file))[1:]:
                pins.setdefault(name, {})[quantity] = values
    return pins


def write_pins(kind: str, pins: Mapping[str, Numbers]) -> None:
    """Write the pins of a kind."""
    with (HERE / f"{kind}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        writer.writerows([name, quantity, values] for name, own in pins.items() for quantity, values in own.items())


def changes(kind: str, name: str, recorded: Numbers, found: Numbers) -> list[str]:
    """Describe what changed of one pin, the largest change first; "raise" says which version speaks for it."""
    if kind == "tables":
        return _changed_cells(recorded, found)
    tolerance = next((case.tolerance for case in CASES if case.name == name), 0.0) if kind == "numbers" else 0.0
    return [
        f"{quantity}: {recorded.get(quantity, 'none')} → {found.get(quantity, 'none')}"
        + ("" if size == float("inf") else f" (by {size:.1g})")
        for quantity, size in differences(recorded, found, tolerance).items()
    ]


def _changed_cells(recorded: Numbers, found: Numbers) -> list[str]:
    """Describe the cells that differ; numbers may by a little, as vector units round differently."""
    lines = []
    for quantity in dict.fromkeys([*recorded, *found]):
        one, other = (next(csv.reader([side.get(quantity, "")]), []) for side in (recorded, found))
        if len(one) != len(other) or any(not _same_cell(a, b) for a, b in zip(one, other, strict=True)):
            lines.append(f"{quantity}: {','.join(one)} → {','.join(other)}")
    return lines


def _same_cell(one: str, other: str) -> bool:
    try:
        return abs(float(one) - float(other)) <= CELL_TOLERANCE
    except ValueError:
        return one == other


def versions(case: Case) -> str:
    """Return the versions that speak for a case: of the engine, and of the entries that it uses."""
    entries = {"dataset": case.dataset, "partition": case.partition}
    entries |= {"backbone": case.backbone, "method": case.method} if case.method else {}
    named = [(kind, entry["name"]) for kind, entry in entries.items() if entry]
    own = [f"{kind}/{name}={registry_of(kind).get(name).results_version}" for kind, name in named]
    return " ".join([f"engine={pflcore.ENGINE_VERSION}", *own])


def numbers_of(case: Case, *ways: str) -> Numbers:
    """Carry out a case and return its numbers; raise ``ValueError`` when one of the other `ways` does not agree."""
    with TemporaryDirectory() as folder, same_everywhere():
        numbers = numbers_of_run(case, SEQUENTIAL, Path(folder))
        for way in ways:
            if apart := differences(numbers, numbers_of_run(case, way, Path(folder)), case.tolerance):
                raise ValueError(f"{case.name}: {way} and {SEQUENTIAL} do not agree ({next(iter(apart))})")
    if case.brief:
        last = max(int(name.split()[-1]) for name in numbers if name.startswith("loss"))
        numbers = {name: own for name, own in numbers.items() if "round " not in name or name.endswith(f" {last}")}
    return {"versions": versions(case), **numbers}


def runs() -> Iterator[tuple[str, Numbers]]:
    """Yield for each spec the number of its runs and a hash of their ids, in both profiles."""
    home = Workspace.find(ROOT)
    names = list(find_specs(home.specs))
    by_profile = {}
    for profile in ("paper", "smoke"):
        workspace = home if profile == "paper" else Workspace(ROOT / "build" / profile, ROOT, profile)
        compilation = compile_workspace(workspace, names, ledger=False)
        counted = {name: list(table.runs) for name, table in compilation.tables.items() if table.counted}
        by_profile[profile] = compilation.runs_of_specs() | counted
    for name in sorted(by_profile["paper"]):
        yield name, {profile: _hash(sorted({*by_profile[profile][name]})) for profile in by_profile}


def data() -> Iterator[tuple[str, Numbers]]:
    """Yield the digest of the samples of each loader's miniature files and of each dataset's stand-in."""
    from support.loaders import LOADERS  # every loader with its files

    for name, loader in LOADERS.items():
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            loader.prepare(patch)
            (Path(folder) / "data").mkdir()
            found = loader.read(loader.write(Path(folder) / "data"))
            if isinstance(found, Samples):
                yield f"files, {name}", {"samples": of_samples(found)}
    for name in DATASETS.names():
        cls = DATASETS.get(name)
        if getattr(cls, "classes", 0):
            yield f"stand-in, {name}", {"samples": of_samples(stand_in(DATASETS.create(name), 60, 20))}


def numbers() -> Iterator[tuple[str, Numbers]]:
    """Yield what each case gives, all its ways agreeing."""
    for case in CASES:
        yield case.name, numbers_of(case, *case.ways)


def tables() -> Iterator[tuple[str, Numbers]]:
    """Yield the lines of ``table.csv`` of some specs in the smoke profile, trained in a folder of their own."""
    with TemporaryDirectory() as folder:
        study = Path(folder)
        shutil.copytree(ROOT / "specs", study / "specs")
        shutil.copy(ROOT / "pyproject.toml", study)
        command = [sys.executable, "-m", "pipeline", "run", *SMOKE, "--profile", "smoke"]
        done = subprocess.run(command, cwd=study, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        for spec in SMOKE:
            yield spec, table_lines(study / "build/smoke/reports" / spec / "table.csv")


def table_lines(path: Path) -> Numbers:
    """Return the lines of a table by number."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {f"line {number}": line for number, line in enumerate(lines)}


def figures() -> Iterator[tuple[str, Numbers]]:
    """Yield the accuracy (%) after the last round, and the mean of the last ten measurements, of every kept run."""
    for entry in Ledger(ROOT).entries():
        accuracies = [accuracy for _, accuracy, _ in curve_of(entry)]
        yield (
            entry.run.id,
            {"last": f"{accuracies[-1]:.4f}", "last ten": f"{sum(accuracies[-10:]) / len(accuracies[-10:]):.4f}"},
        )


def compare(kind: str, recorded: Mapping[str, Numbers], found: Mapping[str, Numbers]) -> list[str]:
    """Describe every recorded pin that changed, in three lines at most."""
    return [
        f"{name}: {line}"
        for name in recorded
        if (own := changes(kind, name, recorded.get(name, {}), found.get(name, {})))
        for line in own[:3]
    ]


def record(kind: str, found: Mapping[str, Numbers]) -> list[str]:
    """Write down what was found; values within tolerance stay as they were, so that small changes cannot add up.

    Returns:
        Small runs that changed while no version of what they use did. Then nothing is written.
    """
    recorded = read_pins(kind)
    changed = {name for name, own in found.items() if changes(kind, name, recorded.get(name, {}), own)}
    if kind == "numbers":
        same = [name for name in changed & recorded.keys() if recorded[name].get("versions") == found[name]["versions"]]
        if same:
            return compare(kind, {name: recorded[name] for name in same}, {name: found[name] for name in same})
    write_pins(kind, {name: own if name in changed else recorded[name] for name, own in found.items()})
    return []


KINDS: dict[str, Callable[[], Iterator[tuple[str, Numbers]]]] = {
    "runs": runs,
    "data": data,
    "numbers": numbers,
    "tables": tables,
    "figures": figures,
}


def _hash(ids: list[str]) -> str:
    return f"{len(ids)} {hashlib.sha256(' '.join(ids).encode()).hexdigest()[:12]}"
