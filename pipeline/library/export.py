"""``pfl export``: a client's model as files for others: weights and a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from pflcore.data.sample_files import read_facts
from pflcore.engine.client_model import ClientModel
from pflcore.engine.trained import Trained
from pflcore.files import atomic_path, write_text
from pipeline.library.card import Card, card
from pipeline.library.found import Found
from pipeline.library.models import find_run, trained
from pipeline.spec.run import Run
from pipeline.workspace import Workspace, dataset_path

WEIGHTS, CARD = "model.safetensors", "README.md"


def export(workspace: Workspace, word: str, client: int, seed: int | None, out: Path | None) -> list[Path]:
    """Write a client's model into the folder `out`, by default ``exports/RUN-clientN``, and return the files.

    Raises:
        UserError: There is no such model, as :meth:`pipeline.library.study.Study.model` has it.
    """
    found, run = find_run(workspace, word, seed)
    what = trained(found, run, "cpu")
    model = what.client(client)
    folder = out or workspace.home / "exports" / f"{run.id}-client{client}"
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state().items()}
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file(tensors, temporary, {"format": "pt", "run": run.id, "client": str(client)})
    write_text(folder / CARD, card(_told(found, run, what, model)))
    return [folder / WEIGHTS, folder / CARD]


def _told(found: Found, run: Run, what: Trained, model: ClientModel) -> Card:
    samples = read_facts(found.workspace.root / dataset_path(run.data_id))
    rounds, facts = found.rounds(run)
    last = [
        row
        for row in rounds.to_pylist()
        if (row["round"], row["client"]) == (what.rounds, model.client) and row["population"] != "validation"
    ]
    (measured,) = last
    correct, total = model.measure()[:2]
    return Card(
        run=run.with_chosen(facts.get("chosen") or {}),
        run_id=run.id,
        client=model.client,
        spec=found.spec,
        plain=model.plain,
        timm=_timm_call(model.net, what.data.shape, what.data.classes) if model.plain else None,
        samples=samples,
        training_samples=len(what.data.train[model.client]),
        measured=(measured["correct"], measured["total"]),
        here=(int(correct), int(total)),
        obtained=f"{facts['device']}, PyTorch {facts['torch']}",
        beside=sorted(name for name in model.state() if name not in model.net.state_dict()),
    )


def _timm_call(net: nn.Module, shape: tuple[int, ...], classes: int) -> tuple[str, Mapping[str, Any]] | None:
    """The arguments with which timm builds a network, if it does: they are read off the network, and tried."""
    name = (getattr(net, "pretrained_cfg", None) or {}).get("architecture")
    if not name:
        return None
    import timm

    arguments = {"pretrained": False, "in_chans": shape[0], "num_classes": classes, **_read_off(net)}
    with torch.device("meta"):
        made = timm.create_model(name, **arguments)
    same = {entry: tensor.shape for entry, tensor in made.state_dict().items()}
    return (name, arguments) if same == {entry: tensor.shape for entry, tensor in net.state_dict().items()} else None


def _read_off(net: nn.Module) -> dict[str, Any]:
    """What our backbones set of timm's networks, as the network shows it."""
    from timm.models import ResNet, VisionTransformer

    if isinstance(net, ResNet):
        stages: list[Any] = [net.layer1, net.layer2, net.layer3, net.layer4]
        channels = tuple(stage[0].conv1.out_channels for stage in stages)
        return {"layers": tuple(map(len, stages)), "channels": channels}
    side = getattr(getattr(net, "patch_embed", None), "img_size", None)
    size = {"img_size": side} if side else {}
    if isinstance(net, VisionTransformer):
        return {**size, "patch_size": net.patch_embed.patch_size[0], "depth": len(net.blocks)}
    return size
