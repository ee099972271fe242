"""``pfl export``: a client's model as a file for others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from pflcore.data.sample_files import read_facts
from pflcore.engine.trained import ClientModel
from pflcore.files import atomic_path
from pipeline.library.found import Found
from pipeline.library.models import find_run, trained
from pipeline.spec.run import Run
from pipeline.workspace import Workspace, dataset_path

WEIGHTS = "model.safetensors"


def export(workspace: Workspace, word: str, client: int, seed: int | None, out: Path | None) -> Path:
    """Write a client's model into the folder `out`, by default ``exports/RUN-clientN``, and return the file.

    Raises:
        UserError: There is no such model, as :meth:`pipeline.library.study.Study.model` has it.
    """
    found, run = find_run(workspace, word, seed)
    model = trained(found, run, "cpu").client(client)
    folder = out or workspace.home / "exports" / f"{run.id}-client{client}"
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state().items()}
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file(tensors, temporary, {name: _text(value) for name, value in _header(found, run, model).items()})
    return folder / WEIGHTS


def _header(found: Found, run: Run, model: ClientModel) -> Mapping[str, Any]:
    """Return what the file's metadata say of a model: whose it is, what it was trained on and how, what it predicts."""
    samples = read_facts(found.workspace.root / dataset_path(run.data_id))
    return {
        "format": "pt",
        "run": run.id,
        "client": model.client,
        "plain": model.plain,
        "settings": run.with_chosen(found.rounds(run)[1].get("chosen") or {}).record,
        "classes": samples.class_names,
        "mean": samples.mean,
        "std": samples.std,
        "size": samples.size,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
