"""A global model from which one step on a client's own samples leads far."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pflcore.groups import Tensors, split
from pflcore.method import Batch, ClientView, LocalState, Phase, Steps
from pflcore.methods import METHODS
from pflcore.methods._features import OwnTuning
from pflcore.options import option


@METHODS.register
class PerFedAvg(OwnTuning):
    """FedAvg of a model that is good after one gradient step: MAML across clients, to first order.

    On the first half of a batch w' = w − α · gradient(w); the gradient at w' on the second half is then that of the
    step of w, by the run's SGD. The whole model w is averaged. Before each measurement a client takes one step of α on
    one batch of its own training samples, which is not kept. The reported loss is that of w'.
    """

    citation = "Fallah, Mokhtari and Ozdaglar, Per-FedAvg, NeurIPS 2020, algorithm 1"
    plain_sgd = True

    alpha: float | None = option(None, gt=0, help="Size α of the step within and before a measurement; null: the lr.")

    def tuning(self) -> Phase:
        return Phase(Steps(), count=1, lr=self.alpha)

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        model = state["model"]
        w, rest = split(model, local.parameters)

        def loss_on(half: Batch) -> Callable[[Tensors], Tensor]:
            return lambda params: self.loss(local, {**params, **rest}, half)

        first, second = split_batch(batch, 2 if any(name.endswith("running_mean") for name in rest) else 1)
        grads, _ = local.gradient(loss_on(first), w)
        size = local.lr if self.alpha is None else self.alpha
        adapted = {name: tensor - size * grads[name] for name, tensor in w.items()}
        grads, loss = local.gradient(loss_on(second), adapted)
        w, opt_state = local.sgd(w, grads, state["opt_state"])
        return {**state, "model": {**model, **w}, "opt_state": opt_state}, loss


def split_batch(batch: Batch, fewest: int = 1) -> tuple[Batch, Batch]:
    """Return both halves of a batch; each is all of it where one would have less than `fewest` samples."""
    size = len(batch.labels) // 2
    if size < fewest:
        return batch, batch
    first, second = (Batch(batch.inputs[part], batch.labels[part]) for part in (slice(size), slice(size, None)))
    return first, second
