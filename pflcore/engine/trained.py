"""A run taken up again from the weights that it saved, for the models of its clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine.client_model import ClientModel, client_model, one_thread
from pflcore.engine.precision import use_precision
from pflcore.engine.run_state import RunState
from pflcore.errors import UserError
from pflcore.groups import Tensors
from pflcore.method import below, under
from pflcore.methods import Method
from pflcore.settings import Evaluation, Training

_CLIENT, _SERVER = "client.", "server."


@dataclass(frozen=True)
class Trained:
    """What a run was trained with, and what it left.

    Attributes:
        rounds: How many were trained.
        weights: The file of its weights.
    """

    data: FederatedData
    backbone: Backbone
    method: Method
    training: Training
    seed: int
    rounds: int
    weights: Path

    def client(self, client: int) -> ClientModel:
        """A client's model as it was measured after the last round.

        It is tuned first where the method does so, and remembers the client's samples where that is what it predicts
        by. A client that never trained has the entries of its own that all began with, drawn again from the seed.

        Raises:
            UserError: There is no such client, it has no model that gives logits, or the weights are of another run.
        """
        if not 0 <= client < self.data.clients:
            raise UserError(f"there is no client {client}: clients are 0 to {self.data.clients - 1}")
        with torch.random.fork_rng(devices=[]), use_precision(self.training.precision), one_thread(self.data.device):
            run = RunState(self.data, self.backbone, self.method, self.training, Evaluation(), self.seed, None)
            self._restore(run, client)
            return client_model(run.trainer, run.subject(None).measured(client), client)

    def _restore(self, run: RunState, client: int) -> None:
        """Set the run to what it was after its last round, as far as this client needs it."""
        shared, extra, own = self._read(client)
        fixed = {name: shared.pop(name) for name in run.fixed if name in shared}
        server = under("shared/", shared) | under("extra/", extra)
        personal = under(f"{client}/", own)
        reason = run.server.misfit(server) or run.personal.misfit(personal)
        if reason or fixed.keys() != run.fixed.keys():
            raise UserError(f"{self.weights}: weights of another run ({reason or 'parameters are missing'})")
        run.fixed = {name: tensor.to(self.data.device) for name, tensor in fixed.items()}
        run.server.restore(server)
        run.personal.restore(personal)
        run.round = self.rounds

    def _read(self, client: int) -> tuple[Tensors, Tensors, Tensors]:
        """What is shared or fixed, what else the server has, and the client's own; nothing of other clients."""
        mine, shared, rest = f"{_CLIENT}{client}.", Tensors(), Tensors()
        try:
            with safe_open(self.weights, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    if name.startswith((mine, _SERVER)):
                        rest[name] = file.get_tensor(name)
                    elif not name.startswith(_CLIENT):
                        shared[name] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{self.weights}: not a readable safetensors file ({error})") from None
        return shared, below(_SERVER, rest), below(mine, rest)
