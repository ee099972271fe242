"""An adapter to FedTP's code (zhyczy/FedTP), with its small ConvNet or its Transformer; it needs einops, and images of
3×32×32.

Its ``main.py`` runs as it is. Given to it are: the samples and the batches, in place of its loaders; the partition; who
takes part, in place of its shuffles; the initial weights, those of a hypernetwork too; and no dropout. What it measures
after a round is what it would print; it cannot measure the first, except of local training.
"""

import contextlib
import importlib.util
import io
import logging
import runpy
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch
from oracle.setting import After, Epochs, Setting
from torch import nn

from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.methods import METHODS as OURS
from pflcore.operators.hypernetworks import HyperNetwork

LR = 0.01  # its hypernetworks learn at the rate of its clients, ours have one of their own: this
GENERATED = {"embedding": 128, "hidden": 150, "server_clip": None, "server_lr": LR}
# Ours → what it calls it, options of ours under which both are alike, and arguments of its.
EITHER: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "fedavg": ("fedavg", {}, []),
    "fedprox": ("fedprox", {"mu": 0.1}, ["--mu", "0.1"]),
    "fedper": ("fedPer", {}, []),
    "local": ("local_training", {}, []),
    "pfedme": ("pfedMe", {}, []),
    "fedrod": ("fedRod", {}, ["--balanced_soft_max"]),
}
KNOWN = {
    "convnet": {**EITHER, "pfedhn": ("pFedHN", GENERATED, [])},
    "tiny_vit": {**EITHER, "vanilla_attention": ("Personalized-T", {}, []), "fedtp": ("FedTP", GENERATED, [])},
}
METHODS: dict[str, dict[str, Any]] = {}
# Ours → its, of parts of the models, and of what its hypernetwork for the ConvNet generates.
PARTS = {
    "convnet": {"head.": "fc3."},
    "tiny_vit": {
        "patch_embed.": "to_patch_embedding.1.",
        "pos_embed": "pos_embedding",
        "head.": "mlp_head.1.",
        ".attention_norm.": ".0.norm.",
        ".attention.qkv.": ".0.fn.to_qkv.",
        ".attention.out.": ".0.fn.to_out.0.",
        ".mlp_norm.": ".1.norm.",
        ".mlp.": ".1.fn.net.",
        "blocks.": "transformer.layers.",
    },
}
HEADS = {"conv1": "c1", "conv2": "c2", "fc1": "l1", "fc2": "l2", "fc3": "l3", ".weight": "_weights", ".bias": "_bias"}
_folder = Path()


class Rows(list[int]):
    """Stands in for the numbers of a client's samples, and says whose they are."""

    client: int

    @classmethod
    def of(cls, client: int, rows: Any) -> Self:
        made = cls(rows.tolist())
        made.client = client
        return made


def load(folder: Path, backbone: str) -> types.ModuleType:
    """Return this module, working with that copy."""
    global _folder
    needed = ("main.py", "methods/method.py", "models/cnn.py")
    if not all((folder / name).is_file() for name in needed):
        raise UserError(f"{folder}: no {', '.join(needed)} in it; it is no copy of FedTP's code")
    if importlib.util.find_spec("einops") is None:
        raise UserError("FedTP's code needs einops; install it beside this project")
    _folder = folder.resolve()
    sys.path.insert(0, str(_folder))
    # Curves for a browser, and neighbours: imported, and not used by what is compared here.
    for absent, name in (("torch.utils.tensorboard", "SummaryWriter"), ("faiss", "IndexFlatL2")):
        sys.modules[absent] = types.ModuleType(absent)
        vars(sys.modules[absent])[name] = None
    METHODS.update({name: options for name, (_, options, _) in KNOWN[backbone].items()})
    return sys.modules[__name__]


def run(method: str, options: Mapping[str, Any], setting: Setting) -> Iterator[After]:
    """Run its program; the rounds are given when it has ended."""
    if setting.data.shape != (3, 32, 32):
        raise UserError("FedTP's networks take images of 3×32×32; take --dataset cifar10, or --generated with it")
    name, _, more = KNOWN[setting.backbone.name][method]
    if "server_lr" in options and setting.training.lr != LR:
        raise UserError(f"{method}: FedTP's hypernetworks learn at the rate of its clients; take --lr {LR}")
    utils, round_, clients = importlib.import_module("utils"), 0, range(setting.clients)
    measured: list[Sequence[int] | None] = [] if method == "local" else [None]
    models: list[Tensors] = []

    def shuffle(numbers: np.ndarray) -> None:
        nonlocal round_
        round_ += 1
        cohort = setting.cohort(round_)
        numbers[:] = cohort + sorted(set(numbers.tolist()) - set(cohort))

    def loaders(_: str, __: str, ___: int, ____: int, rows: Rows, *_____: Any, **______: Any) -> tuple[Any, ...]:
        now = round_ or len(measured) + 1  # local training does not shuffle, and is measured in every round
        return Epochs(setting.epochs(now, rows.client)), Epochs([[setting.test(rows.client)]]), None, None

    def split(*_: Any, **__: Any) -> tuple[Any, ...]:
        both = (setting.data.train, setting.data.test)
        sides = [{client: Rows.of(client, side[client]) for client in clients} for side in both]
        counts = {client: dict(enumerate(setting.train(client)[1].bincount().tolist())) for client in clients}
        return None, setting.data.labels, None, None, *sides, counts, {}

    def watched(measure: Callable[..., Any], models_of: Callable[..., Sequence[Tensors]]) -> Callable[..., Any]:
        def measuring(*given: Any, **named: Any) -> Any:
            found = measure(*given, **named)
            measured.append([found[4][client]["correct"] for client in clients])
            if len(measured) == setting.training.rounds:
                names = {_translated(name, setting): name for name in setting.initial.state_dict()}
                with torch.no_grad():
                    for own in models_of(setting.clients, *given):
                        models.append({names[name]: entry.clone() for name, entry in own.items()})
            return found

        return measuring

    replaced = {name: watched(getattr(utils, name), models_of) for name, models_of in MEASURES.items()}
    replaced |= {"partition_data": split, "get_divided_dataloader": loaders}
    replaced["get_dataloader"] = lambda *_: ([], [], [], [])
    with contextlib.ExitStack() as stack:
        for one, replacement in replaced.items():
            stack.enter_context(patch.object(utils, one, replacement))
        for kind, entries, fixed in _beginnings(method, options, setting):
            stack.enter_context(patch.object(kind, "__init__", _beginning(kind.__init__, entries, fixed)))
        if method == "fedrod":
            stack.enter_context(patch.object(nn.Linear, "__init__", _second_classifier(setting)))
        stack.enter_context(patch.object(np.random, "shuffle", shuffle))
        stack.enter_context(patch.object(sys, "argv", ["main.py", *_words(name, setting), *more]))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # what it is warned of is its own affair
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        sys.modules.pop("methods.method", None)  # it takes what it needs from `utils` by name
        runpy.run_path(str(_folder / "main.py"), run_name="__main__")
    for correct in measured:
        yield After(correct, lambda: models)


def _words(name: str, setting: Setting) -> list[str]:
    """Return its arguments."""
    training, model = setting.training, {"convnet": "cnn", "tiny_vit": "vit"}[setting.backbone.name]
    words: dict[str, object] = {"alg": name, "model": model, "dataset": "cifar10", "n_parties": setting.clients}
    words |= {"comm_round": training.rounds, "epochs": training.local_epochs, "lr": training.lr, "reg": 0}
    words |= {"rho": training.momentum, "sample": len(setting.cohort(1)) / setting.clients, "eval_step": 1}
    words["test_round"] = training.rounds if name == "local_training" else 2
    if model == "vit":
        words["depth"] = vars(setting.backbone)["depth"]
    return [word for key, value in words.items() for word in (f"--{key}", str(value))]


def _with_own(personal: Sequence[Tensors], shared: nn.Module) -> list[Tensors]:
    return [{**shared.state_dict(), **own} for own in personal]


def _generated(hyper: nn.Module, clients: int, *more: bool) -> list[Tensors]:
    return [hyper(torch.tensor([client]), *more) for client in range(clients)]


# What measures its clients → the models that it does so with, given what it is given.
MEASURES: dict[str, Callable[..., Sequence[Tensors]]] = {
    "compute_accuracy_per_client_simple": lambda clients, shared, *_: [shared.state_dict()] * clients,
    "compute_accuracy_personally": lambda clients, personal, shared, *_: _with_own(personal, shared),
    "compute_accuracy_local": lambda clients, nets, *_: [nets[client].state_dict() for client in range(clients)],
    "compute_accuracy_perRod": lambda clients, heads, shared, *_: [shared.state_dict()] * clients,
    "compute_accuracy_percnn_client": lambda n, hyper, shared, *_: _with_own(_generated(hyper, n), shared),
    "compute_accuracy_per_client": lambda n, hyper, nets, shared, *_: _with_own(_generated(hyper, n, True), shared),
}


def _beginnings(
    method: str, options: Mapping[str, Any], setting: Setting
) -> Iterator[tuple[type[nn.Module], Tensors, dict[str, Any]]]:
    """Yield classes of its, what their modules begin with, and arguments that they get in place of its own."""
    cnn, vit = importlib.import_module("models.cnn"), importlib.import_module("models.vit")
    small = setting.backbone.name == "convnet"
    initial = {_translated(name, setting): entry for name, entry in setting.model().state_dict().items()}
    yield cnn.CNNTarget if small else vit.ViT, initial, {} if small else {"dropout": 0.0, "emb_dropout": 0.0}
    if "server_lr" in options:
        hyper = cnn.CNNHyper if small else importlib.import_module("models.Hypernetworks").ViTHyper
        yield hyper, _hypernetwork(method, options, setting), {}


def _hypernetwork(method: str, options: Mapping[str, Any], setting: Setting) -> Tensors:
    """Return what our hypernetwork begins with, under its names."""
    made: Any = OURS.create(method, **options)
    generated = made.roles(setting.groups).generated
    state = setting.model().state_dict()
    shapes = {name: tuple(entry.shape) for name, entry in state.items() if name in generated}
    begun = HyperNetwork(setting.clients, made.embedding, made.hidden, made.layers, shapes).init(setting.seed)
    named = {"embeddings.weight": begun.pop("embedding")}
    for name, entry in begun.items():
        path, _, kind = name.rpartition(".")
        part, _, target = path.partition(".")
        if part == "mlp":  # with a ReLU between two layers
            path = f"mlp.{2 * int(target)}"
        elif setting.backbone.name == "convnet":
            path = _translated(target, setting)
            for ours, theirs in HEADS.items():
                path = path.replace(ours, theirs)
        else:
            path = f"to_qkv_value_list.{target.split('.')[1]}"
        named[f"{path}.{kind}"] = entry
    return named


def _beginning(make: Callable[..., None], entries: Tensors, fixed: dict[str, Any]) -> Callable[..., None]:
    """Return what makes a module of its, and then gives it the initial weights."""

    def create(model: nn.Module, *given: Any, **named: Any) -> None:
        make(model, *given, **{**named, **fixed})
        model.load_state_dict(entries)

    return create


def _second_classifier(setting: Setting) -> Callable[..., None]:
    """Return what makes a linear layer and copies our classifier to one of its size, as ours begin."""
    make, entries = nn.Linear.__init__, setting.model().get_submodule(setting.head).state_dict()

    def create(layer: nn.Linear, *given: Any, **named: Any) -> None:
        make(layer, *given, **named)
        if layer.weight.shape == entries["weight"].shape:
            layer.load_state_dict(entries)

    return create


def _translated(name: str, setting: Setting) -> str:
    """Return our name of an entry as its own."""
    if setting.backbone.name == "tiny_vit" and name.startswith("norm."):
        return name.replace("norm.", "mlp_head.0.")
    for ours, theirs in PARTS[setting.backbone.name].items():
        name = name.replace(ours, theirs)
    return name
