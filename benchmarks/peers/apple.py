"""Contestant: Apple's pfl with PyTorch, in one process or, started by ``torch.distributed.run``, in several."""

from __future__ import annotations

import logging
import time
from importlib.metadata import version

import numpy as np
import torch
from common import BATCH, RATE, TEST_BATCH, WORKLOADS, Data, arguments, report
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
from torch import Tensor, nn
from torch.nn import functional as F


class Measured(nn.Module):
    """A model with the loss and the metrics that pfl asks for."""

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


class Clock(TrainingProcessCallback[PyTorchModel]):
    """Notes when a round comes by, and the accuracy if it is known by then."""

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


def main() -> None:
    given = arguments()
    workload, data = WORKLOADS[given.workload], Data(given.data)
    logging.disable(logging.WARNING)
    # With several processes all must draw the same.
    np.random.seed(given.seed)
    torch.manual_seed(given.seed)
    module = Measured(workload.model())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clients = FederatedDataset(
        lambda client: Dataset(data.client(client), user_id=str(client)),
        get_user_sampler("minimize_reuse", np.random.permutation(workload.clients).tolist()),
    )
    trained, evaluated = Clock(), Clock()
    # Metrics of the clients' own data, which nobody asked for, are computed in the first round only.
    rounds = {"central_num_iterations": given.rounds, "evaluation_frequency": given.rounds}
    local = {"local_num_epochs": workload.epochs, "local_learning_rate": RATE}
    testing = NNEvalHyperParams(local_batch_size=TEST_BATCH)
    FederatedAveraging().run(
        NNAlgorithmParams(**rounds, train_cohort_size=workload.cohort, val_cohort_size=0),
        SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, **local),
        testing,
        callbacks=[trained, CentralEvaluationCallback(Dataset(data.pooled()), testing), evaluated],
        send_metrics_to_platform=False,
    )
    if get_ops().distributed.global_rank == 0:
        times = np.subtract(trained.marks[1:], evaluated.marks[:-1])
        # There is no evaluation after the first round.
        evaluations = np.subtract(evaluated.marks[1:], trained.marks[1:])
        report(f"pfl {version('pfl')}", times.tolist(), evaluations.tolist(), evaluated.accuracy)


if __name__ == "__main__":
    main()
