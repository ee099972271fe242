"""A run taken up again from the weights that it saved, for the models of its clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.engine.checkpoint import Checkpoint
from pflcore.engine.client_model import ClientModel, client_model, one_thread
from pflcore.engine.precision import use_precision
from pflcore.engine.run_state import RunState
from pflcore.engine.state import compare
from pflcore.errors import UserError
from pflcore.groups import Tensors, add_prefix, strip_prefix
from pflcore.methods import Method
from pflcore.settings import Evaluation, Training

_CLIENT, _SERVER = "client.", "server."


@dataclass(frozen=True)
class Trained:
    """What a run was trained with, and what it left.

    Attributes:
        rounds: How many were trained.
        weights: Its final weights, the file of them, or its last checkpoint. Without the parameters that nobody trains
            these are as the backbone begins.
    """

    data: FederatedData
    backbone: Backbone
    method: Method
    training: Training
    seed: int
    rounds: int
    weights: Path | Tensors | Checkpoint

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
        shared, extra, own = self._read(run, client)
        fixed = {name: shared.pop(name) for name in run.fixed if name in shared}
        server = add_prefix("shared/", shared) | add_prefix("extra/", extra)
        reason = run.server.misfit(server) or (compare(own, run.kept) if own else "")
        if reason or (fixed and fixed.keys() != run.fixed.keys()):
            where = f"{self.weights}: " if isinstance(self.weights, Path) else ""
            raise UserError(f"{where}weights of another run ({reason or 'parameters are missing'})")
        run.fixed |= {name: tensor.to(self.data.device) for name, tensor in fixed.items()}
        run.server.restore(server)
        if own:
            run.personal[client] = own
        run.round = self.rounds

    def _read(self, run: RunState, client: int) -> tuple[Tensors, Tensors, Tensors]:
        """What is shared or fixed, what else the server has, and the client's own; nothing of other clients."""
        if isinstance(self.weights, Checkpoint):
            state = self.weights.tensors
            own = run.personal.entries(strip_prefix("personal/", state), client)
            return strip_prefix("server/shared/", state), strip_prefix("server/extra/", state), own
        mine = f"{_CLIENT}{client}."
        wanted = self._those(self.weights, lambda name: name.startswith(mine) or not name.startswith(_CLIENT))
        shared = {name: tensor for name, tensor in wanted.items() if not name.startswith((mine, _SERVER))}
        return shared, strip_prefix(_SERVER, wanted), strip_prefix(mine, wanted)

    @staticmethod
    def _those(weights: Path | Tensors, wanted: Callable[[str], bool]) -> Tensors:
        """The entries of the weights whose names are wanted."""
        if not isinstance(weights, Path):
            return {name: tensor for name, tensor in weights.items() if wanted(name)}
        try:
            with safe_open(weights, "pt") as file:
                return {name: file.get_tensor(name) for name in filter(wanted, file.keys())}
        except (SafetensorError, OSError) as error:
            raise UserError(f"{weights}: not a readable safetensors file ({error})") from None
