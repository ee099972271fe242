"""An adapter to plain loops, as tutorials write them: an example, and what the tool itself is tested with.

None of it uses this project but for what it is given.
"""

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
    keeps = {"fedper": f"{setting.head}.", "fedrep": f"{setting.head}.", "local": ""}.get(method, "nothing")
    shared = {name: entry.clone() for name, entry in setting.model().state_dict().items()}
    own = [setting.model() for _ in range(setting.clients)]  # what clients keep, and what they are measured with

    def receive(model: nn.Module) -> nn.Module:
        received = {name: entry for name, entry in shared.items() if not name.startswith(keeps)}
        model.load_state_dict(received, strict=False)
        return model

    for round_ in setting.rounds:
        returned, sizes = [], []
        for client in range(setting.clients) if method == "local" else setting.cohort(round_):
            model = receive(copy.deepcopy(own[client]) if method == "ditto" else own[client])
            received = copy.deepcopy(model)
            for number, epoch in enumerate(setting.epochs(round_, client)):
                trained = dict(model.named_parameters())
                if method == "fedrep":  # the head alone at first, and then the rest
                    head = number < options["head_epochs"]
                    trained = {name: one for name, one in trained.items() if name.startswith(keeps) == head}
                for batch in epoch:
                    step(model, trained, batch, setting.training.lr, received, options.get("mu", 0.0))
                    if method == "ditto":
                        every = dict(own[client].named_parameters())
                        step(own[client], every, batch, setting.training.lr, received, options["lam"])
            returned.append({name: entry.clone() for name, entry in model.state_dict().items()})
            sizes.append(1 if method == "fedrep" else len(setting.train(client)[1]))  # there clients count alike
        both = [(size / sum(sizes), state) for size, state in zip(sizes, returned, strict=True)]
        shared = {name: sum(weight * one[name] for weight, one in both) for name in shared}
        measured = own if method == "ditto" else [receive(copy.deepcopy(model)) for model in own]
        yield After(setting.correct(measured), lambda measured=measured: [one.state_dict() for one in measured])


def step(model: nn.Module, trained: Mapping[str, Tensor], batch: Any, rate: float, towards: Any, pull: float) -> None:
    """Take a step of SGD on cross entropy + pull / 2 · ‖w − w_received‖²."""
    model.train()
    inputs, labels = batch
    slopes = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(trained.values()))
    anchors = dict(towards.named_parameters())
    with torch.no_grad():
        for (name, parameter), slope in zip(trained.items(), slopes, strict=True):
            parameter -= rate * (slope + pull * (parameter - anchors[name]))
