"""The contract of methods: what each of its parts is told, against numbers made by hand, under every executor; the
groups and roles of a model's state; and the page on methods."""

import inspect
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import SEED, Rounds, near
from support.tiny import backbone, create, federation, result_bytes, run, run_by_all, sampled, training
from torch import nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.client_view import FACTS
from pflcore.engine.checkpoint import CheckpointFolder
from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles
from pflcore.method import OWN, ClientView, Federation, Method, Phase, Steps, Update, average, cross_entropy, weights
from pflcore.methods._bases import OwnTuning, need_classifier, need_exchanged
from pflcore.methods.simple import FedAvg, FedPer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
CONVNET = backbone("convnet")
MEAN = "common/mean", f"{OWN}mean"


class Witness(FedAvg):
    """FedAvg whose clients note what they are told: rates of their steps, how many, the round, what they received."""

    facts = ("steps", "round")

    def init_client(self, initial, roles, federation):
        return {"rates": torch.tensor(0.0), "told": torch.zeros(2, dtype=torch.int64), "before": initial["head.bias"]}

    def begin(self, local, start):
        return {**super().begin(local, start), "noted": {"rates": torch.zeros_like(start[f"{OWN}rates"])}}

    def step(self, local, state, batch):
        rates = state["noted"]["rates"] + local.lr
        state, loss = super().step(local, state, batch)
        return {**state, "noted": {"rates": rates}}, loss

    def end(self, local, state):
        told = torch.stack([local.received["data/steps"], local.received["data/round"]])
        noted = {"rates": state["noted"]["rates"], "told": told, "before": local.received["head.bias"]}
        return {**state, "model": {**state["model"], **{f"{OWN}{name}": tensor for name, tensor in noted.items()}}}


def test_a_client_knows_its_rates_its_steps_the_round_and_what_it_received():
    settings = training(rounds=2, schedule="exponential", gamma=0.5, schedule_by="step")
    found = run_by_all(Witness(), CONVNET, training=settings, seed=SEED).weights
    lasts = {one: round_ for round_ in (1, 2) for one in sampled(SEED, round_, 3, settings)}
    before = {1: create(CONVNET, SEED)[0].state_dict()}
    before[2] = run(FedAvg(), CONVNET, training=replace(settings, rounds=1), seed=SEED).weights
    for client, round_ in lasts.items():
        steps = 2 * -(-(14, 7, 9)[client] // 5)
        rates = sum(0.05 * 0.5 ** (round_ - 1 + step / steps) for step in range(steps))
        expected = {"told": torch.tensor([steps, round_]), "rates": torch.tensor(rates)}
        expected["before"] = before[round_]["head.bias"]
        near(found, {f"client.{client}.{OWN}{name}": tensor for name, tensor in expected.items()}, rtol=1e-5, atol=0)


class Templates(FedAvg):
    """FedAvg whose clients predict the class whose training samples have the nearest mean of features."""

    remembers = True

    def predictor(self, local, state, samples):
        seen = [(local.features(state, batch.inputs)[1], batch.labels) for batch in samples.batches()]
        features, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        means = [features[labels == one].sum(0) / (labels == one).sum().clamp_min(1) for one in range(samples.classes)]
        return lambda inputs: -torch.cdist(local.features(state, inputs)[1], torch.stack(means))


class Scaled(FedAvg):
    """FedAvg whose predictions are weighed by what the client has of each class, a fact that differs by client."""

    facts = ("class_counts",)

    def predict(self, local, state, inputs):
        return local.forward(state, inputs) * local.received["data/class_counts"]


@pytest.mark.parametrize("entry", [Templates(), Scaled()])
def test_a_client_predicts_with_its_own_samples_or_facts_also_where_it_keeps_nothing(entry):
    data, settings = federation(), training(rounds=1, sample_rate=1.0)
    result = run_by_all(entry, CONVNET, data=data, training=settings, seed=SEED)
    hand = Rounds("convnet", settings, data)
    hand.lend(dict(result.weights)).eval()
    for client in range(3):
        known = hand.look(dict(result.weights), data.train[client])[1]
        with torch.no_grad():
            logits = hand.logits(data.test[client])
        labels, own = data.labels[data.test[client]], data.labels[data.train[client]]
        if isinstance(entry, Scaled):
            logits = logits * torch.tensor([int((own == one).sum()) for one in range(4)])
        else:
            means = [known[own == one].mean(0) if (own == one).any() else 0 * known[0] for one in range(4)]
            gaps = [[float((sample - mean).square().sum().sqrt()) for mean in means] for sample in hand.features]
            logits = -torch.tensor(gaps)
        assert result.correct[client] == int((logits.argmax(1) == labels).sum())
        np.testing.assert_allclose(result.loss[client], float(F.cross_entropy(logits, labels)), rtol=1e-4)


class Look(FedAvg):
    """A pass in which nothing is trained: the mean of what the classifier gets, for the client and to be exchanged."""

    def begin(self, local, start):
        seen = torch.zeros_like(next(start[name] for name in MEAN if name in start))
        return {**super().begin(local, start), "seen": {"sum": seen, "count": torch.zeros_like(seen[0])}}

    def step(self, local, state, batch):
        logits, features = local.features(state["model"], batch.inputs)
        total, count = state["seen"]["sum"] + features.sum(0), state["seen"]["count"] + len(features)
        return {**state, "seen": {"sum": total, "count": count}}, cross_entropy(logits, batch.labels)

    def end(self, local, state):
        mean = state["seen"]["sum"] / state["seen"]["count"]
        return {**state, "model": {**state["model"], **{name: mean for name in MEAN if name in state["model"]}}}


class Phased(FedPer):
    """FedPer that tunes its head on half of the samples before a round, and looks at all of them after it."""

    def init_client(self, initial, roles, federation):
        return {"mean": torch.zeros(federation.features)}

    def phases(self):
        return Phase(extra=True, epochs=2, share=0.5, roles=("personal",)), Phase(), Phase(Look(), extra=True)


def test_a_round_has_phases_before_and_after_whose_effects_are_kept():
    hand = Rounds("convnet", training(rounds=2, sample_rate=1.0, momentum=0.5), own="head.")
    result = run_by_all(Phased(), CONVNET, data=hand.data, training=hand.settings, seed=SEED)
    means = {}
    for round_, cohort in hand:
        ended = {}
        for i in cohort:
            hand.lend(hand.x, hand.own[i])
            hand.descend(hand.passes(i, "phase 3", round_, 2, 0.5), moved=hand.parameters(head=True))
            ended[i] = hand.descend(hand.rows(i, round_))
            hand.own[i] = {name: ended[i][name] for name in hand.own[i]}
            means[f"client.{i}.{OWN}mean"] = hand.see(hand.passes(i, "phase 5", round_))[0].mean(0)
        hand.x = hand.mean(ended)
    hand.check(result, means, rtol=1e-4, atol=1e-6)
    # It costs more than FedPer by what its passes take: the head's gradients alone, twice half, and a pass forward.
    plain = run(FedPer(), CONVNET, data=hand.data, training=hand.settings, seed=SEED)
    assert plain.cost.macs < result.cost.macs < 2 * plain.cost.macs


class Opened(FedAvg):
    """FedAvg before which all clients tell the mean of what the classifier gets in the initial model."""

    init_client = init_shared = Phased.init_client

    def warmup(self):
        return Phase(Look())


def test_all_clients_pass_over_their_data_before_the_first_round(tmp_path):
    data, settings = replace(federation(), novel=frozenset({1})), training(sample_rate=0.5, rounds=3)
    result = run_by_all(Opened(), CONVNET, data=data, training=settings, seed=SEED)
    hand = Rounds("convnet", settings, data)
    means = {client: hand.look(hand.initial, data.train[client])[1].mean(0) for client in (0, 2)}
    near(result.weights, {f"client.{client}.{OWN}mean": mean for client, mean in means.items()}, rtol=1e-4)
    near(result.weights, {"common/mean": (14 * means[0] + 9 * means[2]) / 23}, rtol=1e-4, atol=1e-6)
    assert "client.1.own/mean" not in result.weights
    # It changes nothing else, and a run that goes on from a checkpoint does not do it again.
    plain = run(FedAvg(), CONVNET, data=data, training=settings, seed=SEED)
    assert all(torch.equal(result.weights[name], tensor) for name, tensor in plain.weights.items())
    with CheckpointFolder(tmp_path, "it", pytest.fail) as checkpoints:
        for rounds in (2, 3):
            again = replace(settings, rounds=rounds)
            continued = run(Opened(), CONVNET, data=data, seed=SEED, training=again, checkpoints=checkpoints)
    assert continued.resumed_from == 2 and result_bytes(continued) == result_bytes(result)


class Cut(FedAvg):
    """Its round is cut into phases that train all alike."""

    def phases(self):
        return Phase(epochs=0.7), Phase(epochs=1), Phase()


def test_shares_of_a_phase_are_steps_of_the_round():
    """Without momentum, a round is what it is in one piece."""
    settings = training(schedule="exponential", gamma=0.5, schedule_by="step", augment_flip=0.5)
    cut, whole = (run_by_all(one(), backbone("tiny_vit"), training=settings) for one in (Cut, FedAvg))
    assert result_bytes(cut)["weights"] == result_bytes(whole)["weights"]


class Nameless(OwnTuning):
    """A method of nobody's registry."""


def parted(method):
    return (Phase(roles=("personal",)),)


WRONG = {
    "Method.finetune_lr says nothing without finetune_epochs": lambda: Method(finetune_lr=0.1),
    "method Nameless: finetune_": lambda: Nameless(finetune_steps=1),
    "method Nameless needs a backbone with a classifier": lambda: need_classifier(Nameless(), Federation(3, 0)),
    "method Nameless: all that it works on": lambda: need_exchanged(Nameless(), ()),
    "method Ruled: averaging": lambda: type("Ruled", (Method,), {"own_averaging": None})(averaging="uniform"),
    "method Parted: one of its phases": lambda: run(type("Parted", (Method,), {"phases": parted})(), CONVNET),
    "method Method: finetune_groups: ": lambda: run(Method(finetune_steps=1, finetune_groups=("x",)), CONVNET),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_method_that_is_not_registered_is_called_by_its_class(words):
    with pytest.raises(UserError, match=f"^{words}"):
        WRONG[words]()


def test_a_mean_is_by_samples_or_by_the_shares_that_are_given():
    before = {"w": torch.zeros(2), "n": torch.tensor(0), "own": torch.zeros(1)}
    returned = [{"w": torch.tensor([2.0 * k, -k]), "n": torch.tensor(k), "own": torch.ones(1)} for k in (1, 2, 5)]
    updates = [Update(k, samples, before, returned[k]) for k, samples in enumerate((6, 3, 1))]
    assert weights(updates) == [0.6, 0.3, 0.1]
    for shares, mean in ((None, 0.6 + 0.6 + 0.5), ([0.5, 0.0, 0.5], 3.0), ([1.0, 1.0, 1.0], 8.0)):
        found = average(updates, frozenset({"w", "n"}), shares)
        assert found.keys() == {"w", "n"} and found["n"].item() == 1
        torch.testing.assert_close(found["w"], torch.tensor([2 * mean, -mean]))
    found["n"].add_(1)
    assert returned[0]["n"].item() == 1  # nothing of a client's is handed on
    assert average(updates, frozenset({"n"})).keys() == {"n"}


# --- groups and roles ------------------------------------------------------------------------------------------------

BLOCKS = [f"blocks.{index}.{part}" for index in (0, 1) for part in ("qkv", "out")]
OF = {"patch.weight": "patch_embed", **{name: f"attention.{name[-3:]}" for name in BLOCKS}, "blocks.0.mlp": "mlp"}
VIT = Groups({**OF, "head": "head"}, frozenset({"head"}))


def test_a_group_or_a_module_selects_all_below_it_and_an_entry_itself():
    for wanted, chosen in (
        ([], set()),
        (["attention.qkv"], {"blocks.0.qkv", "blocks.1.qkv"}),
        (["attention"], set(BLOCKS)),
        (["blocks.-1"], {"blocks.1.qkv", "blocks.1.out"}),
        (["blocks.-2"], {"blocks.0.qkv", "blocks.0.out", "blocks.0.mlp"}),
        (["blocks.0.qkv", "blocks.1.out"], {"blocks.0.qkv", "blocks.1.out"}),
        (["head", "attention.out", "head"], {"head", "blocks.0.out", "blocks.1.out"}),
        ([ALL], set(VIT.of)),
    ):
        assert VIT.select(wanted) == chosen
    groups = r"\(its groups: patch_embed, attention.qkv, attention.out, mlp, head\)"
    with pytest.raises(UserError, match=rf"did you mean 'attention.qkv'\? {groups}"):
        VIT.select(["head", "atention.qkv"])


def test_patterns_that_do_not_cover_an_entry_once_are_a_mistake():
    for patterns, words in (
        ({"weight": r"weight$"}, "state 'bias' matches no group; need one group"),
        ({"all": r".", "bias": r"b"}, r"state 'bias' matches \['all', 'bias'\]; need one group"),
        ({"weight": r"weight", "as": r"as"}, "state 'bias' matches no group"),  # anchored at the start
    ):
        with pytest.raises(TypeError, match=f"^Linear: {words}"):
            Groups.assign(nn.Linear(2, 2), patterns)


@pytest.mark.parametrize("name", BACKBONES.names())
def test_a_registered_backbone_covers_its_state_and_uses_its_patterns(name):
    model, groups = create(backbone(name))
    assert list(groups.of) == list(model.state_dict()) and "head" in groups.names()
    assert set(groups.names()) <= set(BACKBONES.get(name).groups)
    assert groups.parameters == {entry for entry, _ in model.named_parameters()}


OWNERS = st.lists(st.lists(st.sampled_from(["a", "ab", "head"]), min_size=1, max_size=3).map(".".join), min_size=1)


@given(OWNERS, st.data())
def test_roles_give_every_entry_one_owner(owners, data):
    names = {f"entry{index}": group for index, group in enumerate(owners)}
    groups = Groups(names, frozenset(names))
    known = [group.rsplit(".", cut)[0] for group in owners for cut in (0, 1)]
    one, other = (data.draw(st.lists(st.sampled_from([*known, ALL]), max_size=3)) for _ in range(2))
    roles = Roles.split(groups, one, other)
    assert sorted([*roles.shared, *roles.personal, *roles.generated]) == sorted(names)
    assert roles.personal == groups.select(one) and roles.generated == groups.select(other) - roles.personal


# --- the page on methods ---------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_the_method_of_the_page_gives_the_numbers_that_it_prints(tmp_path):
    shutil.copytree(ROOT / "pflcore", tmp_path / "pflcore", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    command, paths = [sys.executable, "compare.py"], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    found, expected = ([line.split() for line in text.splitlines()] for text in (done.stdout, printed))
    assert [line[0] for line in found] == [line[0] for line in expected] == ["fedavg", "fedper", "nearest_mean"]
    # Sums round otherwise on another machine, which five rounds carry on.
    assert all(abs(float(a[1]) - float(b[1])) < 2 for a, b in zip(found, expected, strict=True))


def test_the_page_names_every_function_that_a_method_may_override():
    every = {**vars(Steps), **vars(Method)}
    functions = {name for name, value in every.items() if inspect.isfunction(value) and name[0] != "_"}
    assert set(re.findall(r"`(\w+)`", PAGE.partition("## ")[0])) >= functions
    known = {field.name for field in fields(ClientView)} | set(vars(ClientView))
    assert set(re.findall(r"`local\.(\w+)", PAGE)) <= known
    assert all(f"`{fact}`" in PAGE for fact in FACTS) and all(f"`{field.name}=" in PAGE for field in fields(Phase))
