"""The state of one run and the transitions between its rounds: train a cohort, update the server, measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from torch import nn

from pflcore.backbones import Backbone
from pflcore.cohorts import sample_cohort
from pflcore.data.federation import FederatedData
from pflcore.data.upload import move
from pflcore.detection.task import Detection
from pflcore.engine.analysis import Findings, Subject
from pflcore.engine.checkpoint import Checkpoint, CheckpointFolder
from pflcore.engine.cost import Cost, count, count_server, step_macs
from pflcore.engine.detection import check_detection
from pflcore.engine.divergence import Diverged
from pflcore.engine.evaluate import PLAIN, PRECISE, Both, Scores
from pflcore.engine.executors.executor import Executor
from pflcore.engine.facts import Facts
from pflcore.engine.parts import make_trainer
from pflcore.engine.result import Result, columns, final_weights
from pflcore.engine.server_optimizers import ServerOptimizer
from pflcore.engine.state import ClientStates, History, ServerState, Stateful, Traffic, misfit, restore
from pflcore.engine.stopping import stops_after
from pflcore.engine.trainer import OPENING, TUNING, Job, Outcome, passed_over
from pflcore.errors import UserError
from pflcore.faults import during
from pflcore.groups import Groups, Roles, Tensors, add_prefix, pick, strip_prefix
from pflcore.method import COMMON, OWN, Server, Update, name_of
from pflcore.methods import Method
from pflcore.ownership import groups_of, roles_of
from pflcore.settings import Evaluation, Training, impatience

_Done = tuple[list[Update], dict[int, Tensors], list[float]]

# Clients whose generated entries are made together when all are measured.
_GENERATED = 16


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
        self._check(method, training, data)
        if detects:
            check_detection(method, training)
        self.initial: Tensors = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        # Parameters that nobody trains are in no checkpoint, and never sent.
        self.fixed: Tensors = pick(self.initial, groups.fixed)
        self.trainer = make_trainer(self.model, groups, data, method, training, seed)
        self.facts = Facts(self.trainer, roles, self.initial)
        told = self.facts.federation
        # What is exchanged beside the model has the role of its shared entries.
        common = add_prefix(COMMON, self._placed(method.init_shared(self.initial, roles, told)))
        self.roles: Roles = replace(roles, shared=roles.shared | common.keys())
        server = method.init_server({**self.initial, **common}, self.roles, told)
        self.server = ServerState(server, data.device)
        trained = {name: tensor for name, tensor in server.shared.items() if name in groups.parameters}
        self.server_optimizer = ServerOptimizer(training, name_of(method), trained)
        # What stays on the client: the personal part of its model, and what the method keeps beside it.
        beside = add_prefix(OWN, method.init_client(self.initial, roles, told))
        self.kept: Tensors = {**pick(self.initial, self.roles.personal), **beside}
        self.personal = ClientStates(self.kept, data.clients, scratch)
        # The names, shapes and types of a client's state, as at the beginning.
        self.carried: Tensors = {**self.initial, **common, **self.kept, **self.facts.of(0, 1)}
        self.history = History(data.clients, bool(data.validation), PRECISE if detects else PLAIN)
        self.traffic = Traffic()
        self.parts: dict[str, Stateful] = {
            "server": self.server,
            "server_optimizer": self.server_optimizer,
            "personal": self.personal,
            "traffic": self.traffic,
            "history": self.history,
        }

    @staticmethod
    def _check(method: Method, training: Training, data: FederatedData) -> None:
        """Raises :class:`UserError` where the settings do not go with the method or the data."""
        if training.augments and data.is_text:
            raise UserError("training.augment_crop, _flip and _rotation are of images; the dataset is of text")
        if training.class_weights != "none" and not method.weighs_classes:
            raise passed_over(method)
        if method.plain_sgd and training.beyond_sgd:
            raise UserError(
                f"method {name_of(method)}: its local steps are plain SGD's by definition, and "
                f"training.{training.beyond_sgd} makes them others"
            )

    @property
    def over(self) -> bool:
        """Whether it has come to its last round, diverged, or lost its patience."""
        return self.round >= self.training.rounds or self.diverged is not None or self._stops(self.history) is not None

    def _stops(self, history: History) -> int | None:
        return stops_after(history, self.training.patience, self.data.novel)

    def advance(self, executor: Executor) -> float:
        """Run one round; the mean local loss of its participants.

        When local training diverges, the state before the round stays. A loss that is first seen not to be finite when
        the models are measured is a divergence too, but leaves the state after the round.
        """
        round_ = self.round + 1
        members = self._members
        sampled = sample_cohort(members, self.training.cohort_size(len(members)), self.seed, round_)
        chosen = self.method.participants(sampled, self.data.clients)
        participants = [client for client in chosen if client not in self.data.novel]
        if (done := self._done(executor, round_, participants, self.trainer.order)) is None:
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
        if OPENING in self.trainer.parts and (done := self._done(executor, 0, self._members, (OPENING,))):
            updates, personal, _ = done
            self.server.server = self.method.end_warmup(self._server(0), self.roles, updates)
            self.personal.update(personal)

    def _done(self, executor: Executor, round_: int, participants: Sequence[int], parts: Sequence[int]) -> _Done | None:
        """What clients return, what they keep, and their losses, after some parts; None when one diverged."""
        exchanged = self.roles.shared | self.roles.generated
        sent: dict[int, Tensors] = {}
        updates, personal, losses = [], {}, []
        try:
            for outcome in self._trained(executor, round_, self._jobs(participants, sent), parts):
                update = Update(
                    outcome.client,
                    len(self.data.train[outcome.client]),
                    sent=sent.pop(outcome.client),
                    returned=pick(outcome.model, exchanged),
                    steps=self.trainer.steps(outcome.client),
                )
                updates.append(update)
                personal[outcome.client] = pick(outcome.model, self.kept)
                losses.append(outcome.loss)
        except Diverged as diverged:
            self.diverged = diverged
            return None
        return updates, personal, losses

    def _trained(self, executor: Executor, round_: int, jobs: Iterator[Job], parts: Sequence[int]) -> Iterator[Outcome]:
        """Clients after some parts, each of which begins with what the one before it ends with."""
        *before, last = parts
        for part in before:
            done = executor.train(round_, jobs, part)
            jobs = ((one.client, {name: one.model[name] for name in self.carried}) for one in done)
        return executor.train(round_, jobs, last)

    def _measure(self, executor: Executor) -> None:
        """Measure all clients after the round that has been done."""
        try:
            with during(when=f"measured after round {self.round}"):
                scores = self._score(executor)
        except Diverged as diverged:  # in tuning
            self.diverged = diverged
            return
        held_back = scores.validation.loss if scores.validation else 0.0
        lost = np.flatnonzero(~np.isfinite(scores.loss + held_back))
        if len(lost):  # the last local step can lose a model whose loss before it was finite
            self.diverged = Diverged(self.round, int(lost[0]))
        else:
            self.history.scores[self.round] = scores

    def _assemble(self, client: int, generated: Tensors) -> Tensors:
        """The client's state: fixed, shared, generated and its kept entries, the model's in its order, and facts."""
        parts = {**self.fixed, **self.server.server.shared, **generated, **self.facts.of(client, self.round + 1)}
        (kept,) = move([self.personal[client]], self.data.device)
        return {name: kept[name] if name in kept else parts[name] for name in self.carried}

    def _placed(self, tensors: Tensors) -> Tensors:
        return {name: tensor.to(self.data.device) for name, tensor in tensors.items()}

    def _server(self, round_: int) -> Server:
        """The server as a method is given it, when so many rounds are done."""
        return replace(self.server.server, federation=self.facts.federation, round=round_)

    def _jobs(self, participants: Sequence[int], sent: dict[int, Tensors]) -> Iterator[Job]:
        """What each participant receives; the part that goes back to the server is also noted in `sent`."""
        exchanged = self.roles.shared | self.roles.generated
        made = self.method.generate(self._server(self.round), participants)
        for client, generated in zip(participants, made, strict=True):
            received = self._assemble(client, generated)
            sent[client] = pick(received, exchanged)
            yield client, received

    def _score(self, executor: Executor) -> Scores:
        """The scores of all clients. Raises :class:`Diverged` for a loss in tuning."""
        method = self.method
        told = method.facts and type(method).predict is not Method.predict  # facts differ by client
        if not (self.kept or self.roles.generated or self.trainer.tuning or method.remembers or told):
            return executor.score_shared(method.eval_state(self._assemble(0, {})))
        jobs = ((client, self.trainer.measured(state)) for client, state in self._own_states())
        if self.trainer.tuning is None:
            return executor.score_each(jobs)
        scores: list[Both] = []
        while some := list(islice(jobs, _GENERATED)):
            tuned = list(executor.train(self.round, some, TUNING))
            measured = executor.score_each((one.client, one.model) for one in tuned)
            scores += [measured[index] for index in range(len(tuned))]
        return Scores.join(scores)

    def _own_states(self) -> Iterator[Job]:
        """Every client with its own state, made a few at a time: a hypernetwork is read once for each few."""
        clients = range(self.data.clients)
        for some in (clients[start : start + _GENERATED] for start in clients[::_GENERATED]):
            for client, generated in zip(some, self.method.generate(self._server(self.round), some), strict=True):
                yield client, self._assemble(client, generated)

    def accuracy(self) -> float | None:
        """The figure (0..1) of the last measurement, over the clients that take part in training."""
        if not self.history.scores:
            return None
        scores = self.history.scores[max(self.history.scores)]
        here = ~np.isin(np.arange(self.data.clients), sorted(self.data.novel))
        return scores.figure(here)

    def subject(self, kinds: Sequence[int] | None) -> Subject:
        """The run as an analysis sees it."""
        return Subject(
            trainer=self.trainer,
            groups=self.groups,
            round=self.round,
            server=self._server(self.round),
            state=self._state,
            kinds=kinds,
        )

    def _state(self, client: int) -> Tensors:
        """The client's own state."""
        (generated,) = self.method.generate(self._server(self.round), [client])
        return self._assemble(client, generated)

    def result(self, findings: Findings) -> Result:
        """What the run leaves behind, with what analyses found."""
        return Result(
            **columns(self.history),
            positions=self.data.positions,
            rounds=self.round,
            diverged=self.diverged,
            parameters=sum(self.initial[name].numel() for name in self.groups.parameters),
            cost=self._cost(),
            resumed_from=self.resumed_from,
            inherited=self.inherited,
            weights={**self.fixed, **final_weights(self.server.server, self.personal)},
            findings=findings,
            notes=tuple(getattr(self.model, "notes", ())),
        )

    def _cost(self) -> Cost:
        exchanged = self.roles.shared | self.roles.generated
        server = self.server.server
        return Cost(
            *self.traffic.mean(),
            stored=count(self.kept),
            received=count(pick(self.carried, exchanged)),
            server=count_server(server),
            macs=step_macs(self.trainer, self._state(0)),
        )

    def resume(self, checkpoints: CheckpointFolder) -> None:
        """Continue from the newest good checkpoint, or from where an earlier run of the lineage ended, if any."""
        found = checkpoints.load(self._misfit)
        if not found and (found := checkpoints.earlier(self._misfit, self._continues)):
            self.inherited = True
        if found:
            self.round = self.resumed_from = found.round
            restore(self.parts, found.tensors)
            self.history.keep(self.evaluation.due(self.training.rounds))

    def _misfit(self, tensors: Tensors) -> str:
        return misfit(self.parts, tensors)

    def _continues(self, earlier: Checkpoint) -> bool:
        """Return whether this run gets to that state, and all was measured there that it has to measure until then."""
        due = [str(one) for one in self.evaluation.due(self.training.rounds) if one <= earlier.round]
        measured = strip_prefix("history/", earlier.tensors)
        if earlier.round > self.training.rounds or not measured.keys() >= set(due):
            return False
        history = copy(self.history)
        history.restore({name: measured[name] for name in due})
        return self._stops(history) in (None, earlier.round)
