"""Whether the parts of runs go together: what training would refuse, found before anything is trained.

A model is built without memory behind its numbers, with what its method keeps on clients and at the server; a partition
is drawn with labels in the dataset's number, its classes alike. What was found is remembered by what it depends on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.json_text import parse_json
from pipeline.compile.compilation import Compilation
from pipeline.progress import show_preparation
from pipeline.spec.catalog import fingerprint, load_catalog
from pipeline.spec.run import Run, options
from pipeline.spec.specs import find_specs, load_spec
from pipeline.spec.table import TableCell
from pipeline.spec.yamlfile import Address
from pipeline.workspace import Workspace, partition_path

_NO_MATTER = ("rounds", "sample_rate", "lr")  # of training, for whether parts go together


@dataclass(frozen=True)
class Question:
    """Something that has to fit, and the run that stands for all that share it.

    Attributes:
        kind: The part of a spec that it is about.
        key: The same for the same answer.
    """

    kind: str
    key: str
    run: Run
    ask: Callable[[Run], None]


def misfits(workspace: Workspace, compilation: Compilation, runs: Iterable[str]) -> list[str]:
    """What training or drawing would refuse, a line for each thing in each spec: where, which cells, and why.

    Args:
        runs: Those to look at, by id.
    """
    path, code = workspace.private / "fit.json", fingerprint()
    known = _remembered(path, code)
    asked = {run: list(_questions(compilation.runs[run], workspace)) for run in runs}
    new = {one.key: one for several in asked.values() for one in several if one.key not in known}
    if new:
        with show_preparation() as show:
            for done, (key, question) in enumerate(new.items(), 1):
                known[key] = _answer(question)
                show("checking what goes together", done, len(new))
        with contextlib.suppress(OSError):  # what cannot be kept is asked again the next time
            write_text(path, json.dumps({"code": code, "answers": known}))
    faults = {run: [(one.kind, known[one.key]) for one in several if known[one.key]] for run, several in asked.items()}
    return _lines(workspace, compilation, {run: several for run, several in faults.items() if several})


def _questions(run: Run, workspace: Workspace) -> Iterator[Question]:
    record = run.record
    if not (workspace.root / partition_path(run.federation_id)).is_file():
        yield Question("partition", _key(run.federation), run, _draw)
    if not record["backbone"].get("pretrained"):  # whose file has to be read
        training = {name: value for name, value in record["training"].items() if name not in _NO_MATTER}
        validates = bool(record["partition"].get("validation_share"))
        parts = [record["dataset"], record["backbone"], record["method"], training, record["evaluation"], validates]
        yield Question("method", _key(parts), run, _build)


def _key(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _answer(question: Question) -> str:
    try:
        question.ask(question.run)
    except UserError as error:
        return " ".join(str(error).split())
    return ""


def _build(run: Run) -> None:
    """Build what a run trains. Raises :class:`UserError` where training would."""
    import torch

    from pflcore.backbones import BACKBONES
    from pflcore.engine.run import RunState
    from pflcore.methods import METHODS
    from pipeline.report.counting import blank

    for device in ("meta", "cpu"):
        data = blank(run, torch.device(device))
        if data is None:  # only the data tell how large images are and how many classes there are
            return
        if run.record["partition"].get("validation_share"):
            data = replace(data, validation=data.test)
        try:
            method = METHODS.create(run.method, **run.options("method"))
            backbone = BACKBONES.create(run.backbone, **run.options("backbone"))
            with torch.random.fork_rng(devices=[]), torch.device(device):
                RunState(data, backbone, method, run.training, run.evaluation, 0, None)
            return
        except UserError:
            raise
        except Exception as error:  # of anybody's module; without numbers, perhaps for lack of them
            if device == "cpu":
                raise UserError(f"{run.method} on {run.backbone}: {type(error).__name__}: {error}") from error


def _draw(run: Run) -> None:
    """Draw the partition of a run. Raises :class:`UserError` where it cannot be."""
    from pflcore.datasets import DATASETS, stand_in, stand_in_counts
    from pflcore.partitions import PARTITIONS, partition

    chosen = options(run.record["dataset"])
    size = chosen.pop("stand_in", None)
    dataset = DATASETS.create(run.dataset, **chosen)
    counts = stand_in_counts(size) if size else dataset.expected
    if counts:
        scheme = PARTITIONS.create(run.partition, **options(run.record["partition"]))
        partition(scheme, stand_in(dataset, *counts, with_images=False), run.clients, run.seed)


def _lines(workspace: Workspace, compilation: Compilation, faults: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """``specs/a.yaml:12: FedTP, IID and 3 cells more: method fedtp: …``, a line per spec and reason."""
    catalog, paths = load_catalog(workspace.home), find_specs(workspace.specs)
    lines = []
    for spec, table in compilation.tables.items():
        cells: dict[tuple[str, str], list[TableCell]] = {}
        for cell in table.cells:
            for fault in {fault: None for run in cell.runs for fault in faults.get(run, [])}:
                cells.setdefault(fault, []).append(cell)
        if cells:
            document = load_spec(paths[spec], workspace.specs, catalog).document
            for (kind, why), several in cells.items():
                labels = several[0].labels
                part = "backbone" if "backbone" in why.split()[:2] else kind
                axis = next((axis for axis in labels if axis.split(".")[0] == part), "")
                address: Address = ("grid", "axes", axis, labels[axis]) if axis else ("grid", "base", part)
                more = "" if len(several) < 2 else f" and {len(several) - 1} more"
                lines.append(f"{document.mark(address)}: {', '.join(labels.values())}{more}: {why}")
    return lines


def _remembered(path: Path, code: str) -> dict[str, str]:
    """The answers of the same code; none where there are none to be read."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if content["code"] == code:
            return {str(key): str(answer) for key, answer in content["answers"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}
