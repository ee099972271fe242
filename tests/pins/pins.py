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
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from safetensors.numpy import load_file

import pflcore
from pflcore.artifacts import read_table
from pflcore.data.assignment_files import read_assignment
from pflcore.data.sample_files import read_samples
from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS, stand_in
from pflcore.registry import registry_of
from pins.cases import CASES, Case
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Ledger
from pipeline.results.keep import curve_of
from pipeline.spec.specs import find_specs
from pipeline.study.small_run import SEQUENTIAL, SmallRun, perform, same_everywhere
from pipeline.workspace import Workspace

Numbers = dict[str, str]  # quantity → its values, with spaces between; those with a point are of floating point
_FLOOR = 1e-6  # numbers that are all smaller are compared as if one were as large as this
_COUNTED = "parameters communicated_up communicated_down stored received server macs positions diverged"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Pins = dict[str, Numbers]  # name → quantity → values
# Specs whose tables are pinned; together they use what the language has.
SMOKE = (
    *("quickstart", "fedtp/fig1", "fedtp/fig8", "fedtp/fig9", "fedtp/fig11", "fedtp/backbones", "fedtp/v1_fig10b"),
    *("fedofa/table_s1", "fedperfix/table2_resources", "fedperfix/table5", "pfedla/table2", "pfedla/fig4b"),
    *("checks/bccd", "checks/precision", "checks/shakespeare_last"),
)
CELL_TOLERANCE = 1.0  # points


def numbers_of_run(small: SmallRun, way: str, folder: Path) -> Numbers:
    """Carry out a small run, in one of four ways, and return its numbers."""
    place = perform(small, way, folder)
    numbers = {"data": of_samples(read_samples(folder / f"{small.run.data_id}-{small.size}"))}
    numbers |= _of_partition(place / "partition") if small.partition else {}
    return numbers | (_of_run(place) if small.method else {})


def shown(values: Iterable[float]) -> str:
    """Format numbers that were computed in floating point, to seven digits."""
    return " ".join(f"{value:#.7g}" for value in values)


def deviation(quantity: str, one: str, other: str) -> float:
    """Return by how much `other` deviates, relative to the largest number in `one`; infinity where nothing may.

    Counts of correct predictions may differ by one in all, as a sample may lie between two classes.
    """
    pairs = list(zip(one.split(), other.split(), strict=False))
    if len(one.split()) != len(other.split()):
        return math.inf
    if quantity.startswith("correct"):
        return math.inf if sum(abs(int(a) - int(b)) for a, b in pairs) > 1 else 0.0
    computed = [(float(a), float(b)) for a, b in pairs if "." in a and "." in b]
    if any(a != b for a, b in pairs if not ("." in a and "." in b)):
        return math.inf
    scale = max([_FLOOR, *(abs(a) for a, _ in computed)])
    return max((abs(a - b) for a, b in computed), default=0.0) / scale


def differences(recorded: Numbers, found: Numbers, tolerance: float) -> dict[str, float]:
    """Return quantity → deviation of those that do not agree or that only one side has; the largest first."""
    quantities = {**recorded, **found}
    by = {name: deviation(name, recorded.get(name, ""), found.get(name, "")) for name in quantities}
    return dict(sorted(((name, size) for name, size in by.items() if size > tolerance), key=lambda item: -item[1]))


def of_samples(samples: Samples) -> str:
    """Return the number of samples, of classes, the size, a digest of all arrays, and the normalisation."""
    attributes = [attribute.values for attribute in samples.attributes.values()]
    boxes = samples.boxes
    objects: list[np.ndarray] = [boxes.counts, boxes.labels, boxes.corners, boxes.difficult] if boxes else []
    digest = _digest(samples.inputs, samples.labels, samples.train, *attributes, *objects)
    normalisation = shown([*samples.mean, *samples.std])
    return f"{len(samples)} {samples.classes} {samples.size} {digest} {normalisation}"


def _of_partition(path: Path) -> Numbers:
    owners = read_assignment(path)
    sizes = " ".join(f"{len(mine)}+{len(tested)}" for mine, tested in zip(owners.train, owners.test, strict=True))
    numbers = {"samples": f"{sizes} {_digest(*owners.train, *owners.test)}"}
    held, noise = owners.validation, owners.noise
    numbers |= {"validation": f"{' '.join(map(str, map(len, held)))} {_digest(*held)}"} if held else {}
    numbers |= {"novel": " ".join(map(str, owners.novel))} if owners.novel else {}
    return numbers | ({"noise": f"{noise.released} {noise.seed} {shown(noise.std)}"} if noise else {})


def _of_run(folder: Path) -> Numbers:
    table, meta = read_table(folder / "rounds.parquet", "rounds/2")
    rows = table.to_pylist()
    numbers = {"cost": " ".join(f"{name}={meta[name]}".replace(" ", "") for name in _COUNTED.split())}
    numbers["measured rounds"] = " ".join(map(str, sorted({row["round"] for row in rows})))
    held = sorted({(row["client"], row["population"], row["total"]) for row in rows})
    numbers["predictions"] = " ".join(f"{population}={total}" for _, population, total in held)
    for number in sorted({row["round"] for row in rows}):
        measured = [row for row in rows if row["round"] == number]
        counts, last = ([row[name] for row in measured] for name in ("correct", "last_correct"))
        numbers[f"correct, round {number}"] = " ".join(map(str, counts))
        if counts != last:
            numbers[f"correct at the end, round {number}"] = " ".join(map(str, last))
        numbers[f"loss, round {number}"] = shown(row["loss"] for row in measured)
    parts: dict[str, list[np.ndarray]] = {}
    for name, tensor in sorted(load_file(folder / "weights.safetensors").items()):
        parts.setdefault(_part(name), []).append(tensor.astype(np.float64).ravel())
    for name, tensors in parts.items():
        numbers[f"state, {name}"] = shown(_statistics(name, np.concatenate(tensors)))
    if (folder / "analysis.parquet").exists():
        found, _ = read_table(folder / "analysis.parquet", "analysis/1")
        value = found["value"].to_numpy()
        numbers["analysis"] = f"{len(value)} {shown(_statistics('analysis', value))}"
    return numbers


def _part(name: str) -> str:
    """What an entry of the final state is shown with: all of a client's own; a module of the model; of the server's."""
    owner, _, rest = name.partition(".")
    if owner == "client":
        return f"client {rest.partition('.')[0]}"
    return f"server {rest.partition('/')[0]}" if owner == "server" else owner.replace("/", " ")


def _statistics(name: str, values: np.ndarray) -> list[float]:
    """The norm, and the projection on a random direction, which notices signs and order."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    direction = np.random.default_rng(seed).standard_normal(len(values))
    return [float(np.linalg.norm(values)), float(values @ direction)]


def _digest(*arrays: np.ndarray) -> str:
    """Twelve hex digits that stand for arrays."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:12]


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
        writer.writerow(["name", "quantity", "values"])
        writer.writerows([name, quantity, values] for name, own in pins.items() for quantity, values in own.items())


def changes(kind: str, name: str, recorded: Numbers, found: Numbers) -> list[str]:
    """Describe what changed of one pin, the largest change first; "raise" says which version speaks for it."""
    if kind == "tables":
        return _changed_cells(recorded, found)
    tolerance = next((case.tolerance for case in CASES if case.name == name), 0.0) if kind == "numbers" else 0.0
    lines = []
    for quantity, size in differences(recorded, found, tolerance).items():
        by = "" if size == float("inf") else f" (by {size:.1g})"
        lines.append(f"{quantity}: {recorded.get(quantity, 'none')} → {found.get(quantity, 'none')}{by}")
    return lines


def _changed_cells(recorded: Numbers, found: Numbers) -> list[str]:
    """Describe the cells that differ; numbers may by a little, as vector units round differently."""

    def same(one: str, other: str) -> bool:
        try:
            return abs(float(one) - float(other)) <= CELL_TOLERANCE
        except ValueError:
            return one == other

    lines = []
    for quantity in dict.fromkeys([*recorded, *found]):
        one, other = (next(csv.reader([side.get(quantity, "")]), []) for side in (recorded, found))
        if len(one) != len(other) or any(not same(a, b) for a, b in zip(one, other, strict=True)):
            lines.append(f"{quantity}: {','.join(one)} → {','.join(other)}")
    return lines


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
        ids = {profile: sorted({*own[name]}) for profile, own in by_profile.items()}
        hashes = {profile: hashlib.sha256(" ".join(own).encode()).hexdigest()[:12] for profile, own in ids.items()}
        yield name, {profile: f"{len(ids[profile])} {digest}" for profile, digest in hashes.items()}


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
            lines = (study / "build/smoke/reports" / spec / "table.csv").read_text("utf-8").splitlines()
            yield spec, {f"line {number}": line for number, line in enumerate(lines)}


def figures() -> Iterator[tuple[str, Numbers]]:
    """Yield the accuracy (%) after the last round, and the mean of the last ten measurements, of every kept run."""
    for entry in Ledger(ROOT).entries():
        accuracies = [accuracy for _, accuracy, _ in curve_of(entry)][-10:]
        mean = sum(accuracies) / len(accuracies)
        yield entry.run.id, {"last": f"{accuracies[-1]:.4f}", "last ten": f"{mean:.4f}"}


def compare(kind: str, recorded: Mapping[str, Numbers], found: Mapping[str, Numbers]) -> list[str]:
    """Describe every recorded pin that changed, in three lines at most."""
    changed = ((name, changes(kind, name, recorded.get(name, {}), found.get(name, {}))) for name in recorded)
    return [f"{name}: {line}" for name, lines in changed for line in lines[:3]]


def record(kind: str, found: Mapping[str, Numbers]) -> list[str]:
    """Write down what was found; values within tolerance stay as they were, so that small changes cannot add up.

    Where small runs changed while no version of what they use did, nothing is written and these are returned.
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
    **{"runs": runs, "data": data, "numbers": numbers, "tables": tables, "figures": figures}
}
