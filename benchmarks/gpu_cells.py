"""Training of published cells on a GPU machine that is lent for minutes at a time and has little more than torch.

    python benchmarks/gpu_cells.py pack --out FOLDER                    # here, after making data and partitions
    python benchmarks/gpu_cells.py train --cells FOLDER --out $OUT      # there, as often as needed
    python benchmarks/gpu_cells.py collect --cells FOLDER --from $OUT   # here, after each `train`
    pfl keep fedofa/table_s1

`train` needs this repository, the folder, torch, numpy, safetensors and filelock. It trains the cheapest runs first,
stops before its deadline, and prints a table. It writes to $OUT a line per finished run, and checkpoints of the
unfinished one. `collect` copies these checkpoints into the folder, so the next `train` continues that run. `collect`
accepts a run only if its record, code and data equal those of the workspace, which it checks by the identity of the
run's checkpoints.

``cells.json`` in the folder lists the runs, cheapest first. Each has its spec, cell and seed in `words`, the `seconds`
that it is expected to take here, its record, the seal of the code of its train stage, and the hashes of its data and
partition. The file also has the hash of each module of pflcore. The folder ``data/`` has samples and assignments, as
compressed pickles in pieces, since transfers are limited in size.
"""

import argparse
import hashlib
import json
import os
import pickle
import shutil
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# The packages need not be installed; and benchmarks/pipeline.py would hide the package of that name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from pflcore import sources
from pflcore.backbones import BACKBONES
from pflcore.data.federation import FederatedData
from pflcore.engine import CheckpointFolder, Progress, Result, device_name, select_device, train, use_threads
from pflcore.errors import UserError
from pflcore.files import digest_of, write_text
from pflcore.methods import METHODS
from pipeline.compile.fingerprint import Code
from pipeline.spec.run import Run
from pipeline.stages.identity import run_hash
from pipeline.workspace import Workspace, dataset_path, partition_path, run_path

SPECS = ["fedofa/table_s1", "fedtp/table3"]
CELLS = "cells.json"
FINISHED = "finished.txt"  # ids of runs that were collected, a line each
LINES = "finished.jsonl"  # runs that have ended on the GPU machine, a line each
UNDER_WAY = "under-way-"  # followed by a run's id: the name of a folder with its checkpoints
PIECE = 24 * 2**20  # bytes


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def finished(out: Path) -> list[dict[str, Any]]:
    """Return the lines of runs that have ended, without a truncated line."""
    return [json.loads(line) for line in lines(out / LINES) if line.endswith("}")]


def modules() -> dict[str, str]:
    """Return the SHA-256 of every module of pflcore, by its name."""
    files = Code(Path(__file__).resolve().parents[1]).modules
    own = {name: path for name, path in files.items() if name.startswith("pflcore")}
    return {name: digest_of(path) for name, path in own.items()}


def pack_data(folder: Path, name: str, content: object) -> None:
    """Write samples or an assignment into the folder, in pieces."""
    data, place = zlib.compress(pickle.dumps(content)), folder / "data"
    place.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(data), PIECE)
    for number, start in enumerate(starts):
        (place / f"{name}.{number}-of-{len(starts)}").write_bytes(data[start : start + PIECE])


def unpack_data(folders: Sequence[Path], name: str) -> Any:
    """Read data that :func:`pack_data` wrote, from several folders. Raises :class:`UserError` if pieces are missing."""
    pieces = {path.name: path for folder in folders for path in folder.glob(f"data/{name}.*-of-*")}
    count = int(next(iter(pieces), "-1").rpartition("-")[2])
    names = [f"{name}.{number}-of-{count}" for number in range(count)]
    if not pieces or set(names) - pieces.keys():
        places = ", ".join(map(str, folders))
        raise UserError(f"{name}: not all in {places}; pack again, or name its folder with --data")
    return pickle.loads(zlib.decompress(b"".join(pieces[one].read_bytes() for one in names)))  # noqa: S301 our own


def pack(chosen: argparse.Namespace) -> None:
    """Write the folder for the GPU machine; this runs on the machine with DVC."""
    from pflcore.data.assignment_files import read_assignment
    from pflcore.data.sample_files import read_samples
    from pipeline.compile.compiler import compile_workspace
    from pipeline.plan.estimate import Speed
    from pipeline.running.options import cell_name, match_cells

    workspace, folder = Workspace.find(), chosen.out
    compilation = compile_workspace(workspace, chosen.spec or SPECS)
    compilation.check_tested()
    root, left, wanted = workspace.root, 0, dict[str, str]()
    done = {*lines(folder / FINISHED), *compilation.kept}
    cells = [(spec, cell_name(cell.labels), cell) for spec, table in compilation.tables.items() for cell in table.cells]
    meant = match_cells(chosen.cell, [name for _, name, _ in cells])
    for spec, name, cell in cells:
        for run in (compilation.runs[one] for one in cell.runs if name in meant and one not in done):
            if chosen.seed and run.seed not in chosen.seed:
                continue
            detects = BACKBONES.get(run.backbone).predicts == "boxes"
            if run.analyses or run.training.save_weights or run.tuned or detects:
                left += 1
            else:
                wanted[run.id] = f"{spec}: {name}, seed {run.seed}"
    if not wanted:
        raise UserError("no such cell is still to be trained")
    runs = [compilation.runs[name] for name in wanted]
    federations = sorted({run.federation_id for run in runs})
    absent = [name for name in federations if not (root / partition_path(name)).is_file()]
    if absent:
        stages = " ".join(f"stages/federations/{name}/dvc.yaml:partition" for name in absent)
        raise UserError(f"{len(absent)} partitions have not been made; type: dvc repro {stages}")
    for data_id in {run.data_id for run in runs}:
        pack_data(folder, data_id, read_samples(root / dataset_path(data_id)))
    for federation in federations:
        pack_data(folder, federation, read_assignment(root / partition_path(federation)))
    speed = Speed(compilation.runs.values(), workspace.private / "timings")
    seals = {stage.subject: stage.seal for stage in compilation.stages if stage.kind == "train"}
    packed: list[dict[str, Any]] = []
    for run in runs:
        stands_for = {"record": run.record, "code": seals[run.id], "hashes": hashes(root, run)}
        packed.append({"seconds": speed.seconds(run), "run": run.id, "words": wanted[run.id], **stands_for})
    packed.sort(key=lambda cell: (cell["seconds"], cell["run"]))
    write_text(folder / CELLS, json.dumps({"cells": packed, "modules": modules()}, indent=1) + "\n")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(packed)} cells, {size / 2**20:.1f} MiB")
    if left:
        print(f"{left} left out: analyses, weights, tuned runs and detectors are not for the ledger")


def hashes(root: Path, run: Run) -> dict[str, str]:
    paths = {"dataset_hash": dataset_path(run.data_id), "partition_hash": partition_path(run.federation_id)}
    return {name: digest_of(root / path) for name, path in paths.items()}


def collect(chosen: argparse.Namespace) -> None:
    """Copy returned runs into the workspace and checkpoints into the packed folder; refuse runs of other code."""
    from pipeline.compile.compiler import compile_workspace
    from pipeline.dvc.program import dvc
    from pipeline.spec.specs import find_specs

    workspace, folder, source = Workspace.find(), chosen.cells, chosen.source
    compilation = compile_workspace(workspace, list(find_specs(workspace.specs)))
    compilation.check_tested()
    known, addresses, refused = set(lines(folder / FINISHED)), [], []
    makers = {stage.subject: stage for stage in compilation.stages if stage.kind == "train"}
    for line in finished(source):
        run = compilation.runs.get(line["run"])
        if line["run"] in known:
            continue
        if run is None or line["identity"] != identity(workspace.root, run, makers[run.id].seal, line["kind"]):
            refused.append(line["run"])
            continue
        if not (workspace.root / makers[run.id].file).is_file():
            raise UserError(f"{makers[run.id].file}: DVC does not see this stage; type `pfl add` and the spec")
        addresses.append(makers[run.id].address)
        write_run(workspace, folder, run, makers[run.id].seal, line)
        known.add(run.id)
    if addresses and dvc(workspace.root, "commit", "--force", "--quiet", *addresses):
        raise UserError("`dvc commit` failed; see above")
    write_text(folder / FINISHED, "".join(f"{name}\n" for name in sorted(known)))
    for place in source.glob(f"{UNDER_WAY}*"):  # the next `train` takes it from there
        shutil.rmtree(folder / place.name, ignore_errors=True)
        shutil.copytree(place, folder / place.name)
    for name in known:
        shutil.rmtree(folder / f"{UNDER_WAY}{name}", ignore_errors=True)
    if refused:
        why = "trained with other settings, code or data than there are here, so not taken"
        raise UserError(f"{', '.join(refused)}: {why}; {len(addresses)} others were")
    under_way = len(list(folder.glob(f"{UNDER_WAY}*")))
    print(f"{len(addresses)} runs taken, {under_way} under way; `pfl keep` makes them last")


def identity(root: Path, run: Run, code: str, kind: str) -> str:
    try:
        return run_hash(run, code, hashes(root, run), torch.device(kind))
    except OSError:  # without the data here, the identity cannot be checked
        return ""


def write_run(workspace: Workspace, folder: Path, run: Run, code: str, line: dict[str, Any]) -> None:
    """Write the outputs of the train stage, with device and PyTorch of the GPU machine, and the timing."""
    from pipeline.stages.train import write_rounds

    result: Result = pickle.loads(bytes.fromhex(line["result"]))  # noqa: S301 our own
    novel = frozenset(unpack_data([folder], run.federation_id).novel)
    facts = {"run": run.id, "device": line["device"], "torch": line["torch"], **hashes(workspace.root, run)}
    path = workspace.root / run_path(run.id, "rounds.parquet")
    path.unlink(missing_ok=True)  # the old file may be a link into DVC's cache
    write_rounds(path, result, novel, code=code, **facts)
    rounds = (result.diverged.round if result.diverged else result.rounds) - result.resumed_from
    timing = workspace.private / "timings" / f"{run.id}.json"
    write_text(timing, json.dumps({"seconds": line["seconds"], "device": line["device"], "rounds": rounds}) + "\n")
    os.utime(timing, (line["ended"], line["ended"]))  # `pfl keep` reads the day of the training from it


class OutOfTime(Exception):
    """Raised after a checkpoint if the deadline is near."""


class Until(CheckpointFolder):
    """Checkpoints of a run that stops before a deadline."""

    def __init__(self, folder: Path, identity: str, ends: float, every: float) -> None:
        super().__init__(folder, identity, print)
        self.ends, self.every, self.saved = ends, every, time.monotonic()

    def save(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        super().save(round_, tensors)
        now = time.monotonic()
        if now + max(self.every, now - self.saved) > self.ends:
            raise OutOfTime
        self.saved = now


class Session:
    """One call of `train`, which writes a line per finished run and the checkpoints of an unfinished one."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.ends, self.chosen = time.monotonic() + chosen.deadline, chosen
        self.folder, self.out, self.device = chosen.cells, chosen.out, select_device(chosen.device)
        try:
            content = json.loads((self.folder / CELLS).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.folder}: nothing was packed there ({error})") from None
        self.cells, self.modules = content["cells"], content["modules"]
        if self.modules != modules():
            raise UserError("pflcore/ is not the one that the cells were packed with; pack them again")
        self.samples: dict[str, Any] = {}

    def run(self) -> None:
        """Train all runs until the deadline is near, and print a row for each. A failed run stops no other run."""
        self.out.mkdir(parents=True, exist_ok=True)
        done = {*lines(self.folder / FINISHED), *(line["run"] for line in finished(self.out))}
        print("| cell | rounds | accuracy | seconds | |\n|---|---:|---:|---:|---|")
        for cell in (cell for cell in self.cells if cell["run"] not in done):
            begun, seen = time.monotonic(), list[Progress]()
            if begun + self.chosen.every > self.ends:
                return
            try:
                state = self.train(cell, seen)
            except OutOfTime:
                state = "under way"
            except Exception as error:
                state = f"failed: {type(error).__name__}: {error}".partition("\n")[0][:160]
            rounds = seen[-1].round if seen else 0
            accuracies = [progress.accuracy for progress in seen if progress.accuracy is not None]
            shown = f"{100 * accuracies[-1]:.2f}" if accuracies else ""
            print(f"| {cell['words']} | {rounds} | {shown} | {time.monotonic() - begun:.1f} | {state} |", flush=True)
            if state == "under way" or "CUDA error" in state:  # after a CUDA error all later runs fail too
                return

    def train(self, cell: dict[str, Any], seen: list[Progress]) -> str:
        """Train a cell until its end or the deadline; append the progress of each round to `seen`."""
        run, data, started = Run(cell["record"]), self.federation(cell), time.monotonic()
        name, place = run_hash(run, cell["code"], cell["hashes"], self.device), self.out / f"{UNDER_WAY}{cell['run']}"
        if (self.folder / place.name).is_dir() and not place.is_dir():
            shutil.copytree(self.folder / place.name, place)

        with Until(place, name, self.ends, self.chosen.every) as checkpoints:
            result = train(
                data=data,
                backbone=BACKBONES.create(run.backbone, **run.options("backbone")),
                method=METHODS.create(run.method, **run.options("method")),
                training=run.training,
                evaluation=run.evaluation,
                seed=run.seed,
                checkpoints=checkpoints,
                checkpoint_every=self.chosen.every,
                on_round=seen.append,
            )
            self.check_code()
            line = {"run": cell["run"], "identity": name, "kind": self.device.type, "torch": torch.__version__}
            line |= {"device": device_name(self.device), "ended": time.time(), "seconds": time.monotonic() - started}
            line["result"] = pickle.dumps(replace(result, weights={}, findings={})).hex()
            with (self.out / LINES).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            checkpoints.clear()
        shutil.rmtree(place)
        return "diverged" if result.diverged else "done"

    def check_code(self) -> None:
        """Raise :class:`UserError` if this process has imported other code than the cells were packed with, such as a
        module that was edited before a late import."""
        for name, content in sources.loaded().items():
            if name in self.modules and hashlib.sha256(content).hexdigest() != self.modules[name]:
                raise UserError(f"{name} is not the one that the cells were packed with; pack them again")

    def federation(self, cell: dict[str, Any]) -> FederatedData:
        run, folders = Run(cell["record"]), (self.folder, *self.chosen.data)
        if run.data_id not in self.samples:
            self.samples = {run.data_id: unpack_data(folders, run.data_id)}  # frees the previous dataset
        samples, assignment = self.samples[run.data_id], unpack_data(folders, run.federation_id)
        if assignment.noise:  # noise is added in place
            samples = replace(samples, inputs=samples.inputs.copy())
        data = FederatedData.from_samples(samples, assignment, self.device)
        use_threads(self.device, data.shape)
        return data


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("pack", help="write what a card needs")
    verb.set_defaults(perform=pack)
    verb.add_argument("--out", type=Path, required=True, help="folder to write")
    verb.add_argument("--spec", action="append", help=f"a spec; {' and '.join(SPECS)} without it")
    verb.add_argument("--cell", action="append", default=[], help="labels, joined by a comma and a space; * for any")
    verb.add_argument("--seed", action="append", type=int)
    verb = verbs.add_parser("train", help="train on the card")
    verb.set_defaults(perform=lambda chosen: Session(chosen).run())
    verb.add_argument("--cells", type=Path, required=True, help="folder that was packed")
    verb.add_argument("--data", type=Path, action="append", default=[], help="folder with further pieces of datasets")
    verb.add_argument("--out", type=Path, required=True, help="folder for what comes back")
    verb.add_argument("--deadline", type=float, default=540.0, help="seconds")
    verb.add_argument("--every", type=float, default=15.0, help="seconds between checkpoints")
    verb.add_argument("--device", default="cuda")
    verb = verbs.add_parser("collect", help="take what came back")
    verb.set_defaults(perform=collect)
    verb.add_argument("--cells", type=Path, required=True, help="folder that was packed")
    verb.add_argument("--from", type=Path, required=True, dest="source", help="folder that came back")
    chosen = parser.parse_args()
    try:
        chosen.perform(chosen)
    except UserError as error:
        print(f"gpu_cells: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
