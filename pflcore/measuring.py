"""Options that every method has on how clients are measured: a memory beside the model, and tuning beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from pflcore.errors import UserError
from pflcore.options import option
from pflcore.registry import Entry


@dataclass(frozen=True, kw_only=True)
class Measuring(Entry):
    """What is done with a client before and while it is measured. None of it is kept, and training knows nothing of it.

    With `finetune_epochs` or `finetune_steps`, each client trains a copy of what it is measured with, its own second
    model for Ditto, on its own training samples, by SGD without momentum or decay on the cross-entropy of its
    predictions. A memory (`knn`) is then of the tuned model.
    """

    knn: float = option(
        0.0, ge=0, le=1, help="Weight of nearest neighbours among a client's training samples; 0: the model alone."
    )
    knn_grid: tuple[float, ...] = option(
        (),
        ge=0,
        le=1,
        later=True,
        help="Weights instead of `knn`: each client takes the one that is right most often on its training samples, "
        "each voted on by the others.",
    )
    neighbours: int = option(10, ge=1, help="How many nearest neighbours vote, where `knn` is above 0.")
    finetune_epochs: int = option(
        0, ge=0, later=True, help="Passes over its samples in which a client tunes a copy before it is measured."
    )
    finetune_steps: int | None = option(
        None, ge=1, later=True, help="Steps of the tuning instead, on batches drawn anew; null is whole epochs."
    )
    finetune_lr: float | None = option(
        None, gt=0, later=True, help="Learning rate of the tuning; null is that of the rounds."
    )
    finetune_groups: tuple[str, ...] = option(
        (), later=True, help="The groups of the backbone that are tuned; none named: all of the model."
    )

    @property
    def remembers(self) -> bool:
        """Whether clients predict with their training samples at hand, for neighbours to vote or what a method adds."""
        return self.knn > 0 or bool(self.knn_grid)

    @property
    def tunes(self) -> bool:
        """Whether the options ask for tuning."""
        return self.finetune_epochs > 0 or self.finetune_steps is not None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in () if self.tunes else ("finetune_lr", "finetune_groups"):
            if getattr(self, name):
                raise UserError(f"{self.name}.{name} says nothing without finetune_epochs or finetune_steps")
