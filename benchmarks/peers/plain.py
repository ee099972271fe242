"""Contestant: a plain loop over the sampled clients, with PyTorch's default number of threads."""

from __future__ import annotations

import copy
import time

import torch
from common import WORKLOADS, Data, accuracy, arguments, fit, loader, report


def main() -> None:
    given = arguments()
    workload, data = WORKLOADS[given.workload], Data(given.data)
    torch.manual_seed(given.seed)
    model, test = workload.model(), loader(data.pooled(), training=False)
    rounds, evaluations, share = [], [], 0.0
    for _ in range(given.rounds):
        started = time.perf_counter()
        states, sizes = [], []
        for client in torch.randperm(workload.clients)[: workload.cohort].tolist():
            local, tensors = copy.deepcopy(model), data.client(client)
            fit(local, loader(tensors, training=True), workload.epochs)
            states.append(local.state_dict())
            sizes.append(len(tensors[1]))
        weights = torch.tensor(sizes) / sum(sizes)
        both = list(zip(weights, states, strict=True))
        model.load_state_dict({name: sum(weight * state[name] for weight, state in both) for name in states[0]})
        trained = time.perf_counter()
        share = accuracy(model, test)
        rounds.append(trained - started)
        evaluations.append(time.perf_counter() - trained)
    report(f"torch {torch.__version__}", rounds[1:], evaluations[1:], share)


if __name__ == "__main__":
    main()
