"""An adapter to PFLlib (TsingZ0/PFLlib), of which it needs the folder ``system``.

Its servers and clients run as they are. Given to them are: the samples, in place of its files; the batches, in place of
its loaders; who takes part, in place of its draws; and our backbone, cut into base and head. What it measures after a
round is what it would print.
"""

import contextlib
import copy
import importlib
import io
import sys
import types
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oracle.setting import After, Epochs, Labelled, Setting
from torch import nn

from pflcore.errors import UserError
from pflcore.groups import Tensors

# Ours → module and class of theirs, options of ours under which both are alike, and theirs.
KNOWN: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "fedavg": ("serveravg", "FedAvg", {}, {}),
    "fedprox": ("serverprox", "FedProx", {"mu": 0.1}, {"mu": 0.1}),
    "fedper": ("serverper", "FedPer", {}, {}),
    "fedrep": ("serverrep", "FedRep", {"head_epochs": 1, "averaging": "samples"}, {"plocal_epochs": 1}),
    "lg_fedavg": ("serverlg", "LG_FedAvg", {"averaging": "samples"}, {}),
    "fedrod": ("serverrod", "FedROD", {}, {}),
    "ditto": ("serverditto", "Ditto", {"lam": 0.5}, {"mu": 0.5}),
    "moon": ("servermoon", "MOON", {"mu": 1.0, "tau": 0.5}, {"mu": 1.0, "tau": 0.5}),
    "fedproto": ("serverproto", "FedProto", {"lam": 1.0}, {"lamda": 1.0}),
    "local": ("serverlocal", "Local", {"schedule": "when_sampled"}, {}),
    "scaffold": ("serverscaffold", "SCAFFOLD", {}, {"server_learning_rate": 1.0}),
}
METHODS: dict[str, dict[str, Any]] = {name: options for name, (_, _, options, _) in KNOWN.items()}
OPTIONS: dict[str, Any] = {
    "algorithm": "", "auto_break": False, "batch_num_per_client": 0, "client_drop_rate": 0.0, "dataset": "",
    "device": "cpu", "dlg_eval": False, "dlg_gap": 1, "eval_gap": 1, "few_shot": 0, "fine_tuning_epoch_new": 0,
    "goal": "", "learning_rate_decay": False, "learning_rate_decay_gamma": 1.0,
    "num_new_clients": 0, "random_join_ratio": False, "save_folder_name": "items", "send_slow_rate": 0.0,
    "time_select": False, "time_threthold": 1e9, "top_cnt": 1, "train_slow_rate": 0.0,
}  # fmt: skip


def load(folder: Path) -> types.ModuleType:
    """Return this module, working with that copy."""
    found = next((path for path in (folder, folder / "system") if (path / "flcore").is_dir()), None)
    if found is None:
        raise UserError(f"{folder}: no folder flcore in it or in its folder system; it is no copy of PFLlib")
    sys.path.insert(0, str(found))
    # What it needs for nothing that is compared here: attacks by gradients, which ask for packages of their own.
    sys.modules["utils.dlg"] = types.ModuleType("utils.dlg")
    vars(sys.modules["utils.dlg"])["DLG"] = None
    return sys.modules[__name__]


def run(method: str, options: Mapping[str, Any], setting: Setting) -> Iterator[After]:
    """Train, with its own loop, a round more than is asked for: it measures before it trains."""
    module, name, _, theirs = KNOWN[method]
    server_module = importlib.import_module(f"flcore.servers.{module}")
    base_module = importlib.import_module("flcore.servers.serverbase")
    client_module = importlib.import_module("flcore.clients.clientbase")
    split = importlib.import_module("flcore.trainmodel.models").BaseHeadSplit
    personal = method == "ditto"  # measured by `evaluate_personalized`, with a model that is called `model_per`
    found: list[list[int]] = []  # before the first round, and after each
    models: list[Tensors] = []

    def samples(_: str, client: int, is_train: bool = True, few_shot: int = 0) -> list[Labelled]:
        return list(zip(*(setting.train if is_train else setting.test)(client), strict=True))

    def batches(client: Any, batch_size: int | None = None) -> Epochs:
        return Epochs(setting.epochs(max(len(found), 1), client.id))

    client_module.Client.load_train_data = batches
    base_module.read_client_data = client_module.read_client_data = samples
    base, training = setting.model(), setting.training
    head = copy.deepcopy(base.get_submodule(setting.head))
    base.set_submodule(setting.head, nn.Identity())
    given = {
        "model": split(base, head),
        "num_classes": setting.data.classes,
        "num_clients": setting.clients,
        "join_ratio": len(setting.cohort(1)) / setting.clients,
        "global_rounds": training.rounds,
        "local_epochs": training.local_epochs - theirs.get("plocal_epochs", 0),
        "plocal_epochs": training.local_epochs,
        "batch_size": training.batch_size,
        "local_learning_rate": training.lr,
    }

    def renamed(client: Any) -> Iterator[tuple[str, Any]]:
        """The model that a client is measured with, under our names."""
        for name, entry in (client.model_per if personal else client.model).state_dict().items():
            in_head = name.startswith("head.")
            yield f"{setting.head}{name[4:]}" if in_head else name.removeprefix("base."), entry.clone()

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = getattr(server_module, name)(Namespace(**{**OPTIONS, **given, **theirs}), 0)

        def cohort() -> list[Any]:
            # It asks before it measures, and, where nothing is exchanged, once more thereafter.
            upcoming = max(len(found) + (method != "local"), 1)
            return [server.clients[client] for client in setting.cohort(upcoming)]

        def measured(*_: Any) -> None:
            stats = server.test_metrics_personalized() if personal else server.test_metrics()
            found.append([int(count) for count in stats[2]])
            if len(found) == training.rounds + 1:  # the first was before any training
                models.extend(dict(renamed(client)) for client in server.clients)

        server.select_clients = cohort
        server.evaluate = (lambda *_: None) if personal else measured
        server.evaluate_personalized = measured
        server.save_results = server.save_global_model = lambda: None
        # At its end it prints averages of lists that were not filled.
        with contextlib.suppress(ValueError, ZeroDivisionError, IndexError):
            server.train()
    for correct in found[1:]:
        yield After(correct, lambda: models)
