"""The analysis of clients that join after training."""

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

PARTS = ("embedding", "hypernetwork", "head", "personal", "all")  # parts that a novel client can tune
_EMBEDDING = "hyper/embedding"
_STREAM = "adaptation"
_DROPOUT = 2  # in the id of dropout masks here; masks of rounds have no such number, masks of a method's tuning have 1


@ANALYSES.register
class Adaptation(Analysis):
    """How well clients that took no part in training can join, by tuning on their own samples.

    The shared state stays as training left it. A client tunes one part alone, in its own copy, by plain SGD, and is
    measured before tuning and after every epoch. Needs novel clients. The paper gives neither epochs nor learning rate.
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
            raise UserError("adaptation.parts: no part to tune; name one, or leave the analysis out")
        for client in sorted(novel):
            subject.trainer.local.epoch_steps(client)  # raises an error if the client cannot train
        novel_client = NovelClient(subject, min(novel))
        for part in self.parts:
            if novel_client.start(part) is None:
                parts = ", ".join(name for name in PARTS if novel_client.start(name)) or "nothing"
                problem = f"clients of method {name_of(subject.trainer.method)} are measured with no part {part!r}"
                raise UserError(f"adaptation.parts: {problem}; what can be tuned: {parts}")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield, for each novel client and part, ``<part>.correct`` and ``<part>.total`` after 0, 1, … epochs. A model
        whose loss is no longer finite counts as wrong in all predictions."""
        for client in sorted(subject.trainer.data.novel):
            novel_client = NovelClient(subject, client)
            for part in dict.fromkeys(self.parts):
                scores = np.array(list(novel_client.adapt(part, self.epochs, self.lr)), np.float64)
                yield Finding(client, f"{part}.correct", scores[:, 0])
                yield Finding(client, f"{part}.total", scores[:, 1])


class Start(NamedTuple):
    """The start of tuning: the tensors that SGD changes, and a function from such tensors to the client's state.

    Running statistics in `moving`, which belong to the part, are updated in place in that state; all others stay.
    """

    tuned: Tensors
    build: Callable[[Tensors], Tensors]
    moving: frozenset[str] = frozenset()


class NovelClient:
    """A client that took no part in training.

    It receives the trained shared part. The personal part of its model has the initial values of all clients. Copies of
    the model that a method keeps on clients (Ditto, pFedMe, APFL, FedRoD's second classifier) start as copies of what
    it received. A hypernetwork generates its parameters from a new, normally distributed embedding.
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
        """Return the start of tuning a part, one of :data:`PARTS`; None if the client has no such part."""
        if part not in ("embedding", "hypernetwork"):
            return self._start_of_model(part)
        if not self.generated:
            return None
        entries = self.subject.server.extra.items() if part == "hypernetwork" else ()
        tuned = {name: tensor for name, tensor in entries if not name.startswith(MOMENTA)} | self.generated
        return Start(tuned, lambda moved: {**self.state, **self._generate(moved)})

    def _start_of_model(self, part: str) -> Start | None:
        """Return the start for those entries of a part, in the model or its copies, that affect predictions, if any."""
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
        grads = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
        tuned = {name: parameters[name] for name, grad in zip(leaves, grads, strict=True) if grad is not None}
        moving = frozenset(name for name in names if self._is_statistic(name))
        state = {name: tensor.clone() if name in moving else tensor for name, tensor in self.state.items()}
        return Start(tuned, lambda tuned: {**state, **tuned}, moving)

    def adapt(self, part: str, epochs: int, lr: float) -> Iterator[tuple[int, int]]:
        """Yield the correct and all predictions on its test samples, before the first epoch and after each epoch."""
        start, trainer = self.start(part), self.trainer
        assert start is not None  # checked before training
        tuned = start.tuned
        yield self._score(start.build(tuned))
        for epoch in range(1, epochs + 1):
            # Noise and dropout get rounds after those of training, so that they differ from all of its draws.
            round_ = self.subject.round + epoch
            for step, batch in enumerate(trainer.data.batches(trainer.local.batches(epoch, self.client), round_)):
                grads = self._gradients(start, tuned, batch, (round_, self.client, step))
                # Gradients are freed after use, because those of a hypernetwork are as large as the hypernetwork.
                tuned = {name: torch.sub(tensor, grads.pop(name), alpha=lr) for name, tensor in tuned.items()}
            yield self._score(start.build(tuned))

    def _gradients(self, start: Start, tuned: Tensors, batch: Batch, ids: tuple[int, int, int]) -> Tensors:
        """Return the gradient of the mean loss of its predictions with respect to the tuned tensors."""
        self.trainer.model.train()

        def loss(moved: Tensors) -> tuple[Tensor, Tensors]:
            state = {
                name: tensor.clone() if self._is_statistic(name) and name not in start.moving else tensor
                for name, tensor in start.build(moved).items()
            }
            return self.trainer.task.loss(self._predict(state, batch.inputs, ids), batch.labels), {}

        return differentiate(loss, tuned)[0]

    def _predict(self, state: Tensors, inputs: Tensor, ids: tuple[int, int, int] | None = None) -> Tensor:
        """Return the measured logits; if `ids` (round, client, step) are given, with the dropout masks for them."""
        trainer = self.trainer
        passes = itertools.count()

        def features(entries: Tensors, batch: Tensor) -> tuple[Tensor, Tensor]:
            if ids is not None:
                trainer.noise.load(trainer.noise.draw(len(batch), trainer.seed, *ids, next(passes), _DROPOUT))
            return trainer.features(entries, batch)

        measured = self.method.eval_state(state)
        return self.method.predict(trainer.view(features, measured), measured, inputs)

    def _score(self, state: Tensors) -> tuple[int, int]:
        """Return the numbers of correct and of all predictions; none is correct if the loss is not finite."""
        with torch.no_grad():
            correct, total, loss = score_client(self.trainer, self.method.eval_state(state), self.client)[0][:3]
        return int(correct) if math.isfinite(loss) else 0, int(total)

    def _generate(self, moved: Tensors) -> Tensors:
        """Return what the server's hypernetwork, with some entries replaced by `moved`, generates for this client."""
        assert isinstance(self.method, HypernetworkMethod)
        server = self.subject.server
        generated = self.method.make(replace(server, extra={**server.extra, **self.generated, **moved}), [0])
        return {name: tensor[0] for name, tensor in generated.items()}

    def _is_statistic(self, name: str) -> bool:
        """Return whether an entry is a buffer of the model or of one of its copies."""
        plain = name.removeprefix(OWN)
        return plain in self.trainer.entries and plain not in self.trainer.parameters
