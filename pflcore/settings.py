"""Settings of a run that do not depend on the method: training, and when and how models are measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pflcore.errors import UserError
from pflcore.options import check_options, option

_SCHEDULE, _OPTIMIZER, _SERVER = "schedule", "optimizer", "server_optimizer"
DEPENDENT_SETTINGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gamma": (_SCHEDULE, ("step", "exponential")),
    "milestones": (_SCHEDULE, ("step",)),
    "step_every": (_SCHEDULE, ("step",)),
    "lr_min": (_SCHEDULE, ("cosine", "linear")),
    **dict.fromkeys(("beta1", "beta2", "eps"), (_OPTIMIZER, ("adam", "adamw"))),
    **dict.fromkeys(("server_lr", "server_beta1"), (_SERVER, ("momentum", "adam", "yogi", "adagrad"))),
    "server_beta2": (_SERVER, ("adam", "yogi")),
    "server_tau": (_SERVER, ("adam", "yogi", "adagrad")),
}
"""Settings of training that only have an effect if another setting has one of some values."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Rounds, sampling and optimisers. Defaults are FedTP's (section IV-A, "Implementation Details")."""

    rounds: int = option(1500, ge=1, help="Communication rounds.")
    sample_rate: float = option(
        0.1, gt=0, le=1, help="Share of the clients sampled in each round, rounded down, at least one client."
    )
    local_epochs: int = option(5, ge=1, help="Passes of a sampled client over its training samples per round.")
    local_steps: int | None = option(
        None, ge=1, help="Local steps per round instead of epochs, each on a batch drawn anew from all of the samples."
    )
    batch_size: int = option(64, ge=1, help="Samples per local step; the last batch of an epoch may be smaller.")
    lr: float = option(0.01, gt=0, help="Learning rate of the clients' optimiser.")
    momentum: float = option(0.0, ge=0, lt=1, help="Momentum of the clients' SGD, started anew in each round.")
    weight_decay: float = option(
        0.0, ge=0, help="L2 coefficient of the clients' optimiser; with adamw the decay of weights beside the gradient."
    )
    clip: float | None = option(None, gt=0, help="Norm that a client's gradient is cut down to; null is never.")
    optimizer: str = option(
        "sgd", choices=("sgd", "adam", "adamw"), later=True, help="The clients' optimiser, as PyTorch's of that name."
    )
    nesterov: bool = option(False, later=True, help="Nesterov's form of momentum; needs `momentum`.")
    beta1: float = option(0.9, ge=0, lt=1, later=True, help="Decay of Adam's mean of gradients.")
    beta2: float = option(0.999, ge=0, lt=1, later=True, help="Decay of Adam's mean of squared gradients.")
    eps: float = option(1e-8, gt=0, later=True, help="What Adam adds to the root of the mean of squares.")
    schedule: str = option(
        "constant",
        choices=("constant", "cosine", "step", "exponential", "linear"),
        later=True,
        help="How the learning rate goes on over the rounds; cosine and linear end at `lr_min` after the last.",
    )
    schedule_by: str = option(
        "round", choices=("round", "step"), later=True, help="Whether it changes between rounds or with local steps."
    )
    warmup: int = option(0, ge=0, later=True, help="Rounds before, in which the learning rate grows linearly.")
    gamma: float | None = option(
        None, gt=0, le=1, later=True, help="What step multiplies by at each drop, and exponential after each round."
    )
    milestones: tuple[int, ...] = option((), ge=1, later=True, help="Rounds after the warm-up after which step drops.")
    step_every: int | None = option(None, ge=1, later=True, help="Rounds between two drops of step, instead.")
    lr_min: float = option(0.0, ge=0, later=True, help="Where cosine and linear end.")
    class_weights: str = option(
        "none",
        choices=("none", "balanced"),
        later=True,
        help="Weights of classes in the clients' cross-entropy; balanced: by how rare each is with the client.",
    )
    augment_crop: int = option(
        0, ge=0, later=True, help="Pixels of a black border from within which training images are cut anew at each use."
    )
    augment_flip: float = option(
        0.0, ge=0, le=1, later=True, help="Probability of mirroring a training image left to right at each use."
    )
    augment_rotation: float = option(
        0.0, ge=0, le=180, later=True, help="Degrees by which training images are turned at most, at each use."
    )
    server_optimizer: str = option(
        "none",
        choices=("none", "momentum", "adam", "yogi", "adagrad"),
        later=True,
        help="The server's step on shared parameters: FedAvgM, FedAdam, FedYogi, FedAdagrad; none: the method's alone.",
    )
    server_lr: float | None = option(None, gt=0, later=True, help="Its learning rate; null: 1 for momentum, else 0.01.")
    server_beta1: float = option(0.9, ge=0, lt=1, later=True, help="Decay of its mean of updates, or its momentum.")
    server_beta2: float = option(0.99, ge=0, lt=1, later=True, help="Decay of its mean of squares, for adam and yogi.")
    server_tau: float = option(1e-3, gt=0, later=True, help="What it adds to the root of the mean of squares.")
    precision: str = option(
        "fp32",
        choices=("fp32", "tf32", "bf16"),
        help="Arithmetic of forward and backward passes; parameters and averages are always float32.",
    )
    patience: int | None = option(
        None, ge=1, later=True, help="Measurements without better validation after which training stops; null: never."
    )
    save_weights: bool = option(False, help="Keep the final weights, personal parts included, as safetensors.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.nesterov and not self.momentum:
            raise UserError("training.nesterov is a form of momentum; set training.momentum above 0")
        if self.momentum and self.optimizer != "sgd":
            raise UserError(f"training.momentum is SGD's; with optimizer: {self.optimizer} set training.beta1 instead")
        if self.schedule in ("step", "exponential") and self.gamma is None:
            raise UserError(f"training.schedule: {self.schedule} needs training.gamma, what it multiplies by")
        if self.schedule == "step" and bool(self.milestones) == bool(self.step_every):
            raise UserError("training.schedule: step needs either training.milestones or training.step_every")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise UserError(f"training.milestones = {list(self.milestones)} must ascend")
        for name, (other, values) in DEPENDENT_SETTINGS.items():
            if getattr(self, name) != getattr(type(self), name) and getattr(self, other) not in values:
                without = f"training.{name} has no effect with {other}: {getattr(self, other)}"
                raise UserError(f"{without}; set training.{other}: {' or '.join(values)}, or leave {name} out")
        if self.schedule_by == "step" and not self.scheduled:
            raise UserError("training.schedule_by has no effect without a training.schedule or training.warmup")

    @property
    def augments(self) -> bool:
        """Whether training images are changed at random."""
        return bool(self.augment_crop or self.augment_flip or self.augment_rotation)

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate varies."""
        return self.schedule != "constant" or self.warmup > 0

    @property
    def counts_rounds(self) -> bool:
        """Whether the learning rate depends on the number of rounds, so that a longer run trains differently."""
        return self.schedule in ("cosine", "linear")

    @property
    def beyond_sgd(self) -> str:
        """A setting because of which local steps are not PyTorch's SGD with one learning rate per round; "" if none."""
        if self.optimizer != "sgd":
            return f"optimizer: {self.optimizer}"
        if self.nesterov:
            return "nesterov: true"
        return "schedule_by: step" if self.scheduled and self.schedule_by == "step" else ""

    def cohort_size(self, clients: int) -> int:
        """Return the number of clients sampled per round, without errors of binary fractions (0.29 of 100 is 29)."""
        return max(1, int(clients * self.sample_rate + 1e-9))


class View(NamedTuple):
    """Which model is measured, when, and on whose test samples; the default is the usual measurement."""

    model: str = "personal"
    moment: str = "after_aggregation"
    on: str = "own"

    @property
    def words(self) -> str:
        """The values that differ from the default: ``global all``."""
        return " ".join(value for value, usual in zip(self, USUAL, strict=True) if value != usual)


USUAL = View()
VIEWS = {"models": ("personal", "global"), "moments": ("after_aggregation", "after_training"), "on": ("own", "all")}
"""The values that the settings of :class:`Evaluation` with these names can list; the first is always measured."""
METRICS = {
    "balanced_accuracy": "balanced accuracy (%)",
    "macro_f1": "macro F1 (%)",
    "auc": "AUC (%)",
    "ece": "ECE (%)",
    "nll": "NLL (nats)",
}
"""The metrics beside accuracy (:mod:`pflcore.metrics`), with their headings in tables."""
LOWER = ("ece", "nll")
"""The metrics for which lower is better."""


def _views(name: str, help: str) -> Any:
    return option(VIEWS[name][:1], choices=VIEWS[name], later=True, help=help)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When the personalised models of all clients are measured, and which further models, samples and metrics."""

    every: int = option(5, ge=1, help="Within the window, measure every that many rounds, counted back from the last.")
    window: int = option(200, ge=0, help="The last rounds that a `last_rounds` figure is taken over; 0: the last.")
    curve_every: int = option(50, ge=0, help="Also measure every that many rounds, for convergence curves; 0 is never.")
    metrics: tuple[str, ...] = option((), choices=tuple(METRICS), later=True, help="What beside accuracy.")
    models: tuple[str, ...] = _views("models", "Whose models: those of clients, and that of the server.")
    moments: tuple[str, ...] = _views("moments", "When: after a round, and its participants before aggregation.")
    on: tuple[str, ...] = _views("on", "On whose test samples: the client's own, and those of all clients.")

    def __post_init__(self) -> None:
        check_options(self)
        for name, values in VIEWS.items():
            if getattr(self, name) not in (values[:1], values):
                raise UserError(f"evaluation.{name} must be [{values[0]}] or [{', '.join(values)}]")
        for name in self.metrics:
            if self.metrics.count(name) > 1:
                raise UserError(f"evaluation.metrics has {name} twice")

    def views(self, *, has_global: bool = True) -> list[View]:
        """Return the measured views in the order of storage; `has_global`: whether the method has a global model."""
        kinds = [View(model) for model in self.models if has_global or model == "personal"]
        kinds += [View(moment=moment) for moment in self.moments[1:]]
        return [kind._replace(on=on) for kind in kinds for on in self.on]

    def in_window(self, round_: int, rounds: int) -> bool:
        """Return whether `last_rounds` includes a round: 1300, 1305, …, 1500 for FedTP's 41 measurements."""
        return round_ >= rounds - self.window and (rounds - round_) % self.every == 0

    def is_due(self, round_: int, rounds: int) -> bool:
        """Return whether models are measured after this round."""
        return self.in_window(round_, rounds) or (self.curve_every > 0 and round_ % self.curve_every == 0)

    def due(self, rounds: int) -> list[int]:
        """Return the rounds of a run after which models are measured, in ascending order."""
        return [round_ for round_ in range(1, rounds + 1) if self.is_due(round_, rounds)]


def metrics_error(evaluation: Evaluation, *, text: bool, boxes: bool) -> str:
    """Return the reason why the metrics cannot be measured for this kind of data; "" if they can."""
    refused = [name for name in evaluation.metrics if boxes or (text and name != "nll")]
    if not refused:
        return ""
    reason = "detectors are measured by their average precision" if boxes else "of texts there is nll alone"
    return f"{refused[0]} is of one class per image; {reason}"


def patience_error(training: Training, evaluation: Evaluation, validation: bool) -> str:
    """Return the reason why a run with `patience` cannot be stopped early; "" if it can, or has no `patience`.
    `validation` says whether the partition holds samples back."""
    if training.patience is None:
        return ""
    if not validation:
        return "needs validation samples; set the partition's validation_share"
    if evaluation.window:
        return f"needs evaluation.window: 0, not {evaluation.window}: rounds before the last are not known beforehand"
    return "" if evaluation.curve_every else "needs evaluation.curve_every: measurements to go by, every so many rounds"
