"""Clients that join when training is over."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflcore.analyses import ANALYSES
from pflcore.engine.analysis import Analysis, Finding, Subject
from pflcore.engine.client import differentiate
from pflcore.engine.evaluation import score_client
from pflcore.errors import UserError
from pflcore.groups import Tensors, strip_prefix
from pflcore.method import MOMENTA, OWN, Batch, name_of
from pflcore.methods.hypernetworks import HypernetworkMethod
from pflcore.options import option
from pflcore.seeds import generator

PARTS = ("embedding", "hypernetwork", "head", "personal", "all")  # what a novel client can tune
_EMBEDDING = "hyper/embedding"
_STREAM = "adaptation"
_DROPOUT = 2  # tells its masks from those of rounds, which have no such number, and of tuning, which have a 1


@ANALYSES.register
class Adaptation(Analysis):
    """How well clients that took no part in training can join, by tuning on their own samples.

    What is shared stays as training left it; a client tunes one part alone by plain SGD and is measured after every
    epoch. Needs novel clients. The paper gives neither epochs nor learning rate.
    """

    citation = "Li et al., FedTP, TNNLS 2023, study of novel clients"
    title = "Adaptation to novel clients"
    smoke: ClassVar[dict[str, Any]] = {"epochs": 2}

    parts: tuple[str, ...] = option(
        ("personal",), choices=PARTS, help="What novel clients tune, each from the same start."
    )
    epochs: int = option(10, ge=1, help="Passes of a novel client over its training samples.")
    lr: float = option(0.01, gt=0, help="Learning rate of tuning, which is plain SGD.")

    def check(self, subject: Subject) -> None:
        novel = subject.trainer.data.novel
        if not novel:
            needs = "clients that take no part in training; raise the partition's novel_share"
            raise UserError(f"analyses: 'adaptation' needs {needs}")
        if not self.parts:
            raise UserError("adaptation.parts: nothing is to be tuned; name a part, or leave the analysis out")
        for client in sorted(novel):
            subject.trainer.local.epoch_steps(client)  # says so if it cannot train
        novel_client = NovelClient(subject, min(novel))
        for part in self.parts:
            if novel_client.start(part) is None:
                has = ", ".join(one for one in PARTS if novel_client.start(one)) or "nothing"
                none = f"clients of method {name_of(subject.trainer.method)} are measured with no part {part!r}"
                raise UserError(f"adaptation.parts: {none}; what can be tuned: {has}")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield, for each novel client and part, ``<part>.correct`` and ``<part>.total`` after 0, 1, … epochs.

        A model whose loss is no longer finite is right in none of them.
        """
        for client in sorted(subject.trainer.data.novel):
            novel_client = NovelClient(subject, client)
            for part in dict.fromkeys(self.parts):
                scores = np.array(list(novel_client.adapt(part, self.epochs, self.lr)), np.float64)
                yield Finding(client, f"{part}.correct", scores[:, 0])
                yield Finding(client, f"{part}.total", scores[:, 1])


class Start(NamedTuple):
    """Where tuning begins: what SGD moves, and what makes the client's state of such tensors.

    Running statistics in that state are updated in place, those in `moving`, which belong to the part; all others stay.
    """

    tuned: Tensors
    build: Callable[[Tensors], Tensors]
    moving: frozenset[str] = frozenset()


class NovelClient:
    """A client that took no part in training.

    It receives what training made of the shared part. The personal part of its model is as all clients' was at the
    beginning; copies of the model that a method keeps beside it (Ditto, pFedMe, APFL, FedRoD's second classifier)
    are copies of what it received. A hypernetwork generates for it from a fresh embedding, normally distributed.
    """

    def __init__(self, subject: Subject, client: int) -> None:
        self.subject, self.client = subject, client
        self.trainer = copy.copy(subject.trainer)
        self.trainer.training = replace(self.trainer.training, local_epochs=1, local_steps=None)
        self.trainer.local = replace(self.trainer.local, training=self.trainer.training, stream=_STREAM)
        self.method = self.trainer.method
        state = subject.state(client)
        self.generated: dict[str, Tensor] = {}
        if isinstance(self.method, HypernetworkMethod):
            width = subject.server.extra[_EMBEDDING].shape[1]
            drawn = generator(self.trainer.seed, f"{_STREAM} embedding", client).standard_normal((1, width), np.float32)
            self.generated = {_EMBEDDING: torch.from_numpy(drawn).to(self.trainer.data.device)}
            with torch.no_grad():
                state = {**state, **self._generate(self.generated)}
        self.state = {name: state.get(name.removeprefix(OWN), tensor) for name, tensor in state.items()}

    def start(self, part: str) -> Start | None:
        """Return where the tuning of a part, one of :data:`PARTS`, begins; None when there is none."""
        if part not in ("embedding", "hypernetwork"):
            return self._start_of_model(part)
        if not self.generated:
            return None
        kept = self.subject.server.extra.items() if part == "hypernetwork" else ()
        tuned = {name: tensor for name, tensor in kept if not name.startswith(MOMENTA)} | self.generated
        return Start(tuned, lambda moved: {**self.state, **self._generate(moved)})

    def _start_of_model(self, part: str) -> Start | None:
        """Return where tuning begins of those entries of a part, of the model itself or of copies that are kept beside
        it, that its predictions depend on."""
        trainer, data, groups = self.trainer, self.trainer.data, self.subject.groups
        chosen = trainer.entries if part == "all" else trainer.roles.personal
        if part == "head":
            chosen = groups.select(("head",)) if "head" in groups.names() else frozenset()
        copies = strip_prefix(OWN, self.state).keys() & (trainer.entries if part == "personal" else chosen)
        names = sorted({*chosen, *(f"{OWN}{name}" for name in copies)})
        parameters = {name: self.state[name] for name in names if name.removeprefix(OWN) in trainer.parameters}
        if not parameters:
            return None
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        trainer.model.eval()
        logits = self._predict({**self.state, **leaves}, data.batch(data.train[self.client][:1]).inputs)
        if not logits.requires_grad:
            return None
        slopes = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
        used = {name: parameters[name] for name, slope in zip(leaves, slopes, strict=True) if slope is not None}
        moving = frozenset(name for name in names if self._is_statistic(name))
        state = {name: tensor.clone() if name in moving else tensor for name, tensor in self.state.items()}
        return Start(used, lambda tuned: {**state, **tuned}, moving)

    def adapt(self, part: str, epochs: int, lr: float) -> Iterator[tuple[int, int]]:
        """Yield correct predictions and predictions on its test samples, before the first epoch and after each."""
        start, trainer = self.start(part), self.trainer
        assert start is not None  # checked before training
        tuned = start.tuned
        yield self._score(start.build(tuned))
        for epoch in range(1, epochs + 1):
            # Noise that is drawn anew each round is not that of any round of training.
            round_ = self.subject.round + epoch
            for step, batch in enumerate(trainer.data.batches(trainer.local.batches(epoch, self.client), round_)):
                slopes = self._slopes(start, tuned, batch, (round_, self.client, step))
                # A gradient is let go when it has been used: those of a hypernetwork take as much memory as it does.
                tuned = {name: torch.sub(tensor, slopes.pop(name), alpha=lr) for name, tensor in tuned.items()}
            yield self._score(start.build(tuned))

    def _slopes(self, start: Start, tuned: Tensors, batch: Batch, ids: tuple[int, int, int]) -> Tensors:
        """Return the gradient of the mean cross-entropy of its predictions with respect to the tuned tensors."""
        self.trainer.model.train()

        def loss(moved: Tensors) -> tuple[Tensor, Tensors]:
            state = {
                name: tensor.clone() if self._is_statistic(name) and name not in start.moving else tensor
                for name, tensor in start.build(moved).items()
            }
            return self.trainer.task.loss(self._predict(state, batch.inputs, ids), batch.labels), {}

        return differentiate(loss, tuned)[0]

    def _predict(self, state: Tensors, inputs: Tensor, ids: tuple[int, int, int] | None = None) -> Tensor:
        """Return the logits that it is measured by; with `ids` (round, client, step) under dropout's masks for them."""
        trainer = self.trainer
        passes = itertools.count()

        def features(entries: Tensors, batch: Tensor) -> tuple[Tensor, Tensor]:
            if ids is not None:
                trainer.noise.load(trainer.noise.draw(len(batch), trainer.seed, *ids, next(passes), _DROPOUT))
            return trainer.features(entries, batch)

        own = self.method.eval_state(state)
        return self.method.predict(trainer.view(features, own), own, inputs)

    def _score(self, state: Tensors) -> tuple[int, int]:
        """Return correct predictions, none of them when the loss is not finite, and predictions."""
        with torch.no_grad():
            correct, total, loss = score_client(self.trainer, self.method.eval_state(state), self.client)[0][:3]
        return int(correct) if math.isfinite(loss) else 0, int(total)

    def _generate(self, moved: Tensors) -> Tensors:
        """Return what the server's hypernetwork generates, for this client alone, with some of its entries replaced."""
        assert isinstance(self.method, HypernetworkMethod)
        server = self.subject.server
        made = self.method.make(replace(server, extra={**server.extra, **self.generated, **moved}), [0])
        return {name: tensor[0] for name, tensor in made.items()}

    def _is_statistic(self, name: str) -> bool:
        """Return whether an entry is a buffer of the model or of a copy of it."""
        plain = name.removeprefix(OWN)
        return plain in self.trainer.entries and plain not in self.trainer.parameters
