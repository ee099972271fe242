"""An adapter to plain loops, as tutorials write them: an example, and what the tool itself is tested with.

None of it uses this project but for what it is given.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from oracle.setting import After, Setting
from torch import Tensor, nn
from torch.nn import functional as F

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.1},
    "fedper": {},
    "fedrep": {"head_epochs": 1},
    "ditto": {"lam": 0.5},
    "local": {},
}


def run(method: str, options: Mapping[str, Any], setting: Setting) -> Iterator[After]:
    """Every client has a module of its own; the cohort's get the shared part, and what comes back is averaged."""
    keeps = {"fedper": "head", "fedrep": "head", "local": "all"}.get(method, "nothing")
    shared = {name: entry.clone() for name, entry in setting.model().state_dict().items()}
    own = [setting.model() for _ in range(setting.clients)]  # what clients keep, and what they are measured with
    for round_ in setting.rounds:
        returned, sizes = [], []
        for client in range(setting.clients) if method == "local" else setting.cohort(round_):
            model = copy.deepcopy(own[client]) if method == "ditto" else own[client]
            _receive(model, shared, keeps, setting.head)
            received = copy.deepcopy(model)
            for number, epoch in enumerate(setting.epochs(round_, client)):
                trained = _trained(model, setting.head, method, number, options)
                for batch in epoch:
                    pull = options["mu"] if method == "fedprox" else 0.0
                    _step(model, trained, batch, setting.training.lr, received, pull)
                    if method == "ditto":
                        every = dict(own[client].named_parameters())
                        _step(own[client], every, batch, setting.training.lr, received, options["lam"])
            returned.append({name: entry.clone() for name, entry in model.state_dict().items()})
            sizes.append(1 if method == "fedrep" else len(setting.train(client)[1]))  # there clients count alike
        weights = [size / sum(sizes) for size in sizes]
        both = list(zip(weights, returned, strict=True))
        shared = {name: sum(weight * one[name] for weight, one in both) for name in shared}
        measured = own if method == "ditto" else [copy.deepcopy(model) for model in own]
        if method != "ditto":
            for model in measured:
                _receive(model, shared, keeps, setting.head)
        yield After(setting.correct(measured), lambda measured=measured: [one.state_dict() for one in measured])


def _receive(model: nn.Module, shared: Mapping[str, Tensor], keeps: str, head: str) -> None:
    def stays(name: str) -> bool:
        return keeps == "all" or (keeps == "head" and name.startswith(f"{head}."))

    model.load_state_dict({name: entry for name, entry in shared.items() if not stays(name)}, strict=False)


def _trained(model: nn.Module, head: str, method: str, epoch: int, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The parameters that an epoch trains: all, but for FedRep's first the head alone, and then the rest."""
    parameters = dict(model.named_parameters())
    if method != "fedrep":
        return parameters
    first = epoch < options["head_epochs"]
    return {name: it for name, it in parameters.items() if name.startswith(f"{head}.") == first}


def _step(model: nn.Module, trained: Mapping[str, Tensor], batch: Any, rate: float, towards: Any, pull: float) -> None:
    """A step of SGD on cross entropy + pull / 2 · ‖w − w_received‖²."""
    model.train()
    inputs, labels = batch
    slopes = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(trained.values()))
    anchors = dict(towards.named_parameters())
    with torch.no_grad():
        for (name, parameter), slope in zip(trained.items(), slopes, strict=True):
            parameter -= rate * (slope + pull * (parameter - anchors[name]))
