"""The contract of a method: small functions over explicit state, without loops, input or output, or device code.

A method says which groups of the model are personal or generated, what a client minimises, and how the server uses
the updates. The base class is federated averaging of everything that is shared; most methods override one or two of
the functions. Executors in :mod:`pflcore.engine` decide how the functions are run.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pflcore.client_view import COMMON, DATA, FACTS, OWN, PROGRESS, ClientView, OwnSamples, model_part
from pflcore.data.federation import Batch
from pflcore.errors import UserError
from pflcore.exchange import MOMENTA, Federation, Server, Update, average, weights
from pflcore.faults import display_path
from pflcore.groups import Groups, Roles, Tensors
from pflcore.operators.neighbours import Neighbours
from pflcore.operators.robust_means import geometric_median, krum, trimmed_mean
from pflcore.options import option
from pflcore.registry import Entry, did_you_mean
from pflcore.steps import LocalState, Phase, Steps, name_of, sgd_step
from pflcore.task import cross_entropy

# The names that a method's file imports, beside groups, options and the registry.
__all__ = ["COMMON", "DATA", "MOMENTA", "OWN", "PROGRESS", "Batch", "ClientView", "Federation", "LocalState", "Method"]
__all__ += ["OwnSamples", "Phase", "Server", "Steps", "Update", "average", "cross_entropy", "model_part", "name_of"]
__all__ += ["sgd_step", "weights"]

_ROBUST = ("median", "trimmed_mean", "krum", "geometric_median")


@dataclass(frozen=True, kw_only=True)
class Method(Steps, Entry):
    """Federated averaging over the shared groups; the base of every method.

    With `finetune_epochs` or `finetune_steps`, each client tunes a copy of the model with which it is measured (for
    Ditto, the client's second model). It trains on its own training samples, by SGD without momentum, decay or clipping
    on the cross-entropy of its predictions. A memory (`knn`) then uses the tuned copy, which is discarded afterwards.
    """

    # Names of groups as in Groups.select; everything that is neither personal nor generated is shared.
    personal: ClassVar[tuple[str, ...]] = ()
    generated: ClassVar[tuple[str, ...]] = ()
    # In words, for readers: further state that is personal, and further state that is exchanged.
    keeps: ClassVar[tuple[str, ...]] = ()
    exchanges: ClassVar[tuple[str, ...]] = ()
    # The names in FACTS that the engine adds to a client's state, with the prefix DATA.
    facts: ClassVar[tuple[str, ...]] = ()
    # Whether local steps are by definition SGD with one learning rate per round; other settings are refused then.
    plain_sgd: ClassVar[bool] = False
    # Whether the run's class weights apply to the method's loss, which must then use local.cross_entropy.
    weighs_classes: ClassVar[bool] = True
    # Groups of the backbone that the rounds do not train; a run that could train only these is refused.
    untrained: ClassVar[tuple[str, ...]] = ()
    # Features that steps see: "classifier" is the classifier's input, "memory" see :mod:`pflcore.engine.forward`.
    feature_layer: ClassVar[str] = "classifier"
    # The weighting of clients if `averaging` is null: one of its choices; None: the method's own rule, no option.
    own_averaging: ClassVar[str | None] = "samples"
    # Whether the entries that clients return beside the model are changes and not new values.
    returns_changes: ClassVar[bool] = False
    # In words, how the server uses updates outside of :meth:`average`; robust averages are refused then.
    beyond_mean: ClassVar[str] = ""

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
    also_personal: tuple[str, ...] = option(
        (), help="Further groups of the backbone that stay on the client; they are neither averaged nor generated."
    )
    train_only: tuple[str, ...] = option(
        (),
        later=True,
        help="The groups that are trained, also of what the method adds; all else stays as the model begins, and is "
        "neither sent nor kept. None named: as the method has it, mostly all.",
    )
    averaging: str | None = option(
        None,
        choices=("samples", "uniform", *_ROBUST),
        later=True,
        help="Whether averages weight clients by their training samples or equally, or what stands in the place of "
        "averages; null: as the method has it.",
    )
    suspects: float = option(
        0.2,
        ge=0,
        lt=0.5,
        later=True,
        help="Share of clients that trimmed_mean leaves out at either end, and that krum takes for attackers.",
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for fact in cls.facts:
            if fact not in FACTS:
                file = getattr(sys.modules[cls.__module__], "__file__", None) or cls.__module__
                raise UserError(
                    f"{display_path(file)}: facts: there is no fact {fact!r}{did_you_mean(fact, list(FACTS))}"
                )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("finetune_lr", "finetune_groups"):
            if getattr(self, name) and not self.tunes:
                raise UserError(f"{name_of(self)}.{name} has no effect without finetune_epochs or finetune_steps")
        if self.averaging and not self.own_averaging:
            raise UserError(f"method {name_of(self)}: averaging has no effect, because its server follows other rules")
        if self.averaging in _ROBUST and self.beyond_mean:
            raise UserError(f"method {name_of(self)}: averaging: {self.averaging} does not apply; {self.beyond_mean}")

    @property
    def remembers(self) -> bool:
        """Whether predictions use the client's training samples: for votes of nearest neighbours, or by the method."""
        return self.knn > 0 or bool(self.knn_grid)

    @property
    def tunes(self) -> bool:
        """Whether the options ask for tuning before measurements."""
        return self.finetune_epochs > 0 or self.finetune_steps is not None

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        """Add the method's modules to a new model, in place; return their groups: name → pattern over state names.
        Raises :class:`UserError` if the modules do not fit the model."""
        return {}

    def trained(self) -> tuple[str, ...]:
        """Return the groups whose parameters are trained; an empty tuple means all groups."""
        return self.train_only

    def roles(self, groups: Groups) -> Roles:
        """Return the roles of the state entries. Raises :class:`UserError` for a group that the backbone lacks."""
        return Roles.split(groups, (*self.personal, *self.also_personal), self.generated)

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        """Return the initial values of a client's personal entries beside its model, for example of a second model.
        The engine adds the prefix :data:`OWN` to their names; the entries never leave the client."""
        return {}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        """Return the initial values of entries that are exchanged beside the model, for example of prototypes. The
        engine adds the prefix :data:`COMMON` to their names, in states, updates and the server's shared part."""
        return {}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        """Return the server before the first round; `initial` is the initial model and the entries exchanged beside."""
        shared = {name: tensor.clone() for name, tensor in initial.items() if name in roles.shared}
        return Server(shared, federation=federation)

    def warmup(self) -> Phase | None:
        """Return the phase that all training clients run once before the first round, or None; its passes are extra."""
        return None

    def end_warmup(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        """Return the server after the :meth:`warmup`; by default only entries exchanged beside the model change."""
        exchanged = frozenset(name for name in roles.shared if name.startswith(COMMON))
        return replace(server, shared={**server.shared, **self.average(updates, exchanged)})

    def participants(self, sampled: Sequence[int], clients: int) -> Sequence[int]:
        """Return the clients that train in a round; `sampled` are the sampled ones, `clients` is the number of all."""
        return sampled

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        """Return the generated entries of each client in `clients`."""
        return [{} for _ in clients]

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of local training in a round, in order; ``Phase()`` takes all steps of the round."""
        return (Phase(),)

    def origin(self, sent: Tensors, returned: Tensors) -> Tensors:
        """Return what a client's entries were before it trained them, as :attr:`Update.sent`; by default as `sent`."""
        return sent

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        """Return the server after a round. It may reuse the storage of `server`, which is not used again."""
        return Server(self.average(updates, roles.shared), server.extra)

    def shares(self, updates: Sequence[Update]) -> list[float]:
        """Return the weight of each update in averages over the *sampled* clients; the weights sum to 1."""
        rule = self.own_averaging if self.averaging in (None, *_ROBUST) else self.averaging
        if rule == "uniform":
            return [1 / len(updates)] * len(updates)
        return weights(updates)

    def average(self, updates: Sequence[Update], names: frozenset[str]) -> Tensors:
        """Return the mean of the returned entries, weighted by :meth:`shares`, or the robust average that `averaging`
        names, over all entries together; counters (integers) come from the first client."""
        shares = self.shares(updates)
        if self.averaging not in _ROBUST:
            return average(updates, names, shares)
        mean = average(updates[:1], names, [1.0])
        # Sorted, because the rounding of sums depends on the order of entries.
        summed = sorted(name for name, tensor in mean.items() if tensor.is_floating_point())
        if not summed:
            return mean
        values = torch.stack([torch.cat([update.returned[name].flatten() for name in summed]) for update in updates])
        if self.averaging == "geometric_median":
            center = geometric_median(values, values.new_tensor(shares))
        elif self.averaging == "krum":
            center = krum(values, self.suspects)
        else:
            center = trimmed_mean(values, 0.5 if self.averaging == "median" else self.suspects)
        # Copies, for where an entry lies in memory decides how sums over it are rounded, and a checkpoint moves it.
        parts = torch.split(center, [mean[name].numel() for name in summed])
        return mean | {name: part.view_as(mean[name]).clone() for name, part in zip(summed, parts, strict=True)}

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return the bytes that a client sent and those that it received in the round of its update."""
        sent = sum(tensor.nbytes for tensor in update.returned.values())
        return sent, sum(tensor.nbytes for tensor in update.sent.values())

    def eval_state(self, state: Tensors) -> Tensors:
        """Return the entries of a client's state that its predictions use, of the model and, if needed, beside it."""
        return state

    def tuning(self) -> Phase | None:
        """Return the phase that tunes a copy of :meth:`eval_state` before a measurement, or None if there is none."""
        if not self.tunes:
            return None
        lr, groups = self.finetune_lr, self.finetune_groups
        return Phase(epochs=self.finetune_epochs, count=self.finetune_steps, lr=lr, groups=groups)

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        """Return the logits with which a client is measured, in evaluation mode; `state` is from :meth:`eval_state`."""
        return local.forward(state, inputs)

    def predictor(self, local: ClientView, state: Tensors, samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        """Return inputs → logits for a method that `remembers`, computed from the client's training samples again in
        each measurement, not under ``torch.func.vmap``: by default :meth:`predict` with votes of nearest neighbours."""
        return self.beside_neighbours(lambda inputs: self.predict(local, state, inputs), samples)

    def beside_neighbours(self, alone: Callable[[Tensor], Tensor], samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        """Return a function that mixes the logits of `alone` with votes of nearest neighbours as the options say."""

        def noted(inputs: Tensor) -> tuple[Tensor, Tensor]:
            return samples.noted(lambda: alone(inputs))

        seen = ((*noted(batch.inputs), batch.labels) for batch in samples.batches())
        memory = Neighbours.create(seen, samples.classes, self.neighbours, self.knn, self.knn_grid)
        return (lambda inputs: memory.mix(*noted(inputs))) if memory else alone
