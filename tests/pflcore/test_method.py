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
from support.by_hand import SEED, Rounds
from support.mistakes import line_of, refuses
from support.tiny import backbone, federation, method, result_bytes, run, run_by_all, training
from torch import nn

from pflcore.client_view import FACTS
from pflcore.engine.checkpoint import CheckpointFolder
from pflcore.errors import UserError
from pflcore.groups import ALL, Groups, Roles
from pflcore.method import ClientView, Method, Phase, Steps, Update, average, weights
from pflcore.methods._bases import OwnTuning
from pflcore.methods.simple import FedAvg

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
CONVNET = backbone("convnet")


class Scaled(FedAvg):
    """FedAvg whose predictions are weighed by what the client has of each class, a fact that differs by client."""

    facts = ("class_counts",)

    def predict(self, local, state, inputs):
        return local.forward(state, inputs) * local.received["data/class_counts"]


def test_a_client_predicts_with_its_own_facts_also_where_it_keeps_nothing():
    hand = Rounds("convnet", training(rounds=1, sample_rate=1.0))
    result = run_by_all(Scaled(), CONVNET, data=hand.data, training=hand.settings, seed=SEED)
    for client in range(3):
        labels = hand.data.labels[hand.data.train[client]]
        counts = torch.tensor([int((labels == label).sum()) for label in range(4)])
        loss = hand.loss(client, dict(result.weights), logits=lambda _, logits, counts=counts: logits * counts)
        np.testing.assert_allclose(result.loss[client], loss, rtol=1e-4)


MISTAKES = {  # what a method does, and what is said of it
    "eval_state": (
        lambda self, state: {n: t for n, t in state.items() if n != "head.bias"},
        ": eval_state lacks 'head.bias'",
    ),
    "predict": (lambda self, local, state, inputs: local.forward({}, inputs), "a forward pass lacks 'conv1.weight'"),
    "loss": (lambda self, local, state, batch: None, "a loss must be a tensor of one number, not NoneType"),
    "phases": (lambda self: (), "method fedavg: phases() names no phase"),
}
SERVERS = {
    "returned NoneType": lambda server: None,
    "returned float64 [4] as 'head.bias'; it was float32 [4]": lambda server: {"head.bias": torch.zeros(4).double()},
    "returned float32 [3] as 'head.bias'; it was float32 [4]": lambda server: {"head.bias": torch.zeros(3)},
    "returned float32 [1] as 'more'; it was no tensor": lambda server: {"more": torch.zeros(1)},
}


def test_what_breaks_the_contract_is_a_line_under_every_executor():
    for executor in ("sequential", "pooled", "stacked"):
        for name, (attributes, words) in MISTAKES.items():
            wrong = type("FedAvg", (FedAvg,), {name: attributes})()
            with pytest.raises((UserError, TypeError, ValueError), match=re.escape(words)):
                run(wrong, CONVNET, executor=executor)

        class Served(FedAvg):
            def update_server(self, server, roles, updates):
                changed = self.change(server)
                server.shared.update(changed or {})  # in place, which is allowed
                return changed and server

        for words, change in SERVERS.items():
            served = type("FedAvg", (Served,), {"change": staticmethod(change)})()
            line = line_of(run, served, CONVNET, executor=executor)
            assert "update_server" in line and words in line, (executor, words)


def test_all_clients_that_train_do_once_what_comes_before_the_first_round(tmp_path):
    """FedDBE's means of features; a run that goes on from a checkpoint does not take them again."""
    data, settings = replace(federation(), novel=frozenset({1})), training(sample_rate=0.5, rounds=3)
    arguments = {"method": method("feddbe"), "backbone": CONVNET, "data": data, "seed": SEED}
    result = run_by_all(**arguments, training=settings)
    assert {name.split(".")[1] for name in result.weights if name.startswith("client.")} == {"0", "2"}
    with CheckpointFolder(tmp_path, "it", pytest.fail) as checkpoints:
        for rounds in (2, 3):
            continued = run(**arguments, training=replace(settings, rounds=rounds), checkpoints=checkpoints)
    assert continued.resumed_from == 2 and result_bytes(continued) == result_bytes(result)


class Cut(FedAvg):
    """Its round is cut into phases that train all alike."""

    def phases(self):
        return Phase(epochs=0.7), Phase(epochs=1), Phase()


def test_shares_of_a_phase_are_steps_of_the_round():
    """Without momentum, a round is what it is in one piece."""
    settings = training(schedule="exponential", gamma=0.5, schedule_by="step", augment_flip=0.5)
    cut, full = (run_by_all(cls(), backbone("tiny_vit"), training=settings) for cls in (Cut, FedAvg))
    assert result_bytes(cut)["weights"] == result_bytes(full)["weights"]


class Nameless(OwnTuning):
    """A method of nobody's registry."""


def parted(_):
    return (Phase(roles=("personal",)),)


WRONG = {
    "Method.finetune_lr has no effect without finetune_epochs": lambda: Method(finetune_lr=0.1),
    "method Nameless: finetune_": lambda: Nameless(finetune_steps=1),
    "method Ruled: averaging": lambda: type("Ruled", (Method,), {"own_averaging": None})(averaging="uniform"),
    "method Parted: one of its phases": lambda: run(type("Parted", (Method,), {"phases": parted})(), CONVNET),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_method_that_is_not_registered_is_called_by_its_class(words):
    refuses(f"^{words}", WRONG[words])


def test_a_mean_is_by_samples_or_by_the_shares_that_are_given():
    before = {"w": torch.zeros(2), "n": torch.tensor(0), "own": torch.zeros(1)}
    returned = [{"w": torch.tensor([2.0 * k, -k]), "n": torch.tensor(k), "own": torch.ones(1)} for k in (1, 2, 5)]
    updates = [Update(k, samples, before, returned[k]) for k, samples in enumerate((6, 3, 1))]
    assert weights(updates) == [0.6, 0.3, 0.1]
    for shares, mean in ((None, 0.6 + 0.6 + 0.5), ([0.5, 0.0, 0.5], 3.0), ([1.0, 1.0, 1.0], 8.0)):
        actual = average(updates, frozenset({"w", "n"}), shares)
        assert actual.keys() == {"w", "n"} and actual["n"].item() == 1
        torch.testing.assert_close(actual["w"], torch.tensor([2 * mean, -mean]))
    actual["n"].add_(1)
    assert returned[0]["n"].item() == 1  # nothing of a client's is handed on
    assert average(updates, frozenset({"n"})).keys() == {"n"}


BLOCKS = [f"blocks.{index}.{part}" for index in (0, 1) for part in ("qkv", "out")]
OF = {"patch.weight": "patch_embed", **{name: f"attention.{name[-3:]}" for name in BLOCKS}, "blocks.0.mlp": "mlp"}
VIT = Groups({**OF, "head": "head"}, frozenset({"head"}))


def test_a_group_or_a_module_selects_all_below_it_and_an_entry_itself():
    for names, chosen in (
        ([], set()),
        (["attention.qkv"], {"blocks.0.qkv", "blocks.1.qkv"}),
        (["attention"], set(BLOCKS)),
        (["blocks.-1"], {"blocks.1.qkv", "blocks.1.out"}),
        (["blocks.-2"], {"blocks.0.qkv", "blocks.0.out", "blocks.0.mlp"}),
        (["blocks.0.qkv", "blocks.1.out"], {"blocks.0.qkv", "blocks.1.out"}),
        (["head", "attention.out", "head"], {"head", "blocks.0.out", "blocks.1.out"}),
        ([ALL], set(VIT.group_of)),
    ):
        assert VIT.select(names) == chosen
    groups = r"\(its groups: patch_embed, attention.qkv, attention.out, mlp, head\)"
    refuses(rf"did you mean 'attention.qkv'\? {groups}", VIT.select, ["head", "atention.qkv"])


def test_patterns_that_do_not_cover_an_entry_once_are_a_mistake():
    for patterns, words in (
        ({"weight": r"weight$"}, "state 'bias' matches no group; need one group"),
        ({"all": r".", "bias": r"b"}, r"state 'bias' matches \['all', 'bias'\]; need one group"),
        ({"weight": r"weight", "as": r"as"}, "state 'bias' matches no group"),  # anchored at the start
    ):
        with pytest.raises(TypeError, match=f"^Linear: {words}"):
            Groups.assign(nn.Linear(2, 2), patterns)
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    with pytest.raises(TypeError, match=r"^Sequential: state '1.weight' is tied to an earlier one"):
        Groups.assign(tied, {"head": ""})


def test_what_is_personal_and_generated_is_personal_and_buffers_are_never_generated():
    roles = Roles.split(replace(VIT, parameters=VIT.parameters | set(BLOCKS)), ["blocks.1", "mlp"], ["attention"])
    assert roles.personal == {"blocks.1.qkv", "blocks.1.out", "blocks.0.mlp"}
    assert roles.generated == {"blocks.0.qkv", "blocks.0.out"} and roles.shared == {"patch.weight", "head"}
    assert Roles.split(VIT, [], ["all"]).generated == {"head"}


@pytest.mark.matrix
def test_the_method_of_the_page_gives_the_numbers_that_it_prints(tmp_path):
    shutil.copytree(ROOT / "pflcore", tmp_path / "pflcore", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    command, paths = [sys.executable, "compare.py"], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    actual, expected = ([line.split() for line in text.splitlines()] for text in (done.stdout, printed))
    assert [line[0] for line in actual] == [line[0] for line in expected] == ["fedavg", "fedper", "nearest_mean"]
    # Sums round otherwise on another machine, which five rounds carry on.
    assert all(abs(float(a[1]) - float(b[1])) < 2 for a, b in zip(actual, expected, strict=True))


def test_the_page_names_every_function_that_a_method_may_override():
    every = {**vars(Steps), **vars(Method)}
    functions = {name for name, value in every.items() if inspect.isfunction(value) and name[0] != "_"}
    assert set(re.findall(r"`(\w+)`", PAGE.partition("## ")[0])) >= functions
    names = {field.name for field in fields(ClientView)} | set(vars(ClientView))
    assert set(re.findall(r"`local\.(\w+)", PAGE)) <= names
    assert all(f"`{fact}`" in PAGE for fact in FACTS) and all(f"`{field.name}=" in PAGE for field in fields(Phase))
