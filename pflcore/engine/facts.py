"""What methods are told: of a client's samples and the round, and of the federation."""

from __future__ import annotations

import torch
from torch import Tensor

from pflcore.client_view import CLASS_WEIGHTS, DATA, PROGRESS
from pflcore.engine.trainer import Trainer
from pflcore.groups import Roles, Tensors, add_prefix
from pflcore.seeds import torch_seed
from pflcore.server_view import Federation


class Facts:
    """The facts of a run.

    Attributes:
        federation: What a server is told.
    """

    def __init__(self, trainer: Trainer, roles: Roles, initial: Tensors) -> None:
        self.trainer, self.method, self.training = trainer, trainer.method, trainer.training
        self._counts: dict[int, Tensor] = {}  # they are wanted in every round
        head, data, training = trainer.seen.head, trainer.data, self.training
        self.federation = Federation(
            clients=data.clients,
            seed=trainer.seed,
            momentum=training.momentum,
            classes=data.classes,
            features=initial[head[0]].shape[-1] if head else 0,
            head=head,
            local_epochs=None if training.local_steps else training.local_epochs,
            total_rounds=training.rounds if PROGRESS in self.method.facts else None,
            samples=tuple(map(len, data.train)),
            generated={name: tuple(it.shape) for name, it in initial.items() if name in roles.generated},
            parameters=trainer.parameters,
        )

    def of(self, client: int, round_: int) -> Tensors:
        """What the method wants to know of a client's samples and of a round, under names that begin with ``data/``."""
        made = {
            "class_counts": lambda: self._class_counts(client),
            "epoch_steps": lambda: torch.tensor(self.trainer.local.epoch_steps(client)),
            "steps": lambda: torch.tensor(self.trainer.steps(client)),
            "round": lambda: torch.tensor(round_),
            "draws": lambda: torch.tensor(torch_seed(self.trainer.seed, "draws", round_, client)),
            PROGRESS: lambda: torch.tensor(round_ / self.training.rounds),
        }
        facts = add_prefix(DATA, {name: made[name]() for name in self.method.facts})
        if self.training.class_weights == "balanced":
            facts[CLASS_WEIGHTS] = balanced(self._class_counts(client))
        return {name: tensor.to(self.trainer.data.device) for name, tensor in facts.items()}

    def _class_counts(self, client: int) -> Tensor:
        if client not in self._counts:
            self._counts[client] = self.trainer.data.class_counts(client)
        return self._counts[client]


def balanced(counts: Tensor) -> Tensor:
    """Weights under which all classes that occur count alike, a sample 1 on average: (classes,) of (classes,)."""
    share = counts.sum() / counts.count_nonzero()
    return torch.where(counts > 0, share / counts, 0.0)
