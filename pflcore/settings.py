"""Settings of a run that belong to no single method: how training is scheduled and when models are measured."""

from __future__ import annotations

from dataclasses import dataclass

from pflcore.options import check_options, option


@dataclass(frozen=True, kw_only=True)
class Training:
    """Rounds, sampling and the clients' SGD. Defaults are FedTP's (section IV-A, "Implementation Details")."""

    rounds: int = option(1500, ge=1, help="Communication rounds.")
    sample_rate: float = option(
        0.1, gt=0, le=1, help="Share of the clients sampled in each round, rounded down, at least one client."
    )
    local_epochs: int = option(5, ge=1, help="Passes of a sampled client over its training samples per round.")
    local_steps: int | None = option(
        None, ge=1, help="Local steps per round instead of epochs, each on a batch drawn anew from all of the samples."
    )
    batch_size: int = option(64, ge=1, help="Samples per local step; the last batch of an epoch may be smaller.")
    lr: float = option(0.01, gt=0, help="Learning rate of the clients' SGD.")
    momentum: float = option(0.0, ge=0, lt=1, help="Momentum of the clients' SGD, started anew in each round.")
    weight_decay: float = option(0.0, ge=0, help="L2 coefficient of the clients' SGD.")
    clip: float | None = option(None, gt=0, help="Norm that a client's gradient is cut down to; null is never.")
    precision: str = option(
        "fp32",
        choices=("fp32", "tf32", "bf16"),
        help="Arithmetic of forward and backward passes; parameters and averages are always float32.",
    )
    patience: int | None = option(
        None,
        ge=1,
        later=True,
        help="Measurements without a better pooled accuracy on validation samples after which training stops; null "
        "trains all rounds.",
    )
    save_weights: bool = option(
        False, measuring=True, help="Keep the final weights, personal parts included, as safetensors."
    )

    def __post_init__(self) -> None:
        check_options(self)

    def cohort_size(self, clients: int) -> int:
        """Clients sampled per round; exact decimal rates are not lost to binary fractions (0.29 of 100 is 29)."""
        return max(1, int(clients * self.sample_rate + 1e-9))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When the personalised models of all clients are measured."""

    every: int = option(
        5, ge=1, measuring=True, help="Within the window, measure every that many rounds, counted back from the last."
    )
    window: int = option(
        200, ge=0, measuring=True, help="The last rounds that a `last_rounds` figure is taken over; 0: the last."
    )
    curve_every: int = option(
        50, ge=0, measuring=True, help="Also measure every that many rounds, for convergence curves; 0 is never."
    )

    def __post_init__(self) -> None:
        check_options(self)

    def in_window(self, round_: int, rounds: int) -> bool:
        """Whether a `last_rounds` figure includes this round: 1300, 1305, …, 1500 for FedTP's 41 measurements."""
        return round_ >= rounds - self.window and (rounds - round_) % self.every == 0

    def is_due(self, round_: int, rounds: int) -> bool:
        """Whether models are measured after this round."""
        return self.in_window(round_, rounds) or (self.curve_every > 0 and round_ % self.curve_every == 0)

    def due(self, rounds: int) -> list[int]:
        """The rounds of a run after which models are measured, in ascending order."""
        return [round_ for round_ in range(1, rounds + 1) if self.is_due(round_, rounds)]


def impatience(training: Training, evaluation: Evaluation, validation: bool) -> str:
    """Why a run cannot be stopped early as its settings ask for; "" when it can, or does not ask.

    A window would count back from a last round that nobody knows beforehand, over rounds that were not measured.

    Args:
        validation: Whether its partition holds samples back for validation.
    """
    if training.patience is None:
        return ""
    if not validation:
        return "needs validation samples; set the partition's validation_share"
    if evaluation.window:
        return f"needs evaluation.window: 0, not {evaluation.window}: rounds before the last are not known beforehand"
    return "" if evaluation.curve_every else "needs evaluation.curve_every: measurements to go by, every so many rounds"
