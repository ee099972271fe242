"""What a method is: small functions over explicit state. No loop, no input or output, no device code.

A method says which groups of the model are personal or generated, what a client minimises, and what the server does
with what it gets back. The base class is federated averaging of everything that is shared; most methods override one
or two of the functions. Executors in :mod:`pflcore.engine` decide how the functions are run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pflcore.client_view import COMMON, DATA, FACTS, OWN, PROGRESS, ClientView, OwnSamples, model_part
from pflcore.data.federation import Batch
from pflcore.errors import UserError
from pflcore.faults import caller, shown
from pflcore.groups import Groups, Roles, Tensors, split
from pflcore.operators.neighbours import Neighbours
from pflcore.options import option
from pflcore.registry import Entry, did_you_mean
from pflcore.task import cross_entropy

# What a file with a method imports, beside groups, options and the registry.
__all__ = ["COMMON", "DATA", "MOMENTA", "OWN", "PROGRESS", "Batch", "ClientView", "Federation", "LocalState", "Method"]
__all__ += ["OwnSamples", "Phase", "Server", "Steps", "Update", "average", "cross_entropy", "model_part", "name_of"]
__all__ += ["sgd_step", "weights"]

LocalState = dict[str, Tensors]
MOMENTA = "momentum/"  # what names of momenta begin with in the server's further state; they are no parameters


@dataclass(frozen=True)
class Federation:
    """Facts about a federation and its model that a method may build its state from."""

    clients: int
    seed: int
    momentum: float = 0.0  # of the clients' SGD
    classes: int = 0  # of characters for text
    features: int = 0  # width of the classifier's input
    head: tuple[str, ...] = ()  # names of the classifier's weight and bias, or only of its weight
    local_epochs: int | None = None  # None where steps are counted instead
    total_rounds: int | None = None  # None for a method that does not ask for the fact `progress`
    samples: tuple[int, ...] = ()  # of each client, its number of training samples
    generated: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of the generated entries
    parameters: frozenset[str] = frozenset()  # entries of the model that gradients train; its others are buffers

    @property
    def rounds(self) -> int:
        """Number of rounds. Raises :class:`UserError` where the method does not ask for the fact ``progress``."""
        if self.total_rounds is None:
            raise UserError(f"{caller()}: federation.rounds must be asked for: facts = ('progress',)")
        return self.total_rounds


@dataclass
class Server:
    """State of the server. Facts and round come with it whenever a method is given it, and need not be handed back."""

    shared: Tensors  # the shared part of the model; empty for a method that shares nothing
    extra: Tensors = field(default_factory=dict)  # whatever else the method keeps, under names of its own
    federation: Federation = Federation(0, 0)
    round: int = 0  # rounds that are done; in Method.update_server with the one that ends by it


@dataclass(frozen=True)
class Update:
    """What one client returns to the server."""

    client: int
    samples: int  # its training samples
    sent: Mapping[str, Tensor]  # its shared and generated entries as it received them
    returned: Mapping[str, Tensor]  # the same entries after local training; personal ones are never among them
    steps: int = 0  # that it took


def weights(updates: Sequence[Update]) -> list[float]:
    """Return each client's share of the cohort's training samples."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


def average(updates: Sequence[Update], names: frozenset[str], shares: Sequence[float] | None = None) -> Tensors:
    """Return the mean of the returned entries in `shares`, by default :func:`weights`; counters are the first's."""
    shares = weights(updates) if shares is None else shares
    first = {name: tensor for name, tensor in updates[0].returned.items() if name in names}
    mean = {name: torch.zeros_like(one) if one.is_floating_point() else one.clone() for name, one in first.items()}
    summed = [name for name, one in first.items() if one.is_floating_point()]
    sums = [mean[name] for name in summed]
    for share, update in zip(shares, updates, strict=True) if summed else ():
        torch._foreach_add_(sums, [update.returned[name] for name in summed], alpha=share)
    return mean


class Steps:
    """Local steps of a client: begin(), step() for each batch, end(); by default SGD on the model's cross-entropy.

    A method is one; a part of its round that does something else has another, made by the method with what it needs.
    """

    # Whether steps see samples through the cross-entropy alone, so that one whose label this passes over changes
    # nothing. Whoever overrides `loss` or `step` has to say it anew.
    ignores_unlabelled: ClassVar[bool] = True
    # False for steps with control flow that depends on data: where others are stacked, its clients are trained in turn.
    supports_vmap: ClassVar[bool] = True

    def loss(self, local: ClientView, params: Tensors, batch: Batch) -> Tensor:
        """Return what a client minimises on one batch, a scalar."""
        return local.cross_entropy(local.forward(params, batch.inputs), batch.labels)

    def begin(self, local: ClientView, start: Tensors) -> LocalState:
        """Return the state before the first step; ``"model"`` is what the client ends with, `start` its own copy of
        what it received, on which steps may work in place."""
        return {"model": start, "opt_state": {}}

    def step(self, local: ClientView, state: LocalState, batch: Batch) -> tuple[LocalState, Tensor]:
        """Take one local step; return the next state and the loss before it."""
        return sgd_step(local, state, lambda params: self.loss(local, params, batch), local.parameters)

    def end(self, local: ClientView, state: LocalState) -> LocalState:
        """Return the state after the last step."""
        return state


@dataclass(frozen=True)
class Phase:
    """A part of a client's training from begin() to end(): of a round, before the first one, or before measurements.

    What a phase of a round changes is kept; the next begins with it, as its `local.received`, with a new optimiser.
    """

    # Its local steps; None: the method's own, and before measurements steps on what the client predicts with.
    steps: Steps | None = None
    # Passes over the client's samples, in the batches of the round that are left, rounded down to whole steps; None is
    # all that are left, or one where they are extra: whole passes in batches of its own, beside those of the round.
    epochs: float | None = None
    extra: bool = False
    share: float = 1.0  # of the client's samples that extra passes see, drawn anew in each round
    # Whose parameters are trained, of "shared", "personal" and "generated"; none named: all. The others rest, with
    # their running statistics.
    roles: tuple[str, ...] = ()
    # Before measurements: steps instead of passes, on batches drawn anew; the learning rate of plain SGD, by default
    # that of training; the groups that are trained, by default all.
    count: int | None = None
    lr: float | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Method(Steps, Entry):
    """Federated averaging over the shared groups; the base of every method.

    With `finetune_epochs` or `finetune_steps`, each client trains a copy of what it is measured with, its own second
    model for Ditto, on its own training samples, by SGD without momentum or decay on the cross-entropy of its
    predictions. A memory (`knn`) is then of the tuned model. None of it is kept, and training knows nothing of it.
    """

    # Group names as in Groups.select; everything that is neither personal nor generated is shared.
    personal: ClassVar[tuple[str, ...]] = ()
    generated: ClassVar[tuple[str, ...]] = ()
    # In words: what a client keeps, and what is exchanged, beside these groups.
    keeps: ClassVar[tuple[str, ...]] = ()
    exchanges: ClassVar[tuple[str, ...]] = ()
    # Those of FACTS that are put into a client's state, under names that begin with DATA.
    facts: ClassVar[tuple[str, ...]] = ()
    # Whether local steps are those of SGD by definition, at one learning rate in a round: other settings are refused.
    plain_sgd: ClassVar[bool] = False
    # Whether the run's class weights act in what it minimises, which comes from local.cross_entropy then.
    weighs_classes: ClassVar[bool] = True
    # Groups of the backbone that its rounds do not train: these alone are nothing to train.
    untrained: ClassVar[tuple[str, ...]] = ()
    # The features that it sees: the classifier's input, or what memories are made of (:mod:`pflcore.engine.forward`).
    feature_layer: ClassVar[str] = "classifier"
    # How clients count in averages unless `averaging` says it: one of its choices, or None for a rule of its own.
    own_averaging: ClassVar[str | None] = "samples"

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
        choices=("samples", "uniform"),
        later=True,
        help="Whether clients count in averages by their training samples or all alike; null: as the method has it.",
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for fact in cls.facts:
            if fact not in FACTS:
                file = getattr(sys.modules[cls.__module__], "__file__", None) or cls.__module__
                raise UserError(f"{shown(file)}: facts: there is no fact {fact!r}{did_you_mean(fact, list(FACTS))}")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in () if self.tunes else ("finetune_lr", "finetune_groups"):
            if getattr(self, name):
                raise UserError(f"{name_of(self)}.{name} says nothing without finetune_epochs or finetune_steps")
        if self.averaging and not self.own_averaging:
            raise UserError(
                f"method {name_of(self)}: averaging has no meaning; what its server does goes by other rules"
            )

    @property
    def remembers(self) -> bool:
        """Whether clients predict with their training samples at hand, for neighbours to vote or what a method adds."""
        return self.knn > 0 or bool(self.knn_grid)

    @property
    def tunes(self) -> bool:
        """Whether the options ask for tuning."""
        return self.finetune_epochs > 0 or self.finetune_steps is not None

    def extend(self, model: nn.Module) -> Mapping[str, str]:
        """Add modules of the method's own to a freshly built model, in place; return their groups, name → pattern over
        state names. Raises :class:`UserError` for a model that has no place for them."""
        return {}

    def trained(self) -> tuple[str, ...]:
        """Return the groups of the model whose parameters are trained; none named: all."""
        return self.train_only

    def roles(self, groups: Groups) -> Roles:
        """Return who owns which state entries. Raises :class:`UserError` for a group that the backbone lacks."""
        return Roles.split(groups, (*self.personal, *self.also_personal), self.generated)

    def init_client(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        """Return what a client keeps beside its model, as it begins, under plain names: a second model, a weight. In
        its state their names begin with :data:`OWN`; they never leave the client."""
        return {}

    def init_shared(self, initial: Tensors, roles: Roles, federation: Federation) -> Tensors:
        """Return what is exchanged beside the model, as it begins, under plain names: prototypes, a student. In
        states, updates and the server's shared part the names begin with :data:`COMMON`."""
        return {}

    def init_server(self, initial: Tensors, roles: Roles, federation: Federation) -> Server:
        """Return the state before the first round; `initial` is the initial model, and what is exchanged beside."""
        shared = {name: tensor.clone() for name, tensor in initial.items() if name in roles.shared}
        return Server(shared, federation=federation)

    def warmup(self) -> Phase | None:
        """Return what all clients that train do once before the first round, in passes of their own."""
        return None

    def end_warmup(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        """Return the state after the :meth:`warmup`: by default the mean of what is exchanged beside the model."""
        beside = frozenset(name for name in roles.shared if name.startswith(COMMON))
        return replace(server, shared={**server.shared, **self.average(updates, beside)})

    def participants(self, sampled: Sequence[int], clients: int) -> Sequence[int]:
        """Return the clients that train in a round, given those that were sampled out of `clients`."""
        return sampled

    def generate(self, server: Server, clients: Sequence[int]) -> list[Tensors]:
        """Return the generated entries for each of the clients."""
        return [{} for _ in clients]

    def phases(self) -> tuple[Phase, ...]:
        """Return what local training in a round consists of; a phase without attributes is all of its steps."""
        return (Phase(),)

    def update_server(self, server: Server, roles: Roles, updates: Sequence[Update]) -> Server:
        """Return the state after a round. It may reuse the storage of `server`, which is not used again."""
        return Server(self.average(updates, roles.shared), server.extra)

    def shares(self, updates: Sequence[Update]) -> list[float]:
        """Return what each client counts in averages over the *sampled* clients; sums to 1."""
        if (self.averaging or self.own_averaging) == "uniform":
            return [1 / len(updates)] * len(updates)
        return weights(updates)

    def average(self, updates: Sequence[Update], names: frozenset[str]) -> Tensors:
        """Return the mean of the returned entries in :meth:`shares`; counters (integers) come from the first client."""
        return average(updates, names, self.shares(updates))

    def traffic(self, update: Update) -> tuple[int, int]:
        """Return the bytes that a client sent and received in the round of its update."""
        sent, received = (sum(tensor.nbytes for tensor in part.values()) for part in (update.returned, update.sent))
        return sent, received

    def eval_state(self, state: Tensors) -> Tensors:
        """Return what of a client's state its predictions take: entries of the model, and maybe further ones."""
        return state

    def tuning(self) -> Phase | None:
        """Return what clients do before measurements, if anything, to what :meth:`eval_state` gives; it is not kept."""
        if not self.tunes:
            return None
        passes, count = self.finetune_epochs, self.finetune_steps
        return Phase(epochs=passes, count=count, lr=self.finetune_lr, groups=self.finetune_groups)

    def predict(self, local: ClientView, state: Tensors, inputs: Tensor) -> Tensor:
        """Return the logits that a client is measured by, in evaluation mode; `state` is from :meth:`eval_state`."""
        return local.forward(state, inputs)

    def predictor(self, local: ClientView, state: Tensors, samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        """Return what predicts in a method that `remembers`, made of a client's training samples anew in each
        measurement, not under ``torch.func.vmap``: by default :meth:`predict` and the votes of nearest neighbours."""
        return self.beside_neighbours(lambda inputs: self.predict(local, state, inputs), samples)

    def beside_neighbours(self, alone: Callable[[Tensor], Tensor], samples: OwnSamples) -> Callable[[Tensor], Tensor]:
        """Return what mixes logits of inputs with the votes of nearest neighbours as the options say."""

        def noted(inputs: Tensor) -> tuple[Tensor, Tensor]:
            return samples.noted(lambda: alone(inputs))

        seen = ((*noted(batch.inputs), batch.labels) for batch in samples.batches())
        memory = Neighbours.remember(seen, samples.classes, self.neighbours, self.knn, self.knn_grid)
        return (lambda inputs: memory.mix(*noted(inputs))) if memory else alone


def name_of(method: Steps) -> str:
    """Return what a method is called, also one that is not registered."""
    name: str = getattr(method, "name", type(method).__name__)
    return name


def sgd_step(
    local: ClientView, state: LocalState, loss: Callable[[Tensors], Tensor], trained: Collection[str]
) -> tuple[LocalState, Tensor]:
    """Take one step of the run's optimiser on the entries in `trained`; return the next state and the loss before it,
    which is a function of all entries of the model, buffers among them."""
    moving, rest = split(state["model"], trained)
    gradients, value = local.gradient(lambda params: loss({**params, **rest}), moving)
    moving, opt_state = local.sgd(moving, gradients, state["opt_state"])
    return {**state, "model": {**state["model"], **moving}, "opt_state": opt_state}, value
