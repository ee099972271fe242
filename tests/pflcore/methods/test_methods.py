"""Methods: what holds for all of them on every backbone, their averages, and groups that are never trained."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.tiers import SIX, six_of
from support.tiny import backbone, federation, fits, groups_of, method, result_bytes, run, sampled, spied, training

from pflcore.engine.cost import count
from pflcore.engine.phases import roles_of
from pflcore.errors import UserError
from pflcore.groups import add_prefix, pick
from pflcore.method import OWN, Update
from pflcore.methods import METHODS, Method

SEED = 3
# Larger steps for what would learn nothing in twelve rounds, smaller ones for what would forget what it learned.
RATES = {"lstm": 1.0, "fedrep": 0.1, "pfedgp": 0.01}


def some(cases: list[tuple[str, str]]) -> list[Any]:
    """Six methods on the first backbone that fits; the other tiny.pairs are marked `matrix`."""
    first = {name: net for name, net in reversed(cases) if name in SIX}
    return [pytest.param(*one, marks=[] if first.get(one[0]) == one[1] else [pytest.mark.matrix]) for one in cases]


FITTING = [(name, net) for name, net in tiny.pairs() if fits(method(name), backbone(net))]
CLASSIFYING = [(name, net) for name, net in FITTING if backbone(net).predicts == "classes"]


@pytest.mark.parametrize(("name", "net"), some(FITTING))
def test_a_run_keeps_to_the_contract_of_methods(name: str, net: str) -> None:
    entry, net_, seen = method(name), backbone(net), list[list[Update]]()
    data, sizes = tiny.suited(net_), tiny.exchanged(entry, net_)
    result = run(spied(entry, seen), net_)
    initial, roles, known = tiny.facts(entry, net_)
    # Every client is measured after every round.
    assert list(zip(result.round, result.client, strict=True)) == list(product((1, 2), (0, 1, 2)))
    each = tiny.LENGTH if net_.takes == "text" else 1
    assert result.total.tolist() == [5 * each, 8 * each, 6 * each] * 2 and result.positions == each
    assert (result.last <= result.correct).all() and (each > 1 or (result.last == result.correct).all())
    assert np.isfinite(result.loss).all() and (result.loss > 0).all() and result.diverged is None
    # It repeats bit by bit, and another seed is another run.
    assert result_bytes(run(entry, net_)) == result_bytes(result)
    assert (run(entry, net_, seed=SEED + 1).loss != result.loss).all()
    # Nothing personal leaves a client, and what travels is counted.
    for round_, updates in enumerate(seen, 1):
        assert [one.client for one in updates] == sampled(SEED, round_, 3, training())
        for one in updates:
            assert one.samples == len(data.train[one.client])
            assert one.returned.keys() == one.sent.keys() == sizes.keys()
    measured = zip(*(entry.traffic(one) for updates in seen for one in updates), strict=True)
    assert (result.cost.sent_up, result.cost.sent_down) == tuple(round(np.mean(part)) for part in measured)
    sent = sum(sizes.values())
    if type(entry).traffic is Method.traffic:
        assert result.cost.sent_up == result.cost.sent_down == sent
    else:  # what is compressed
        assert 0 < result.cost.sent_up < sent and 0 < result.cost.sent_down < sent
    assert result.cost.macs > 0 and result.cost.received * 4 >= sent / 2
    # The server holds shared entries and clients their own.
    trained = {client for round_ in (1, 2) for client in sampled(SEED, round_, 3, training())}
    trained |= set(range(3)) if entry.warmup() else set()
    groups = groups_of(net_, entry)
    kept = {name for name in result.weights if not name.startswith(("client.", "server."))}
    assert kept == (sizes.keys() - roles.generated) | groups.fixed
    beside = entry.init_client(initial, roles, known)
    own = {f"client.{i}.{name}" for i in trained for name in (*roles.personal, *(f"own/{one}" for one in beside))}
    assert {name for name in result.weights if name.startswith("client.")} == own
    server = {name.removeprefix("server.") for name in result.weights if name.startswith("server.")}
    assert not server & (roles.personal | roles.shared | roles.generated)
    assert result.parameters == count({key: initial[key] for key in groups.parameters})
    assert result.cost.stored == count({**pick(initial, roles.personal), **add_prefix(OWN, beside)})


@pytest.mark.parametrize("name", METHODS.names())
def test_what_is_kept_or_exchanged_beside_the_model_is_listed(name: str) -> None:
    entry = method(name)
    initial, roles, known = tiny.facts(entry, tiny.first_fitting(entry))
    assert bool(entry.exchanges) == bool(entry.init_shared(initial, roles, known))
    assert entry.keeps or not entry.init_client(initial, roles, known)
    assert entry.personal or entry.keeps or not roles.personal


def test_what_does_not_fit_is_refused_in_a_line() -> None:
    refused = [(method(name), backbone(net)) for name, net in tiny.pairs() if (name, net) not in FITTING]
    assert 0 < len(refused) < len(FITTING)
    for entry, net in refused:
        with pytest.raises(UserError, match=r"the backbone has no parameter group|needs a|lies in") as error:
            run(entry, net)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "net"), some(CLASSIFYING))
def test_training_lowers_the_loss(name: str, net: str) -> None:
    data = tiny.suited(backbone(net), (30, 30, 30), (9, 9, 9))
    if data.is_text:  # a character is repeated
        data.inputs.copy_(data.labels.view(-1, 1).expand_as(data.inputs))
    else:  # a class is a shade of grey
        data.inputs.copy_((data.labels * 60).view(-1, 1, 1, 1).expand_as(data.inputs))
    settings = training(rounds=12, sample_rate=1.0, lr=RATES.get(net) or RATES.get(name, 0.05), momentum=0.5)
    result = run(method(name), backbone(net), data, training=settings)
    first, *later = (result.loss[result.round == round_].mean() for round_ in (1, *range(8, 13)))
    # Who tunes before a measurement knows something after the first round already; who guesses has log 4. A single
    # round of a net with batch norm can be far off, and which one it is depends on the processor's rounding.
    assert np.median(later) < 0.6 * max(first, np.log(tiny.CLASSES))


# --- averages --------------------------------------------------------------------------------------------------------

# As their papers or their authors' codes have it.
UNIFORM = {"fedbabu", "fedbn", "fedkd", "fedrep", "fedselect", "lg_fedavg", "pfedgp", "scaffold"}
OTHER_RULES = {"fedamp", "fedproto", "local"}
OF_THEIR_OWN = ("fednova", "feddyn", "fedas")  # whose averages are others: test_servers.py, test_feature_statistics.py


# What is tiny.exchanged beside a model has other rules.
@pytest.mark.parametrize("averaging", [None, "samples", "uniform"])
@pytest.mark.parametrize("name", six_of(name for name in METHODS.names() if name not in OF_THEIR_OWN))
def test_every_method_averages_what_is_shared_over_the_cohort(name: str, averaging: str | None) -> None:
    if averaging and name in OTHER_RULES:
        with pytest.raises(UserError, match=f"^method {name}: averaging has no meaning"):
            method(name, averaging=averaging)
        return
    seen: list[list[Update]] = []
    entry = method(name, averaging=averaging)
    uniform = averaging == "uniform" or (averaging is None and name in UNIFORM)
    result = run(spied(entry, seen), tiny.first_fitting(entry), federation((14, 3, 40)), training=training(rounds=1))
    shared = roles_of(entry, groups_of(tiny.first_fitting(entry), entry)).shared
    (updates,) = seen
    total = sum(one.samples for one in updates)
    shares = [1 / 2 if uniform else one.samples / total for one in updates]
    pairs = list(zip(shares, updates, strict=True))
    expected = {entry: sum(share * one.returned[entry] for share, one in pairs) for entry in shared}
    assert total < 57 and len({one.samples for one in updates}) == 2
    tiny.assert_states_close({entry: result.weights[entry] for entry in shared}, expected)


def test_buffers_are_averaged_and_counters_are_not() -> None:
    seen: list[list[Update]] = []
    data = federation((10, 40, 20), (4, 4, 4))
    result = run(spied(method("fedavg"), seen), tiny.NormNet(), data, training=training(rounds=1, sample_rate=1.0))
    returned = [one.returned for one in seen[0]]
    mean = sum(share * one["norm.running_mean"] for share, one in zip((1 / 7, 4 / 7, 2 / 7), returned, strict=True))
    torch.testing.assert_close(result.weights["norm.running_mean"], mean)
    assert [int(one["norm.num_batches_tracked"]) for one in returned] == [4, 16, 8]
    assert int(result.weights["norm.num_batches_tracked"]) == 4


@pytest.mark.parametrize(("schedule", "clients"), [("every_round", {0, 1, 2}), ("when_sampled", {0})])
def test_the_schedule_of_local_says_who_trains(schedule: str, clients: set[int]) -> None:
    seed = next(seed for seed in range(99) if sampled(seed, 1, 3, training(sample_rate=0.1)) == [0])
    settings = training(rounds=1, sample_rate=0.1)
    result = run(method("local", schedule=schedule), backbone("convnet"), training=settings, seed=seed)
    assert {int(name.split(".")[1]) for name in result.weights} == clients


# --- groups that are never trained -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", six_of(METHODS.names()))
def test_train_only_leaves_the_rest_as_it_begins(name: str) -> None:
    only, net = ("attention" if name != "lora" else "lora", "head"), backbone("tiny_vit")
    entry = method(name, train_only=only)
    if not fits(entry, net):
        return
    result = run(entry, net)
    model, groups = tiny.create(net, SEED, entry)
    fixed = {key: tensor for key, tensor in model.state_dict().items() if key in groups.fixed}
    assert "blocks.0.mlp.0.weight" in fixed and not groups.fixed & groups.select(only)
    assert all(torch.equal(result.weights[key], tensor) for key, tensor in fixed.items())
    assert not any(key.startswith("client.") and key.endswith(tuple(fixed)) for key in result.weights if "/" not in key)


def test_nothing_fixed_is_sent() -> None:
    updates: list[list[Update]] = []
    result = run(spied(method("fedavg", train_only=("head",)), updates), backbone("tiny_vit"))
    names = {name for round_ in updates for one in round_ for name in (*one.sent, *one.returned)}
    assert names == {"head.weight", "head.bias"} and result.cost.sent_up == 4 * result.parameters == 4 * (4 * 8 + 4)
    with pytest.raises(UserError, match=r"^method fedavg: train_only: .* group 'haed'; did you mean 'head'"):
        run(method("fedavg", train_only=("haed",)), backbone("tiny_vit"))
