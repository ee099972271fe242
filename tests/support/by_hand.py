"""Federated rounds as anyone would write them: a module and PyTorch's SGD per client, means, and the comparison."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pflcore.groups import add_prefix
from pflcore.seeds import generator
from support.tiny import NormNet, backbone, create, method, normalised, run, sampled, suited, training

State = dict[str, Tensor]
SEED = 3


class Rounds:
    """A run written out: one module, which is lent to one client after the other.

    `x` is the server's model without what clients keep, `own`: entries whose names begin so; `features` is what the
    classifier got in the last forward pass, one row per prediction; `train_losses` are means over the steps of clients
    that trained, by round and client.
    """

    def __init__(self, net="convnet", settings=None, data=None, own="", entry=None):
        options = {"dropout": 0.0} if net in ("tiny_vit", "language_transformer") else {}
        self.name, self.net = net, NormNet() if net == "norm" else backbone(net, **options)
        self.data, self.settings = data or suited(self.net), settings or training(rounds=3)
        self.model, _ = create(self.net, SEED, entry)
        self.initial, self.personal = self.state(), own
        mine = {name: tensor for name, tensor in self.initial.items() if own and name.startswith(own)}
        self.x = {name: tensor for name, tensor in self.initial.items() if name not in mine}
        self.own = [dict(mine) for _ in range(self.data.clients)]
        self.features, self.taken, self.train_losses = torch.empty(0), [], []
        self.head = self.model.get_submodule("head")
        self.head.register_forward_pre_hook(self._note)

    def _note(self, _, given):
        self.features = given[0].flatten(0, -2)

    def __iter__(self):
        for round_ in range(1, self.settings.rounds + 1):
            self.train_losses.append([math.nan] * self.data.clients)
            yield round_, sampled(SEED, round_, self.data.clients, self.settings)

    def average(self, client, averaging="samples"):
        """All rounds of a server that takes means; `client` gives the model of a client after a round."""
        for round_, cohort in self:
            self.x = self.mean({i: client(i, round_) for i in cohort}, averaging)

    # --- the module ------------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def parameters(self, *, head=None):
        """Names of the classifier's parameters, of all others, or of both."""
        return [n for n, _ in self.model.named_parameters() if head is None or n.startswith("head.") == head]

    def zeros(self) -> State:
        """Of what is shared and trained."""
        return {name: torch.zeros_like(self.x[name]) for name in self.parameters() if name in self.x}

    def lend(self, *states):
        """The module with these entries, in training mode."""
        merged = {name: tensor for one in (self.initial, *states) for name, tensor in one.items()}
        self.model.load_state_dict({name: merged[name] for name in self.initial})
        return self.model.train()

    def labels(self, rows):
        return (self.data.inputs[rows][:, 1:].long() if self.data.is_text else self.data.labels[rows]).flatten()

    def logits(self, rows):
        """One row per prediction."""
        inputs = self.data.inputs[rows][:, :-1].long() if self.data.is_text else normalised(self.data, rows)
        return self.model(inputs).flatten(0, -2)

    def look(self, state, rows):
        """Logits and features of another model, which nobody trains; statistics are of the batch."""
        before, mode = self.state(), self.model.training
        with torch.no_grad():
            self.lend(state)
            seen = self.logits(rows), self.features
        self.lend(before).train(mode)
        return seen

    def see(self, steps):
        """Features and labels of some batches in training mode, after which running statistics are what they were."""
        state = self.state()
        seen = [(self.look(state, rows)[1], self.labels(rows)) for rows in steps]
        features, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        return features, labels

    def cross_entropy(self, rows):
        return F.cross_entropy(self.logits(rows), self.labels(rows))

    def slopes(self, state, rows) -> State:
        """The gradient of the cross-entropy at a model."""
        self.lend(state).zero_grad()
        self.cross_entropy(rows).backward()
        return {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}

    # --- local training --------------------------------------------------------------------------------------------

    def rows(self, client, round_):
        """The batches of a client's round."""
        return self.passes(client, "batches", round_, self.settings.local_epochs)

    def passes(self, client, stream, round_, count=1, share=1.0):
        """The batches of other passes; the streams of a round's phases are numbered from 3."""
        order, rows = generator(SEED, stream, round_, client), self.data.train[client]
        if share < 1:
            rows = rows[order.permutation(len(rows))[: int(share * len(rows))]]
        size = self.settings.batch_size
        return [batch for _ in range(count) for batch in torch.split(rows[order.permutation(len(rows))], size)]

    def descend(
        self, steps, loss=None, *, moved=None, beside=(), decay=0.0, lr=None, pull=None, statistics=True
    ) -> State:
        """The model after steps of SGD on a loss of rows, by default the cross-entropy.

        `moved` parameters are trained, by default all, and tensors `beside` the model, which decay by `decay` more;
        `pull` is added to the gradients of parameters that are shared.
        """
        before, named, usual = self.state(), dict(self.model.named_parameters()), self.settings.weight_decay
        trained = [p for n, p in named.items() if moved is None or n in moved]
        groups = [{"params": trained, "weight_decay": usual}]
        if others := list(beside):
            groups.append({"params": others, "weight_decay": usual + decay})
        sgd, self.taken = torch.optim.SGD(groups, lr or self.settings.lr, self.settings.momentum), []
        for rows in steps:
            sgd.zero_grad()
            self.model.zero_grad()
            value = (loss or self.cross_entropy)(rows)
            value.backward()
            self.taken.append(value.item())
            for name, parameter in named.items():
                if pull and name in self.x and parameter.grad is not None:
                    parameter.grad += pull(name, parameter.detach())
            sgd.step()
        if not statistics:
            self.lend(self.state(), {n: one for n, one in before.items() if n not in named})
        return self.state()

    def train(self, client, round_, start=None, **options) -> State:
        """A client's model after its round; its own entries are kept. `options` are those of :meth:`descend`."""
        self.lend(self.x if start is None else start, self.own[client] if start is None else {})
        ended = self.descend(self.rows(client, round_), **options)
        self.train_losses[-1][client] = sum(self.taken) / len(self.taken)
        self.own[client] = {name: ended[name] for name in self.own[client]}
        return ended

    # --- the server, and the comparison ----------------------------------------------------------------------------

    def shares(self, cohort, averaging="samples"):
        sizes = {client: len(self.data.train[client]) if averaging == "samples" else 1 for client in cohort}
        return {client: size / sum(sizes.values()) for client, size in sizes.items()}

    def mean(self, ended, averaging="samples", of=None) -> State:
        """The mean of what is shared; counters are those of the first."""
        shares, first = self.shares(ended, averaging), next(iter(ended.values()))
        mean = {name: first[name] for name in (self.x if of is None else of)}
        for name in [name for name, tensor in mean.items() if tensor.is_floating_point()]:
            mean[name] = sum(share * ended[client][name] for client, share in shares.items())
        return mean

    def run(self, name, executor="sequential", **options):
        """The run by the engine of a method, or of one by its name."""
        if isinstance(name, str):
            own = {"also_personal": (self.personal.rstrip("."),)} if self.personal else {}
            name = method(name, **own, **options)
        return run(name, self.net, self.data, training=self.settings, seed=SEED, executor=executor)

    def loss(self, client, *states, logits=None):
        """The mean loss of a model over a client's test samples, maybe of other logits than its own."""
        self.lend(*states).eval()
        rows = self.data.test[client]
        made = self.logits(rows)
        return float(F.cross_entropy(logits(client, made) if logits else made, self.labels(rows)).detach())

    def check(self, result, *beside, kept=(), models=None, logits=None, measured=True, **tolerance):
        """The run ended with these models, what is `beside` them, what clients have `kept` below ``own/``.

        They are measured with `models`, by default the server's and their own entries, and their own or other `logits`.
        """
        near(result.weights, self.x, *beside, **tolerance)
        for i, own in enumerate(self.own):
            near(result.weights, add_prefix(f"client.{i}.", own), **tolerance)
        for i, own in enumerate(kept):
            near(result.weights, add_prefix(f"client.{i}.own/", own), **tolerance)
        if measured:
            models = models or [self.x | own for own in self.own]
            losses(result, [self.loss(client, model, logits=logits) for client, model in enumerate(models)])


def near(found, *expected, rtol=1e-3, atol=2e-5):
    """All expected entries are there and have these values."""
    for name, tensor in ((name, tensor) for one in expected for name, tensor in one.items()):
        torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=atol, msg=f"{name}: {{}}".format)


def losses(result, expected, rel=1e-3):
    """Those of all clients in the last round."""
    assert result.loss[-len(expected) :].tolist() == pytest.approx(expected, rel=rel)


def near_rows(result, prefix, row, expected, **tolerance):
    """What the server has of a client or a cluster, in a row of each of its tensors, is this."""
    near({name: result.weights[f"server.{prefix}/{name}"][row] for name in expected}, expected, **tolerance)
