"""What is pinned, how it is computed now, and how it is compared with what was recorded.

Every pin is one line of a CSV file beside this one: a name, a quantity and its values, with spaces between; those with
a point are of floating point. Here pins are dictionaries: name → quantity → values.

- ``runs.csv``: the ids of all runs of each spec, in both profiles, as a number and a hash.
- ``data.csv``: samples of every loader's miniature files and of every dataset's stand-in, as digests.
- ``numbers.csv``: small runs, and the versions of the code that made them.
- ``tables.csv``: cells of some specs' ``table.csv`` in the smoke profile.
- ``figures.csv``: every kept run's accuracy, from which docs/results.md is made.
"""

import csv
import hashlib
import math
import shutil
import subprocess
import sys
from dataclasses import replace
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
from pins.cases import CASES
from pipeline.compile.compiler import compile_workspace
from pipeline.ledger import Ledger
from pipeline.results.keep import curve_of
from pipeline.spec.specs import find_specs
from pipeline.study.small_run import SEQUENTIAL, fixed_environment, perform
from pipeline.workspace import Workspace

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Specs whose tables are pinned; together they use what the language has.
SMOKE = (
    *("quickstart", "fedtp/fig1", "fedtp/fig8", "fedtp/fig9", "fedtp/fig11", "fedtp/backbones", "fedtp/v1_fig10b"),
    *("fedofa/table_s1", "fedperfix/table2_resources", "fedperfix/table5", "pfedla/table2", "pfedla/fig4b"),
    *("checks/bccd", "checks/precision", "checks/shakespeare_last"),
)
CELL_TOLERANCE = 1.0  # points
_FLOOR = 1e-6  # numbers that are all smaller are compared as if one were as large as this
_COUNTED = "parameters communicated_up communicated_down stored received server macs positions diverged"


def numbers_of_run(small, way, folder):
    """Carry out a small run, in one of four ways, and return its numbers."""
    place = perform(small, way, folder)
    samples = read_samples(folder / f"{small.run.data_id}-{small.size}")
    if small.run.features:  # sums differ from machine to machine; what is trained on them has tolerances
        samples = replace(samples, inputs=np.zeros_like(samples.inputs))
    numbers = {"data": of_samples(samples)}
    numbers |= _of_partition(place / "partition") if small.partition else {}
    return numbers | (_of_run(place) if small.method else {})


def shown(values):
    """Format numbers that were computed in floating point, to seven digits."""
    return " ".join(f"{value:#.7g}" for value in values)


def _spaced(values):
    return " ".join(map(str, values))


def deviation(quantity, one, other):
    """Return by how much `other` deviates, relative to the largest number in `one`; infinity where nothing may.

    Counts of correct predictions may differ by one in all, as a sample may lie between two classes.
    """
    one, other = one.split(), other.split()
    if len(one) != len(other):
        return math.inf
    pairs = list(zip(one, other, strict=True))
    if quantity.startswith("correct"):
        return math.inf if sum(abs(int(a) - int(b)) for a, b in pairs) > 1 else 0.0
    computed = [(float(a), float(b)) for a, b in pairs if "." in a and "." in b]
    if any(a != b for a, b in pairs if not ("." in a and "." in b)):
        return math.inf
    return max((abs(a - b) for a, b in computed), default=0.0) / max([_FLOOR, *(abs(a) for a, _ in computed)])


def differences(recorded, found, tolerance):
    """Return quantity → deviation of those that do not agree or that only one side has; the largest first."""
    by = {name: deviation(name, recorded.get(name, ""), found.get(name, "")) for name in {**recorded, **found}}
    return dict(sorted(((name, size) for name, size in by.items() if size > tolerance), key=lambda item: -item[1]))


def of_samples(samples):
    """Return the number of samples, of classes, the size, a digest of all arrays, and the normalisation."""
    arrays = [samples.inputs, samples.labels, samples.train, *(one.values for one in samples.attributes.values())]
    if boxes := samples.boxes:
        arrays += [boxes.counts, boxes.labels, boxes.corners, boxes.difficult]
    scale = shown([*samples.mean, *samples.std])
    return f"{len(samples)} {samples.classes} {samples.size} {_digest(*arrays)} {scale}"


def _of_partition(path):
    owners = read_assignment(path)
    sizes = _spaced(f"{len(own)}+{len(tested)}" for own, tested in zip(owners.train, owners.test, strict=True))
    numbers = {"samples": f"{sizes} {_digest(*owners.train, *owners.test)}"}
    if held := owners.validation:
        numbers["validation"] = f"{_spaced(map(len, held))} {_digest(*held)}"
    if owners.novel:
        numbers["novel"] = _spaced(owners.novel)
    if noise := owners.noise:
        numbers["noise"] = f"{noise.released} {noise.seed} {shown(noise.std)}"
    return numbers


def _of_run(folder):
    table, meta = read_table(folder / "rounds.parquet", "rounds/2")
    rows, by_round, parts = table.to_pylist(), {}, {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row)
    held = sorted({(row["client"], row["population"], row["total"]) for row in rows})
    numbers = {
        "cost": _spaced(f"{name}={meta[name]}".replace(" ", "") for name in _COUNTED.split()),
        "measured rounds": _spaced(sorted(by_round)),
        "predictions": _spaced(f"{population}={total}" for _, population, total in held),
    }
    for number, measured in sorted(by_round.items()):
        counts, last = (_spaced(row[name] for row in measured) for name in ("correct", "last_correct"))
        numbers[f"correct, round {number}"] = counts
        if counts != last:
            numbers[f"correct at the end, round {number}"] = last
        numbers[f"loss, round {number}"] = shown(row["loss"] for row in measured)
    for name, tensor in sorted(load_file(folder / "weights.safetensors").items()):
        parts.setdefault(_part(name), []).append(tensor.astype(np.float64).ravel())
    numbers |= {f"state, {name}": shown(_statistics(name, np.concatenate(own))) for name, own in parts.items()}
    if (folder / "analysis.parquet").exists():
        value = read_table(folder / "analysis.parquet", "analysis/1")[0]["value"].to_numpy()
        numbers["analysis"] = f"{len(value)} {shown(_statistics('analysis', value))}"
    return numbers


def _part(name):
    """What an entry of the final state is shown with: all of a client's own; a module of the model; of the server's."""
    owner, _, rest = name.partition(".")
    if owner == "client":
        return f"client {rest.partition('.')[0]}"
    return f"server {rest.partition('/')[0]}" if owner == "server" else owner.replace("/", " ")


def _statistics(name, values):
    """The norm, and the projection on a random direction, which notices signs and order."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return [np.linalg.norm(values), values @ np.random.default_rng(seed).standard_normal(len(values))]


def _digest(*arrays):
    """Twelve hex digits that stand for arrays."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:12]


def read_pins(kind):
    """Read the recorded pins of a kind; there are none without its file."""
    pins, path = {}, HERE / f"{kind}.csv"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for name, quantity, values in csv.reader(lines[1:]):
        pins.setdefault(name, {})[quantity] = values
    return pins


def write_pins(kind, pins):
    """Write the pins of a kind."""
    with (HERE / f"{kind}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "quantity", "values"])
        writer.writerows([name, quantity, values] for name, own in pins.items() for quantity, values in own.items())


def changes(kind, name, recorded, found):
    """Describe what changed of one pin, the largest change first."""
    if kind == "tables":
        return _changed_cells(recorded, found)
    tolerance = next((case.tolerance for case in CASES if case.name == name), 0.0) if kind == "numbers" else 0.0
    lines = []
    for quantity, size in differences(recorded, found, tolerance).items():
        by = "" if size == math.inf else f" (by {size:.1g})"
        lines.append(f"{quantity}: {recorded.get(quantity, 'none')} → {found.get(quantity, 'none')}{by}")
    return lines


def _changed_cells(recorded, found):
    """Describe the cells that differ; numbers may by a little, as vector units round differently."""

    def same(one, other):
        try:
            return abs(float(one) - float(other)) <= CELL_TOLERANCE
        except ValueError:
            return one == other

    lines = []
    for quantity in {**recorded, **found}:
        one, other = (next(csv.reader([side.get(quantity, "")]), []) for side in (recorded, found))
        if len(one) != len(other) or not all(map(same, one, other)):
            lines.append(f"{quantity}: {','.join(one)} → {','.join(other)}")
    return lines


def versions(case):
    """Return the versions that speak for a case: of the engine, and of the entries that it uses."""
    kinds = ("dataset", "partition", *(("backbone", "method") if case.method else ()))
    named = [(kind, getattr(case, kind)["name"]) for kind in kinds if getattr(case, kind)]
    own = [f"{kind}/{name}={registry_of(kind).get(name).results_version}" for kind, name in named]
    return _spaced([f"engine={pflcore.ENGINE_VERSION}", *own])


def numbers_of(case, *ways):
    """Carry out a case and return its numbers; raise ``ValueError`` when one of the other `ways` does not agree."""
    with TemporaryDirectory() as folder, fixed_environment():
        numbers = numbers_of_run(case, SEQUENTIAL, Path(folder))
        for way in ways:
            if apart := differences(numbers, numbers_of_run(case, way, Path(folder)), case.tolerance):
                raise ValueError(f"{case.name}: {way} and {SEQUENTIAL} do not agree ({next(iter(apart))})")
    if case.brief:
        last = max(int(name.split()[-1]) for name in numbers if name.startswith("loss"))
        numbers = {name: own for name, own in numbers.items() if "round " not in name or name.endswith(f" {last}")}
    return {"versions": versions(case), **numbers}


def runs():
    """Yield for each spec the number of its runs and a hash of their ids, in both profiles."""
    home, found = Workspace.find(ROOT), {}
    for profile, workspace in (("paper", home), ("smoke", Workspace(ROOT / "build/smoke", ROOT, "smoke"))):
        compilation = compile_workspace(workspace, list(find_specs(home.specs)), ledger=False)
        counted = {name: list(table.runs) for name, table in compilation.tables.items() if table.counted}
        for name, own in (compilation.runs_of_specs() | counted).items():
            ids = sorted({*own})
            digest = hashlib.sha256(_spaced(ids).encode()).hexdigest()[:12]
            found.setdefault(name, {})[profile] = f"{len(ids)} {digest}"
    yield from sorted(found.items())


def data():
    """Yield the digest of the samples of each loader's miniature files and of each dataset's stand-in."""
    from support.loaders import LOADERS  # takes time

    for name, loader in LOADERS.items():
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            loader.prepare(patch)
            place = Path(folder) / "data"
            place.mkdir()
            found = loader.read(loader.write(place))
            if isinstance(found, Samples):
                yield f"files, {name}", {"samples": of_samples(found)}
    for name in DATASETS.names():
        if getattr(DATASETS.get(name), "classes", 0):
            yield f"stand-in, {name}", {"samples": of_samples(stand_in(DATASETS.create(name), 60, 20))}


def numbers():
    """Yield what each case gives, all its ways agreeing."""
    for case in CASES:
        yield case.name, numbers_of(case, *case.ways)


def tables():
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


def figures():
    """Yield the accuracy (%) after the last round, and the mean of the last ten measurements, of every kept run."""
    for entry in Ledger(ROOT).entries():
        accuracies = [accuracy for _, accuracy, _ in curve_of(entry)][-10:]
        mean = sum(accuracies) / len(accuracies)
        yield entry.run.id, {"last": f"{accuracies[-1]:.4f}", "last ten": f"{mean:.4f}"}


KINDS = {"runs": runs, "data": data, "numbers": numbers, "tables": tables, "figures": figures}


def compare(kind, recorded, found):
    """Describe every recorded pin that changed, in three lines at most."""
    changed = ((name, changes(kind, name, own, found.get(name, {}))) for name, own in recorded.items())
    return [f"{name}: {line}" for name, lines in changed for line in lines[:3]]


def record(kind, found):
    """Write down what was found; values within tolerance stay as they were, so that small changes cannot add up.

    Where small runs changed while no version of what they use did, nothing is written and these are returned.
    """
    recorded = read_pins(kind)
    changed = {name for name, own in found.items() if changes(kind, name, recorded.get(name, {}), own)}
    if kind == "numbers":
        known = {name: recorded[name] for name in changed & recorded.keys()}
        same = {name: own for name, own in known.items() if own.get("versions") == found[name]["versions"]}
        if same:
            return compare(kind, same, found)
    write_pins(kind, {name: own if name in changed else recorded[name] for name, own in found.items()})
    return []
