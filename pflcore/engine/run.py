"""The state of one run and the transitions between its rounds: train a cohort, update the server, measure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import nn

from pflcore.backbones import Backbone
from pflcore.data.federation import FederatedData
from pflcore.data.upload import move
from pflcore.detection.task import Detection
from pflcore.engine.analysis import Findings, Subject
from pflcore.engine.checkpoint import Checkpoint, CheckpointFolder, Stateful, misfit, restore
from pflcore.engine.client import OPENING, TUNING, Diverged, Facts, Job, Outcome, no_class_weights
from pflcore.engine.cost import Cost, count, count_server, step_macs
from pflcore.engine.evaluation import COLUMNS, Scores, SplitScores
from pflcore.engine.executors.choose import Executor
from pflcore.engine.optimizers import ServerOptimizer
from pflcore.engine.phases import make_trainer
from pflcore.engine.result import Result, columns, final_weights
from pflcore.engine.state import ClientStates, History, ServerState, Traffic
from pflcore.errors import UserError
from pflcore.faults import during
from pflcore.groups import Groups, Roles, Tensors, add_prefix, pick, strip_prefix
from pflcore.method import COMMON, OWN, Method, Server, Update, name_of
from pflcore.ownership import groups_of, roles_of
from pflcore.seeds import generator
from pflcore.settings import Evaluation, Training, impatience

# Clients whose generated entries are made together when all are measured: a hypernetwork is read once for each few.
_GENERATED = 16
Item = TypeVar("Item")


class RunState:
    """The state of one run and the transitions between its rounds."""

    def __init__(
        self,
        data: FederatedData,
        backbone: Backbone,
        method: Method,
        training: Training,
        evaluation: Evaluation,
        seed: int,
        scratch: Path | None,
    ) -> None:
        if reason := impatience(training, evaluation, bool(data.validation)):
            raise UserError(f"training.patience: {reason}")
        model, groups = backbone.create(data.shape, data.classes, seed, method.extend)
        groups = groups_of(method, groups)
        detects = isinstance(getattr(model, "task", None), Detection)
        data = data.with_boxes() if detects else data
        self.data, self.method, self.training, self.evaluation, self.seed = data, method, training, evaluation, seed
        self.model: nn.Module = model.to(data.device)
        self.groups: Groups = groups
        self._members = [client for client in range(data.clients) if client not in data.novel]
        self.round = 0
        self.resumed_from = 0
        self.inherited = False
        self.diverged: Diverged | None = None
        roles = roles_of(method, groups)
        _check(method, training, data)
        if detects:
            _check_detection(method, training)
        self.initial: Tensors = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        # Parameters that nobody trains are in no checkpoint, and never sent.
        self.fixed: Tensors = pick(self.initial, groups.fixed)
        self.trainer = make_trainer(self.model, groups, data, method, training, seed)
        self.facts = Facts(self.trainer, roles, self.initial)
        federation = self.facts.federation
        # What is exchanged beside the model has the role of its shared entries.
        exchanged = method.init_shared(self.initial, roles, federation)
        common = add_prefix(COMMON, {name: tensor.to(data.device) for name, tensor in exchanged.items()})
        self.roles: Roles = replace(roles, shared=roles.shared | common.keys())
        server = method.init_server({**self.initial, **common}, self.roles, federation)
        self.server = ServerState(server, data.device)
        trained = {name: tensor for name, tensor in server.shared.items() if name in groups.parameters}
        self.server_optimizer = ServerOptimizer(training, name_of(method), trained)
        # What stays on the client: the personal part of its model, and what the method keeps beside it.
        companions = add_prefix(OWN, method.init_client(self.initial, roles, federation))
        self.kept: Tensors = {**pick(self.initial, self.roles.personal), **companions}
        self.personal = ClientStates(self.kept, data.clients, scratch)
        # The names, shapes and types of a client's state, as at the beginning.
        self.carried: Tensors = {**self.initial, **common, **self.kept, **self.facts.of(0, 1)}
        takes_part = ~np.isin(np.arange(data.clients), sorted(data.novel))
        self.history = History(takes_part, 1 + bool(data.validation), precise=detects)
        self.traffic = Traffic()
        self.parts: dict[str, Stateful] = {
            "server": self.server,
            "server_optimizer": self.server_optimizer,
            "personal": self.personal,
            "traffic": self.traffic,
            "history": self.history,
        }

    @property
    def over(self) -> bool:
        """Whether it has come to its last round, diverged, or lost its patience."""
        stopped = self.history.stops_after(self.training.patience)
        return self.round >= self.training.rounds or self.diverged is not None or stopped is not None

    def advance(self, executor: Executor) -> float:
        """Run one round; return the mean local loss of its participants.

        When local training diverges, the state before the round stays. A loss that is first seen not to be finite when
        the models are measured is a divergence too, but leaves the state after the round.
        """
        round_ = self.round + 1
        members = self._members
        sampled = sample_cohort(members, self.training.cohort_size(len(members)), self.seed, round_)
        chosen = self.method.participants(sampled, self.data.clients)
        participants = [client for client in chosen if client not in self.data.novel]
        if (done := self._train(executor, round_, participants, self.trainer.order)) is None:
            return float("nan")
        updates, personal, losses = done
        for update in updates:
            self.traffic.add(*self.method.traffic(update))
        before = self.server_optimizer.before(self.server.server)
        updated = self.method.update_server(self._server(round_), self.roles, updates)
        self.server.server = self.server_optimizer.step(before, updated)
        self.personal.update(personal)
        self.round = round_
        if self.evaluation.is_due(round_, self.training.rounds):
            self._measure(executor)
        return float("nan") if self.diverged else float(np.mean(losses))

    def open(self, executor: Executor) -> None:
        """Let all clients that take part in training do what the method has them do before the first round, if any."""
        if OPENING in self.trainer.parts and (done := self._train(executor, 0, self._members, (OPENING,))):
            updates, personal, _ = done
            self.server.server = self.method.end_warmup(self._server(0), self.roles, updates)
            self.personal.update(personal)

    def _train(
        self, executor: Executor, round_: int, participants: Sequence[int], parts: Sequence[int]
    ) -> tuple[list[Update], dict[int, Tensors], list[float]] | None:
        """Train clients in some parts; return their updates, what they keep, and losses, or None when one diverged."""
        exchanged = self.roles.shared | self.roles.generated
        sent: dict[int, Tensors] = {}
        updates, personal, losses = [], {}, []
        try:
            for outcome in self._trained(executor, round_, self._jobs(participants, sent), parts):
                client = outcome.client
                returned = pick(outcome.model, exchanged)
                samples, steps = len(self.data.train[client]), self.trainer.steps(client)
                updates.append(Update(client, samples, sent=sent.pop(client), returned=returned, steps=steps))
                personal[client] = pick(outcome.model, self.kept)
                losses.append(outcome.loss)
        except Diverged as diverged:
            self.diverged = diverged
            return None
        return updates, personal, losses

    def _trained(self, executor: Executor, round_: int, jobs: Iterator[Job], parts: Sequence[int]) -> Iterator[Outcome]:
        """Train clients in some parts, each of which begins with what the one before it ends with."""
        *before, last = parts
        for part in before:
            done = executor.train(round_, jobs, part)
            jobs = ((one.client, {name: one.model[name] for name in self.carried}) for one in done)
        return executor.train(round_, jobs, last)

    def _jobs(self, participants: Sequence[int], sent: dict[int, Tensors]) -> Iterator[Job]:
        """Yield what each participant receives; the part that goes back to the server is also noted in `sent`."""
        exchanged = self.roles.shared | self.roles.generated
        made = self.method.generate(self._server(self.round), participants)
        for client, generated in zip(participants, made, strict=True):
            received = self._assemble(client, generated)
            sent[client] = pick(received, exchanged)
            yield client, received

    def _assemble(self, client: int, generated: Tensors) -> Tensors:
        """Return the client's state: fixed, shared, generated and its kept entries, the model's in its order, facts."""
        parts = {**self.fixed, **self.server.server.shared, **generated, **self.facts.of(client, self.round + 1)}
        (kept,) = move([self.personal[client]], self.data.device)
        return {name: kept[name] if name in kept else parts[name] for name in self.carried}

    def _server(self, round_: int) -> Server:
        """Return the server as a method is given it, when so many rounds are done."""
        return replace(self.server.server, federation=self.facts.federation, round=round_)

    def _measure(self, executor: Executor) -> None:
        """Measure all clients after the round that has been done."""
        try:
            with during("measuring"):
                scores = self._score(executor)
        except Diverged as diverged:  # in tuning
            self.diverged = diverged
            return
        lost = np.flatnonzero(~np.isfinite(scores.values[:, COLUMNS.index("loss")].sum(0)))
        if len(lost):  # the last local step can lose a model whose loss before it was finite
            self.diverged = Diverged(self.round, int(lost[0]))
        else:
            self.history.add(self.round, scores)

    def _score(self, executor: Executor) -> Scores:
        """Return the scores of all clients. Raises :class:`Diverged` for a loss in tuning."""
        method = self.method
        uses_facts = method.facts and type(method).predict is not Method.predict  # facts differ by client
        if not (self.kept or self.roles.generated or self.trainer.tuning or method.remembers or uses_facts):
            return executor.score_shared(method.eval_state(self._assemble(0, {})))
        jobs = ((client, self.trainer.measured(state)) for client, state in self._own_states())
        if self.trainer.tuning is None:
            return executor.score_each(jobs)
        scores: list[SplitScores] = []
        for some in _batched(jobs):
            tuned = executor.train(self.round, some, TUNING)
            scores += executor.score_each([(one.client, one.model) for one in tuned]).clients()
        return Scores.join(scores)

    def _own_states(self) -> Iterator[Job]:
        """Yield every client with its own state, made a few at a time."""
        for some in _batched(range(self.data.clients)):
            for client, generated in zip(some, self.method.generate(self._server(self.round), some), strict=True):
                yield client, self._assemble(client, generated)

    def subject(self, kinds: Sequence[int] | None) -> Subject:
        """Return the run as an analysis sees it."""

        def state(client: int) -> Tensors:
            (generated,) = self.method.generate(self._server(self.round), [client])
            return self._assemble(client, generated)

        return Subject(self.trainer, self.groups, self.round, self._server(self.round), state, kinds)

    def result(self, findings: Findings) -> Result:
        """Return what the run leaves behind, with what analyses found."""
        exchanged = self.roles.shared | self.roles.generated
        cost = Cost(
            *self.traffic.mean(),
            stored=count(self.kept),
            received=count(pick(self.carried, exchanged)),
            server=count_server(self.server.server),
            macs=step_macs(self.trainer, self.subject(None).state(0)),
        )
        return Result(
            **columns(self.history),
            positions=self.data.positions,
            rounds=self.round,
            diverged=self.diverged,
            parameters=sum(self.initial[name].numel() for name in self.groups.parameters),
            cost=cost,
            resumed_from=self.resumed_from,
            inherited=self.inherited,
            weights={**self.fixed, **final_weights(self.server.server, self.personal)},
            findings=findings,
            notes=tuple(getattr(self.model, "notes", ())),
        )

    def resume(self, checkpoints: CheckpointFolder) -> None:
        """Continue from the newest good checkpoint, or from where an earlier run of the lineage ended, if any."""

        def wrong(tensors: Tensors) -> str:
            return misfit(self.parts, tensors)

        found = checkpoints.load(wrong)
        if not found and (found := checkpoints.earlier(wrong, self._continues)):
            self.inherited = True
        if found:
            self.round = self.resumed_from = found.round
            restore(self.parts, found.tensors)
            self.history.keep(self.evaluation.due(self.training.rounds))

    def _continues(self, earlier: Checkpoint) -> bool:
        """Return whether this run gets to that state, and all was measured there that it has to measure until then."""
        due = [str(one) for one in self.evaluation.due(self.training.rounds) if one <= earlier.round]
        measured = strip_prefix("history/", earlier.tensors)
        if earlier.round > self.training.rounds or not measured.keys() >= set(due):
            return False
        history = copy(self.history)
        history.restore({name: measured[name] for name in due})
        return history.stops_after(self.training.patience) in (None, earlier.round)


def _batched(items: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(items)
    while some := list(islice(rest, _GENERATED)):
        yield some


def sample_cohort(members: Sequence[int], size: int, seed: int, round_: int) -> list[int]:
    """Draw clients that may train without replacement for a round of a run; ascending."""
    chosen = generator(seed, "sampling", round_).choice(len(members), size=size, replace=False)
    return sorted(np.array(members)[chosen].tolist())


def _check(method: Method, training: Training, data: FederatedData) -> None:
    """Raise :class:`UserError` where the settings do not go with the method or the data."""
    if training.augments and data.is_text:
        raise UserError("training.augment_crop, _flip and _rotation are of images; the dataset is of text")
    if training.class_weights != "none" and not method.weighs_classes:
        raise no_class_weights(method)
    if method.plain_sgd and training.beyond_sgd:
        raise UserError(
            f"method {name_of(method)}: its local steps are plain SGD's by definition, and "
            f"training.{training.beyond_sgd} makes them others"
        )


def _check_detection(method: Method, training: Training) -> None:
    """Raise :class:`UserError` for methods and settings that go by one label per sample, which boxes are not."""
    changed = [part for part in ("predict", "predictor") if getattr(type(method), part) is not getattr(Method, part)]
    if "class_counts" in method.facts or changed or method.remembers:
        why = "makes predictions of its own" if changed else "knows samples by their one class"
        raise UserError(f"method {name_of(method)}: it {why}, so it does not go with a detector")
    if training.augments:
        raise UserError(
            "training.augment_crop, _flip and _rotation do not move boxes, so they do not go with a detector"
        )
    if training.class_weights != "none":
        raise UserError(
            "training.class_weights are of the cross-entropy of one label, so they do not go with a detector"
        )
