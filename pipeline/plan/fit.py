"""Whether the parts of runs go together: what training would refuse, found before anything is trained.

A model is built without memory for its parameters; a partition is drawn of as many labels as the dataset has, all
classes of the same size. What was found is remembered by what it depends on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compilation import Compilation
from pipeline.progress import show_preparation
from pipeline.spec.catalog import fingerprint, load_catalog
from pipeline.spec.run import Run
from pipeline.spec.specs import find_specs, load_spec
from pipeline.spec.yamlfile import Address
from pipeline.workspace import Workspace, partition_path

_ANY_FITS = ("rounds", "sample_rate", "lr")  # of training: whether parts go together does not depend on them
Question = tuple[str, str, Callable[[Run], None]]
"""The part of a spec that it is about, a key that is the same for the same answer, and who raises UserError."""


def misfits(workspace: Workspace, compilation: Compilation, runs: Iterable[str]) -> list[str]:
    """Return what training or drawing would refuse, a line for each thing in each spec: where, which cells, and why."""
    path, known = workspace.private / "fit.json", dict[str, str]()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        known = dict(content["answers"]) if content["code"] == fingerprint() else {}
    asked = {run: list(_questions(compilation.runs[run], workspace)) for run in runs}
    new = {key: (ask, compilation.runs[run]) for run, some in asked.items() for _, key, ask in some if key not in known}
    if new:
        with show_preparation() as show:
            for done, (key, (ask, run)) in enumerate(new.items(), 1):
                known[key] = ""
                try:
                    ask(run)
                except UserError as error:
                    known[key] = " ".join(str(error).split())
                show("checking what goes together", done, len(new))
        with contextlib.suppress(OSError):  # what cannot be written is asked again the next time
            # A refusal is asked again: it may be of what is not installed.
            fits = {key: why for key, why in known.items() if not why}
            write_text(path, json.dumps({"code": fingerprint(), "answers": fits}))
    faults = {run: [(part, known[key]) for part, key, _ in some if known[key]] for run, some in asked.items()}
    for id_, found in faults.items():  # both questions ask for the dataset, and its options are refused twice
        options = f"{compilation.runs[id_].dataset}."
        found[:] = dict.fromkeys(("dataset" if why.startswith(options) else part, why) for part, why in found)
    return _lines(workspace, compilation, faults) if any(faults.values()) else []


def _questions(run: Run, workspace: Workspace) -> Iterator[Question]:
    record = run.record
    if not (workspace.root / partition_path(run.federation_id)).is_file():
        yield "partition", _key(run.federation), _draw
    if not record["backbone"].get("pretrained"):  # whose file has to be read
        training = {name: value for name, value in record["training"].items() if name not in _ANY_FITS}
        validates = bool(record["partition"].get("validation_share"))
        parts = [record["dataset"], record["backbone"], record["method"], training, record["evaluation"], validates]
        parts += [run.clients, *([record["condition"]] if run.condition else [])]
        parts += [record["analyses"], _has_novel(run)] if run.analyses else []
        yield "method", _key(parts), build


def _key(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _has_novel(run: Run) -> bool:
    return any(value for name, value in run.record["partition"].items() if name.startswith("novel_"))


def build(run: Run) -> None:
    """Build what a run trains, and check its analyses. Raises :class:`UserError` where training would."""
    import torch

    from pflcore.analyses import ANALYSES
    from pflcore.backbones import BACKBONES
    from pflcore.conditions import CONDITIONS
    from pflcore.engine.run import RunState
    from pflcore.methods import METHODS
    from pipeline.report.counting import blank

    for device in ("meta", "cpu"):
        data = blank(run, torch.device(device))
        if data is None:  # only the data tell how large images are and how many classes there are
            return
        if run.record["partition"].get("validation_share"):
            data = replace(data, validation=data.test)
        if run.analyses and _has_novel(run):
            data = replace(data, novel=frozenset({run.clients - 1}))
        try:
            method = METHODS.create(run.method, **run.options("method"))
            backbone = BACKBONES.create(run.backbone, **run.options("backbone"))
            condition = CONDITIONS.create(run.condition, **run.options("condition")) if run.condition else None
            with torch.random.fork_rng(devices=[]), torch.device(device):
                state = RunState(data, backbone, method, run.training, run.evaluation, 0, None, condition)
                for name, options in run.analyses.items():
                    ANALYSES.create(name, **options).check(state.subject(None))
            return
        except UserError:
            raise
        except Exception as error:  # of anybody's module; without numbers, perhaps for lack of them
            if device == "cpu":
                raise UserError(f"{run.method} on {run.backbone}: {type(error).__name__}: {error}") from error


def _draw(run: Run) -> None:
    """Draw the partition of a run. Raises :class:`UserError` where it cannot be."""
    import numpy as np

    from pflcore.datasets import DATASETS, stand_in, stand_in_counts
    from pflcore.partitions import PARTITIONS, partition

    chosen = run.options("dataset")
    size = chosen.pop("stand_in", None)
    dataset = DATASETS.create(run.dataset, **chosen)
    if counts := stand_in_counts(size) if size else dataset.expected:
        counts = run.client_sample_counts(counts)
        federation = Run(run.federation)
        scheme = PARTITIONS.create(run.partition, **federation.options("partition"))
        samples = stand_in(dataset, *counts, with_images=False)
        if run.features:
            samples = replace(samples, inputs=np.zeros((len(samples), 1), np.float32), mean=(), std=(), boxes=None)
        partition(scheme, samples, run.clients, federation.seed)


def _lines(workspace: Workspace, compilation: Compilation, faults: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """Return ``specs/a.yaml:12: FedTP, IID and 3 more: method fedtp: …``, a line per spec and reason."""
    catalog, paths, lines = load_catalog(workspace.home), find_specs(workspace.specs), []
    for spec, table in compilation.tables.items():
        cells = defaultdict[tuple[str, str], list[dict[str, str]]](list)
        for cell in table.cells:
            for fault in dict.fromkeys(fault for run in cell.runs for fault in faults.get(run, [])):
                cells[fault].append(cell.labels)
        document = load_spec(paths[spec], workspace.specs, catalog).document if cells else None
        for (part, why), (labels, *others) in cells.items():
            part = "backbone" if "backbone" in why.split()[:2] else part
            part = "dataset" if why.startswith("features: ") else part
            part = "condition" if why.startswith("condition") else part
            axis = next((axis for axis in labels if axis.split(".")[0] == part), "")
            address: Address = ("grid", "axes", axis, labels[axis]) if axis else ("grid", "base", part)
            more = f" and {len(others)} more" if others else ""
            assert document
            lines.append(f"{document.mark(address)}: {', '.join(labels.values())}{more}: {why}")
    return lines
