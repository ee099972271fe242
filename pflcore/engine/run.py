"""The state of one run, and the transition of a round."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pflcore.backbones import Backbone
from pflcore.conditions import Condition, Draws
from pflcore.data.federation import FederatedData
from pflcore.data.upload import move
from pflcore.detection.task import Detection
from pflcore.engine.analysis import Findings, Subject
from pflcore.engine.checkpoint import Checkpoint, CheckpointFolder, compare
from pflcore.engine.client import WARMUP, Diverged, Job, Outcome
from pflcore.engine.cost import Cost, count, step_macs
from pflcore.engine.evaluation import COLUMNS, Scored
from pflcore.engine.executors.sequential import Sequential
from pflcore.engine.optimizers import ServerOptimizer
from pflcore.engine.phases import check_settings, groups_of, make_trainer
from pflcore.engine.result import Result, columns
from pflcore.engine.state import ClientStates, History
from pflcore.engine.views import GENERATED, Views
from pflcore.errors import UserError
from pflcore.exchange import check_server
from pflcore.faults import during
from pflcore.groups import Groups, Roles, Tensors, add_prefix, pick, strip_prefix
from pflcore.method import COMMON, MOMENTA, OWN, Method, Server, Update, name_of
from pflcore.seeds import generator
from pflcore.settings import Evaluation, Training, metrics_error, patience_error


class RunState:
    """The state of one run and the transitions between its rounds: train a cohort, update the server, measure.

    Attributes:
        initial: The model's initial state; `fixed` are its parameters that are never trained; no checkpoint has them.
        initial_personal: A client's initial personal entries, of the model and others.
        client_state: A client's complete initial state, whose names, shapes and types stay the same in all rounds.
        roles: The roles of all entries, including exchanged entries that are not the model's.
        traffic: Over all rounds so far: bytes that clients sent, bytes that they received, number of updates.
    """

    def __init__(
        self,
        data: FederatedData,
        backbone: Backbone,
        method: Method,
        training: Training,
        evaluation: Evaluation,
        seed: int,
        scratch: Path | None,
        condition: Condition | None = None,
    ) -> None:
        if reason := patience_error(training, evaluation, bool(data.validation)):
            raise UserError(f"training.patience: {reason}")
        model, groups = backbone.create(data.shape, data.classes, seed, method.extend, data.kind)
        detects = isinstance(getattr(model, "task", None), Detection)
        self.data = data = data.with_boxes() if detects else data
        self.method, self.training, self.evaluation, self.seed = method, training, evaluation, seed
        self.model: nn.Module = model.to(data.device)
        self.groups: Groups = groups_of(method, groups)
        self.condition = condition or Condition()
        self.draws = Draws(seed, tuple(client for client in range(data.clients) if client not in data.novel))
        self.attackers = self.condition.attackers(self.draws)
        self.round = self.resumed_from = 0
        self.inherited = False
        self.diverged: Diverged | None = None
        self.initial: Tensors = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.fixed: Tensors = pick(self.initial, self.groups.fixed)
        check_settings(method, training, data, detects)
        if reason := metrics_error(evaluation, text=data.is_text, boxes=detects):
            raise UserError(f"evaluation.metrics: {reason}")
        self.data = data = self.condition.data(self.draws, data)
        pace = partial(self.condition.share_of_steps, self.draws) if condition else None
        self.trainer = make_trainer(self.model, self.groups, data, method, training, seed, pace)
        roles, self.federation = self.trainer.roles, self.trainer.federation(self.initial)
        exchanged = method.init_shared(self.initial, roles, self.federation)
        common = add_prefix(COMMON, {name: tensor.to(data.device) for name, tensor in exchanged.items()})
        self.roles: Roles = replace(roles, shared=roles.shared | common.keys())
        self.server: Server = method.init_server({**self.initial, **common}, self.roles, self.federation)
        trained = {name: tensor for name, tensor in self.server.shared.items() if name in self.groups.parameters}
        self.server_optimizer = ServerOptimizer(training, name_of(method), trained)
        further = add_prefix(OWN, method.init_client(self.initial, roles, self.federation))
        self.initial_personal: Tensors = {**pick(self.initial, self.roles.personal), **further}
        self.personal = ClientStates(self.initial_personal, data.clients, scratch)
        self.client_state: Tensors = {**self.initial, **common, **self.initial_personal, **self.trainer.facts(0, 1)}
        self.condition.check(method, pick(self.client_state, self.roles.shared | self.roles.generated))
        takes_part = ~np.isin(np.arange(data.clients), sorted(data.novel | self.attackers))
        uses_facts = method.facts and type(method).predict is not Method.predict  # facts differ by client
        differ = self.initial_personal or roles.generated or self.trainer.tuning or method.remembers or uses_facts
        has_global = self.initial.keys() <= self.server.shared.keys() | self.fixed.keys()
        self.views = Views(self.trainer, evaluation, takes_part, differ=bool(differ), has_global=has_global)
        self.history = History(takes_part, 1 + bool(data.validation), self.trainer.task.further, self.views.measured)
        self.traffic = torch.zeros(3, dtype=torch.int64)

    @property
    def over(self) -> bool:
        """Whether the run has reached its last round, has diverged, or is stopped early."""
        stopped = self.history.stops_after(self.training.patience)
        return self.round >= self.training.rounds or self.diverged is not None or stopped is not None

    def warmup(self, executor: Sequential) -> None:
        """Run the method's warm-up, if it has one, with all clients that take part in training."""
        if WARMUP in self.trainer.parts:
            with self._until_divergence():
                updates, personal, _ = self._train(executor, 0, self.draws.members, (WARMUP,))
                sent = self.condition.sent(self.draws, 0, updates)
                self.server = self.method.end_warmup(self._server(0), self.roles, sent)
                self.personal.update(personal)

    def advance(self, executor: Sequential) -> float:
        """Run one round; return the mean local loss of its participants, or NaN if it has none or the run diverges.

        If training, or a measurement before aggregation, diverges, the state is that before the round. A loss that is
        not finite in the measurement after aggregation is a divergence too, but leaves the state after the round.
        """
        round_ = self.round + 1
        updates, personal, losses = list[Update](), dict[int, Tensors](), list[float]()
        with self._until_divergence():
            participants = [it for it in self._cohort(round_) if self.condition.attends(self.draws, round_, it)]
            if participants:
                updates, personal, losses = self._train(executor, round_, participants, self.trainer.order)
            measures, trained = self.evaluation.is_due(round_, self.training.rounds), list[Scored]()
            if measures and "after_training" in self.evaluation.moments:
                jobs = [(it.client, self._trained_state(round_, it, personal[it.client])) for it in updates]
                with during("measuring"):
                    trained = self.views.after_training(executor, round_, jobs)
            if participants:
                self._aggregate(round_, updates)
            self.personal.update(personal)
            self.round = round_
            if measures:
                pairs = zip(updates, losses, strict=True)
                self._measure(executor, trained, {update.client: loss for update, loss in pairs if update.steps})
        return float(np.mean(losses)) if losses and not self.diverged else float("nan")

    def _cohort(self, round_: int) -> list[int]:
        """Return the clients that train in a round if none is away."""
        members = self.draws.members
        sampled = sample_cohort(members, self.training.cohort_size(len(members)), self.seed, round_)
        participants = self.method.participants(sampled, self.data.clients)
        return [client for client in participants if client not in self.data.novel]

    def _aggregate(self, round_: int, updates: Sequence[Update]) -> None:
        """Update the server with the updates of the clients, and count their bytes."""
        received = self.condition.sent(self.draws, round_, updates)
        for update in received:
            self.traffic += torch.tensor([*self.method.traffic(update), 1])
        before = self.server_optimizer.before(self.server)
        updated = self.method.update_server(self._server(round_), self.roles, received)
        check_server(name_of(self.method), self.server, updated)
        self.server = self.server_optimizer.step(before, updated)

    def _train(
        self, executor: Sequential, round_: int, clients: Sequence[int], parts: Sequence[int]
    ) -> tuple[list[Update], dict[int, Tensors], list[float]]:
        """Train clients in the given parts; each part begins with the state that the one before it ends with. Return
        their updates, personal entries by client, and mean losses over local steps, if there are any without those of
        extra passes. Raises :class:`Diverged`."""
        trainers = {part: self.trainer.part(part) for part in parts}
        counted = [part for part in parts if not trainers[part].extra] or parts
        summed = dict.fromkeys(clients, 0.0)

        def train(part: int) -> Iterator[Outcome]:
            for outcome in executor.train(round_, jobs, part):
                steps = {part: trainers[part].local.steps(round_, outcome.client) for part in counted}
                summed[outcome.client] += outcome.loss * (steps.get(part, 0) / max(1, sum(steps.values())))
                yield outcome

        exchanged = self.roles.shared | self.roles.generated
        changes = frozenset(name for name in exchanged if self.method.returns_changes and name.startswith(COMMON))
        updates, personal, losses = list[Update](), dict[int, Tensors](), list[float]()
        jobs = list(self._states(clients, len(clients)))
        sent = {client: pick(received, exchanged) for client, received in jobs}
        for part in parts[:-1]:
            jobs = [(it.client, {name: it.model[name] for name in self.client_state}) for it in train(part)]
        for outcome in train(parts[-1]):
            client = outcome.client
            samples, steps = len(self.data.train[client]), self.trainer.local.steps(round_, client)
            returned = pick(outcome.model, exchanged)
            before = self.method.origin(sent[client], returned)
            updates.append(Update(client, samples, before, returned, steps, changes))
            personal[client] = pick(outcome.model, self.initial_personal)
            losses.append(summed[client])
        return updates, personal, losses

    def _states(self, clients: Sequence[int], at_once: int = GENERATED) -> Iterator[Job]:
        """Yield clients with the states with which they begin; entries are generated for `at_once` clients together."""
        for start in range(0, len(clients), max(1, at_once)):
            group = clients[start : start + at_once]
            for client, generated in zip(group, self.method.generate(self._server(self.round), group), strict=True):
                yield client, self._assemble(client, generated)

    def _assemble(self, client: int, generated: Tensors) -> Tensors:
        """Return a client's state: fixed, shared, generated and personal entries, and facts, in a fixed order."""
        parts = {**self.fixed, **self.server.shared, **generated, **self.trainer.facts(client, self.round + 1)}
        (personal,) = move([self.personal[client]], self.data.device)
        return {name: personal[name] if name in personal else parts[name] for name in self.client_state}

    def _trained_state(self, round_: int, update: Update, personal: Tensors) -> Tensors:
        """Return a client's state after its local training."""
        parts = {**self.fixed, **update.returned, **personal, **self.trainer.facts(update.client, round_)}
        return {name: parts[name] for name in self.client_state}

    def _server(self, round_: int) -> Server:
        """Return the server that a method receives, with `federation` and `round`; its `shared` may be changed."""
        return replace(self.server, shared={**self.server.shared}, federation=self.federation, round=round_)

    @contextmanager
    def _until_divergence(self) -> Iterator[None]:
        """Record a divergence in the block, which ends the run."""
        try:
            yield
        except Diverged as diverged:
            self.diverged = diverged

    def _measure(self, executor: Sequential, trained: list[Scored], train_losses: dict[int, float]) -> None:
        """Measure all clients after the round; `trained` are the scores from before aggregation."""
        with during("measuring"):
            states = partial(self._states, range(self.data.clients))
            scores = [*self.views.after_aggregation(executor, self.round, states), *trained]
        totals, losses = (np.concatenate(scores)[:, COLUMNS.index(name)] for name in ("total", "loss"))
        diverged = np.flatnonzero((~np.isnan(totals) & ~np.isfinite(losses)).any(0))
        if len(diverged):  # the last local step can break a model whose loss before the step was finite
            raise Diverged(self.round, int(diverged[0]))
        self.history.add(self.round, np.concatenate(scores), train_losses)

    def subject(self, kinds: Sequence[int] | None) -> Subject:
        """Return the run as the input of an analysis."""
        server = self._server(self.round)
        return Subject(self.trainer, self.groups, self.round, server, lambda it: next(self._states([it]))[1], kinds)

    def result(self, findings: Findings) -> Result:
        """Return the result of the run, with the findings of its analyses."""
        up, down, updates = self.traffic.tolist()
        extra = {name: tensor for name, tensor in self.server.extra.items() if not name.startswith(MOMENTA)}
        cost = Cost(
            round(up / max(1, updates)),
            round(down / max(1, updates)),
            stored=count(self.initial_personal),
            received=count(pick(self.client_state, self.roles.shared | self.roles.generated)),
            server=count(self.server.shared) + count(extra),
            macs=step_macs(self.trainer, self.subject(None).state(0)),
        )
        cohorts = map(self._cohort, range(1, self.round + 1))
        weights = {**self.fixed, **self.server.shared}
        for client in self.personal.trained():
            weights |= add_prefix(f"client.{client}.", self.personal[client])
        return Result(
            **columns(self.history),
            positions=self.data.positions,
            rounds=self.round,
            diverged=self.diverged,
            parameters=sum(self.initial[name].numel() for name in self.groups.parameters),
            cost=cost,
            resumed_from=self.resumed_from,
            inherited=self.inherited,
            weights=weights | add_prefix("server.", self.server.extra),
            findings=findings,
            notes=tuple(getattr(self.model, "notes", ())),
            attackers=self.attackers,
            epsilon=None if self.diverged else self.condition.epsilon(len(self.draws.members), cohorts),
        )

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> Tensors:
        """Return everything that the next round needs."""
        return {
            **add_prefix("server/shared/", self.server.shared),
            **add_prefix("server/extra/", self.server.extra),
            **add_prefix("server_optimizer/", self.server_optimizer.state()),
            **add_prefix("personal/", self.personal.state()),
            "traffic/bytes": self.traffic,
            **add_prefix("history/", self.history.state()),
        }

    def resume(self, checkpoints: CheckpointFolder) -> None:
        """Continue from the newest good checkpoint, or from the last state of an earlier run of the lineage, if any."""
        checkpoint = checkpoints.load(self.misfit)
        if not checkpoint:
            checkpoint = checkpoints.earlier(self.misfit, self._continues)
            self.inherited = checkpoint is not None
        if checkpoint:
            self.restore(checkpoint)
            self.resumed_from = checkpoint.round
            rounds = set(self.evaluation.due(self.training.rounds))  # an earlier run may have measured others too
            self.history.rows = {round_: rows for round_, rows in self.history.rows.items() if round_ in rounds}

    def misfit(self, tensors: Tensors) -> str:
        """Return how tensors differ from a state of this run, except for clients and rounds; "" if they fit."""
        prefixes = "personal/", "history/"
        actual = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}
        return compare(actual, {name: it for name, it in self.state().items() if not name.startswith(prefixes)})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set the run to copies of a checkpoint's tensors, which may be mapped from a file."""
        of_server = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("server")}
        copies = {name: tensor.to(self.data.device, copy=True) for name, tensor in of_server.items()}
        self.server = Server(strip_prefix("server/shared/", copies), strip_prefix("server/extra/", copies))
        self.server_optimizer.restore(strip_prefix("server_optimizer/", copies))
        self.personal.restore(strip_prefix("personal/", checkpoint.tensors))
        self.traffic = checkpoint.tensors["traffic/bytes"].clone()
        self.history.restore(strip_prefix("history/", checkpoint.tensors))
        self.round = checkpoint.round

    def _continues(self, earlier: Checkpoint) -> bool:
        """Return whether this run would reach an earlier run's state, which has all measurements due until then."""
        rounds = [str(round_) for round_ in self.evaluation.due(self.training.rounds) if round_ <= earlier.round]
        measured = strip_prefix("history/", earlier.tensors)
        if earlier.round > self.training.rounds or not measured.keys() >= set(rounds):
            return False
        history = copy(self.history)
        history.restore({name: measured[name] for name in rounds})
        return history.stops_after(self.training.patience) in (None, earlier.round)


def sample_cohort(members: Sequence[int], size: int, seed: int, round_: int) -> list[int]:
    """Return `size` of the `members`, drawn without replacement for a round, in ascending order."""
    chosen = generator(seed, "sampling", round_).choice(len(members), size=size, replace=False)
    return sorted(np.array(members)[chosen].tolist())
