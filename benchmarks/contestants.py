"""The contestants of peers.py, one command each: the same workloads in our engine, a plain loop, Flower and pfl.

Each contestant imports only its own libraries, as our environment and that of the peers differ.
"""

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import (
    BATCH,
    CLASSES,
    MEAN,
    MODELS,
    RATE,
    STD,
    TEST_BATCH,
    WORKLOADS,
    Data,
    Workload,
    accuracy,
    fit,
    loader,
    plain_round,
)

Times = tuple[str, Iterable[float], Iterable[float], float]
"""Versions, seconds of each round after warm-up and of each evaluation, and the last accuracy (0 to 1)."""


def plain(given: argparse.Namespace, workload: Workload, data: Data) -> Times:
    """Train in a plain loop over the sampled clients, with PyTorch's default number of threads."""
    torch.manual_seed(given.seed)
    model, test = MODELS[workload.backbone](), loader(data.tensors(data.test), training=False)
    rounds, evaluations, share = [], [], 0.0
    for _ in range(given.rounds):
        started = time.perf_counter()
        cohort = torch.randperm(workload.clients)[: workload.cohort].tolist()
        held = (loader(data.tensors(data.train[client]), training=True) for client in cohort)
        plain_round(model, held, workload.epochs)
        trained = time.perf_counter()
        share = accuracy(model, test)
        rounds.append(trained - started)
        evaluations.append(time.perf_counter() - trained)
    return f"torch {torch.__version__}", rounds[1:], evaluations[1:], share


def ours(given: argparse.Namespace, workload: Workload, arrays: Data) -> Times:
    """Train with this repository's engine at its default settings, in the repository's own environment."""
    from pflcore.backbones import BACKBONES
    from pflcore.data.federation import FederatedData
    from pflcore.engine import Progress, train
    from pflcore.methods import METHODS
    from pflcore.settings import Evaluation, Training

    def run(data: FederatedData, training: Training, window: int) -> tuple[list[float], float]:
        """Return the seconds of each round and the last accuracy; the last `window` rounds include an evaluation."""
        marks, shares = [time.perf_counter()], [0.0]

        def note(progress: Progress) -> None:
            marks.append(time.perf_counter())
            shares.append(progress.accuracy or 0.0)

        train(
            data=data,
            backbone=BACKBONES.create(workload.backbone),
            method=METHODS.create("fedavg"),
            training=training,
            evaluation=Evaluation(every=1, window=window, curve_every=0),
            seed=given.seed,
            on_round=note,
        )
        return np.diff(marks).tolist(), shares[-1]

    tests, cpu = np.array_split(arrays.test, workload.clients), torch.device("cpu")
    held = (arrays.images, arrays.labels, list(arrays.train), tests)
    data = FederatedData.from_arrays(*held, (MEAN,) * 3, (STD,) * 3, CLASSES, cpu)
    rate = workload.cohort / workload.clients
    training = Training(rounds=given.rounds, sample_rate=rate, local_epochs=workload.epochs)
    rounds, share = run(data, training, 0)
    # The engine evaluates within a round, so evaluation is timed in rounds that train one client on one sample.
    idle = replace(data, train=[rows[:1] for rows in data.train])
    measured, _ = run(idle, replace(training, sample_rate=1 / workload.clients, local_epochs=1), given.rounds)
    # The last round of training ends with the only evaluation.
    return f"{version('pfl-pipeline')}, torch {torch.__version__}", rounds[1:-1], measured[1:], share


def flower(given: argparse.Namespace, workload: Workload, data: Data) -> Times:
    """Train with Flower's simulation on Ray: clients in parallel, each on one core with one thread."""
    # The packages read these when they are imported.
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.manual_seed(given.seed)
    test, model = loader(data.tensors(data.test), training=False), MODELS[workload.backbone]()
    trained, evaluated, shares = [], [], []
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        """Train the global model in a process of Ray."""
        config = message.content["config"]
        workload, data = WORKLOADS[str(config["workload"])], Data(Path(str(config["data"])))
        model = MODELS[workload.backbone]()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        tensors = data.tensors(data.train[int(context.node_config["partition-id"])])
        fit(model, loader(tensors, training=True), workload.epochs)
        metrics = MetricRecord({"num-examples": len(tensors[1])})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        """Evaluate on the server, before the first round and after each one; the times also delimit the rounds."""
        trained.append(time.perf_counter())
        model.load_state_dict(arrays.to_torch_state_dict())
        shares.append(accuracy(model, test))
        evaluated.append(time.perf_counter())
        return MetricRecord({"accuracy": shares[-1]})

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        # The minima make the first round wait until all clients have registered.
        least = {"min_train_nodes": workload.cohort, "min_available_nodes": workload.clients}
        strategy = FedAvg(fraction_train=workload.cohort / workload.clients, fraction_evaluate=0, **least)
        config = ConfigRecord({"workload": given.workload, "data": str(given.data)})
        how = {"num_rounds": given.rounds, "train_config": config, "evaluate_fn": evaluate}
        strategy.start(grid, ArrayRecord(model.state_dict()), **how)

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        os.environ["FLWR_HOME"] = folder
        init = {"log_to_driver": False, "logging_level": "ERROR", "_temp_dir": folder}
        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": init}
        run_simulation(server, client, num_supernodes=workload.clients, backend_config=backend)
    rounds = [end - start for start, end in zip(evaluated, trained[1:], strict=False)]
    evaluations = [end - start for start, end in zip(trained, evaluated, strict=True)]
    return f"flwr {version('flwr')}, ray {version('ray')}", rounds[1:], evaluations[1:], shares[-1]


def apple(given: argparse.Namespace, workload: Workload, data: Data) -> Times | None:
    """Train with Apple's pfl, in one process or, under ``torch.distributed.run``, in several; rank 0 reports."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops import get_ops
    from pfl.metrics import Metrics, Weighted, get_overall_value
    from pfl.model.pytorch import PyTorchModel

    class Measured(nn.Module):
        """A model with the loss and the metrics that pfl requires."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def loss(self, images: Tensor, labels: Tensor) -> Tensor:
            self.train()
            return F.cross_entropy(self.model(images), labels)

        @torch.no_grad()
        def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
            self.eval()
            return {"accuracy": Weighted(int((self.model(images).argmax(1) == labels).sum()), len(labels))}

    class Clock(TrainingProcessCallback):
        """Callback that records the time in each round, and the accuracy if it has been computed."""

        def __init__(self) -> None:
            self.marks: list[float] = []
            self.accuracy = 0.0

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            self.marks.append(time.perf_counter())
            if "Central val | accuracy" in aggregate_metrics:
                self.accuracy = get_overall_value(aggregate_metrics["Central val | accuracy"])
            return False, Metrics()

    logging.disable(logging.WARNING)
    # All processes must draw the same numbers.
    np.random.seed(given.seed)
    torch.manual_seed(given.seed)
    module = Measured(MODELS[workload.backbone]())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clients = FederatedDataset(
        lambda client: Dataset(data.tensors(data.train[client]), user_id=str(client)),
        get_user_sampler("minimize_reuse", np.random.permutation(workload.clients).tolist()),
    )
    trained, evaluated = Clock(), Clock()
    # Metrics on the clients' own data are not needed; with this frequency pfl computes them in the first round only.
    rounds = {"central_num_iterations": given.rounds, "evaluation_frequency": given.rounds}
    local = {"local_num_epochs": workload.epochs, "local_learning_rate": RATE}
    testing = NNEvalHyperParams(local_batch_size=TEST_BATCH)
    central = CentralEvaluationCallback(Dataset(data.tensors(data.test)), testing)
    FederatedAveraging().run(
        NNAlgorithmParams(**rounds, train_cohort_size=workload.cohort, val_cohort_size=0),
        SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, **local),
        testing,
        callbacks=[trained, central, evaluated],
        send_metrics_to_platform=False,
    )
    if get_ops().distributed.global_rank:
        return None
    times = np.subtract(trained.marks[1:], evaluated.marks[:-1])
    evaluations = np.subtract(evaluated.marks[1:], trained.marks[1:])  # there is none after the first round
    return f"pfl {version('pfl')}", times.tolist(), evaluations.tolist(), evaluated.accuracy


def main() -> None:
    """Run one contestant and print its result as the last line of output."""
    contestants = {"ours": ours, "plain": plain, "flower": flower, "apple": apple}
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant", choices=contestants)
    parser.add_argument("--workload", required=True)
    for name, kind in {"data": Path, "rounds": int, "seed": int}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    given = parser.parse_args()
    if times := contestants[given.contestant](given, WORKLOADS[given.workload], Data(given.data)):
        names = ("version", "rounds", "evaluations", "accuracy")
        print(json.dumps(dict(zip(names, times, strict=True))), flush=True)


if __name__ == "__main__":
    main()
