"""The clients' learning rate as a function of how much of training is done.

Schedules are PyTorch's of the same names, with rounds in the place of epochs: ``CosineAnnealingLR``, ``LinearLR``,
``MultiStepLR`` or ``StepLR``, ``ExponentialLR``, after a ``LinearLR`` while the rate is warmed up.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from pflcore.settings import Training


def learning_rate(training: Training, done: float) -> float:
    """The rate of a step before which `done` rounds were done; with a fraction, within a round.

    In a warm-up of w rounds it grows from lr / (w + 1) by as much in each; the schedule counts from its end.
    """
    if done < training.warmup:
        return training.lr * (done + 1) / (training.warmup + 1)
    since = done - training.warmup
    share = since / max(1, training.rounds - training.warmup)
    above = training.lr - training.lr_min
    match training.schedule:
        case "cosine":
            return training.lr_min + above * (1 + math.cos(math.pi * share)) / 2
        case "linear":
            return training.lr_min + above * (1 - share)
        case "step":
            drops = since // training.step_every if training.step_every else bisect_right(training.milestones, since)
            return training.lr * math.pow(training.gamma or 1.0, drops)
        case "exponential":
            return training.lr * math.pow(training.gamma or 1.0, since)
    return training.lr
