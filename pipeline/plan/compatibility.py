"""Compatibility of the parts of runs: what training would refuse is reported before anything is trained.

A model is built without memory for its parameters; a partition is drawn of as many labels as the dataset has, all
classes of the same size. Passed checks are cached by what they depend on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compilation import Compilation
from pipeline.progress import show_preparation
from pipeline.spec.catalog import fingerprint, load_catalog
from pipeline.spec.patches import has_novel, has_validation
from pipeline.spec.run import Run
from pipeline.spec.specs import find_specs, load_spec
from pipeline.spec.yamlfile import Address
from pipeline.workspace import Workspace, partition_path

_ANY_FITS = ("rounds", "sample_rate", "lr")  # of training: whether parts go together does not depend on them


class Check(NamedTuple):
    """A check of a part of a spec: checks with the same key have the same result; `function` raises UserError."""

    part: str
    key: str
    function: Callable[[Run], None]


def compatibility_errors(workspace: Workspace, compilation: Compilation, runs: Iterable[str]) -> list[str]:
    """Return what training or drawing would refuse, a line for each thing in each spec: where, which cells, and why."""
    path, messages = workspace.private / "fit.json", dict[str, str]()  # key of a check → its error; "" if it passes
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        messages = dict(content["answers"]) if content["code"] == fingerprint() else {}
    checks = {run: list(_checks(compilation.runs[run], workspace)) for run in runs}
    new = {check.key: (check, run) for run in checks for check in checks[run] if check.key not in messages}
    if new:
        with show_preparation() as show:
            for done, (check, run) in enumerate(new.values(), 1):
                messages[check.key] = ""
                try:
                    check.function(compilation.runs[run])
                except UserError as error:
                    messages[check.key] = " ".join(str(error).split())
                show("checking what goes together", done, len(new))
        with contextlib.suppress(OSError):  # without the file, the checks are repeated
            # Failed checks are repeated: a missing package may have been installed.
            passed = {key: message for key, message in messages.items() if not message}
            write_text(path, json.dumps({"code": fingerprint(), "answers": passed}))
    errors: dict[str, list[tuple[str, str]]] = {}
    for run, run_checks in checks.items():  # both checks create the dataset, so each refuses a wrong option of it
        prefix = f"{compilation.runs[run].dataset}."
        failed = [(check.part, messages[check.key]) for check in run_checks if messages[check.key]]
        errors[run] = [*dict.fromkeys(("dataset" if why.startswith(prefix) else part, why) for part, why in failed)]
    return _lines(workspace, compilation, errors) if any(errors.values()) else []


def _checks(run: Run, workspace: Workspace) -> Iterator[Check]:
    record = run.record
    if not (workspace.root / partition_path(run.federation_id)).is_file():
        yield Check("partition", _key(run.federation), _draw)
    if not record["backbone"].get("pretrained"):  # whose file has to be read
        training = {name: value for name, value in record["training"].items() if name not in _ANY_FITS}
        parts = [record["dataset"], record["backbone"], record["method"], training, record["evaluation"]]
        parts += [has_validation(run), run.clients, *([record["condition"]] if run.condition else [])]
        parts += [record["analyses"], has_novel(run)] if run.analyses else []
        yield Check("method", _key(parts), build)


def _key(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def build(run: Run) -> None:
    """Build what a run trains, and check its analyses. Raises :class:`UserError` where training would."""
    import torch

    from pflcore.analyses import ANALYSES
    from pflcore.backbones import BACKBONES
    from pflcore.conditions import CONDITIONS
    from pflcore.engine.run import RunState
    from pflcore.methods import METHODS
    from pipeline.report.counting import placeholder_data

    for device in ("meta", "cpu"):
        data = placeholder_data(run, torch.device(device))
        if data is None:  # sizes of images and classes are known only from the data
            return
        if has_validation(run):
            data = replace(data, validation=data.test)
        if run.analyses and has_novel(run):
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
        except Exception as error:  # in a module of the user; on "meta" perhaps because tensors have no values
            if device == "cpu":
                raise UserError(f"{run.method} on {run.backbone}: {type(error).__name__}: {error}") from error


def _draw(run: Run) -> None:
    """Draw the partition of a run. Raises :class:`UserError` if that is impossible."""
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


def _lines(workspace: Workspace, compilation: Compilation, errors: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """Return ``specs/a.yaml:12: FedTP, IID and 3 more: method fedtp: …``, a line per spec and reason."""
    catalog, paths, lines = load_catalog(workspace.home), find_specs(workspace.specs), []
    for spec, table in compilation.tables.items():
        cells = defaultdict[tuple[str, str], list[dict[str, str]]](list)
        for cell in table.cells:
            for error in dict.fromkeys(error for run in cell.runs for error in errors.get(run, [])):
                cells[error].append(cell.labels)
        if not cells:
            continue
        document = load_spec(paths[spec], workspace.specs, catalog).document
        for (part, message), (labels, *others) in cells.items():
            if message.startswith("condition"):
                part = "condition"
            elif message.startswith("features: "):
                part = "dataset"
            elif "backbone" in message.split()[:2]:
                part = "backbone"
            axis = next((axis for axis in labels if axis.split(".")[0] == part), "")
            address: Address = ("grid", "axes", axis, labels[axis]) if axis else ("grid", "base", part)
            count = f" and {len(others)} more" if others else ""
            lines.append(f"{document.mark(address)}: {', '.join(labels.values())}{count}: {message}")
    return lines
