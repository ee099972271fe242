"""Contestant: Flower's simulation runtime on Ray, one core and so one thread per client, clients in parallel."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

# These are read when the packages are imported.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")

import torch
from common import WORKLOADS, Data, accuracy, arguments, fit, loader, report
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def train(message: Message, context: Context) -> Message:
    """What the client does with the global model. It runs in a process of Ray's."""
    config = message.content["config"]
    workload = WORKLOADS[str(config["workload"])]
    model = workload.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    tensors = Data(Path(str(config["data"]))).client(int(context.node_config["partition-id"]))
    fit(model, loader(tensors, training=True), workload.epochs)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(tensors[1])})}
    return Message(content=RecordDict(content), reply_to=message)


def main() -> None:
    given = arguments()
    workload = WORKLOADS[given.workload]
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.manual_seed(given.seed)
    test = loader(Data(given.data).pooled(), training=False)
    model = workload.model()
    trained, evaluated, shares = [], [], []

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        """The server's evaluation, before the first round and after each; its marks also delimit the rounds."""
        trained.append(time.perf_counter())
        model.load_state_dict(arrays.to_torch_state_dict())
        shares.append(accuracy(model, test))
        evaluated.append(time.perf_counter())
        return MetricRecord({"accuracy": shares[-1]})

    client, server = ClientApp(), ServerApp()
    client.train()(train)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        # The minima make the first round wait until all clients have registered.
        strategy = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
        )
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=given.rounds,
            train_config=ConfigRecord({"workload": given.workload, "data": str(given.data)}),
            evaluate_fn=evaluate,
        )

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        os.environ["FLWR_HOME"] = folder
        run_simulation(
            server,
            client,
            num_supernodes=workload.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False, "logging_level": "ERROR", "_temp_dir": folder},
            },
        )
    rounds = [end - start for start, end in zip(evaluated, trained[1:], strict=False)]
    evaluations = [end - start for start, end in zip(trained, evaluated, strict=True)]
    report(f"flwr {version('flwr')}, ray {version('ray')}", rounds[1:], evaluations[1:], shares[-1])


if __name__ == "__main__":
    main()
