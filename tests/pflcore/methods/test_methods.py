"""Methods: what holds for all of them on every backbone, their averages, groups that are never trained, refusals."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from support import tiny
from support.mistakes import line_of, refuses
from support.tiers import SIX, few_of
from support.tiny import backbone, federation, fits, groups_of, method, result_bytes, run, sampled, spied, training

from pflcore.engine.cost import count
from pflcore.engine.phases import roles_of
from pflcore.errors import UserError
from pflcore.groups import add_prefix, pick
from pflcore.method import COMMON, OWN
from pflcore.methods import METHODS, Method

SEED = 3
FITTING = [(name, net) for name, net in tiny.pairs() if fits(method(name), backbone(net))]


# Six methods on the first backbone that fits; all other cases are marked `matrix`.
QUICK = {name: net for name, net in reversed(FITTING) if name in SIX}.items()


@pytest.mark.parametrize("name, net", few_of(FITTING, QUICK))
def test_a_run_keeps_to_the_contract_of_methods(name, net):
    entry, net, seen = method(name), backbone(net), []
    sizes, result = tiny.exchanged(entry, net), run(spied(entry, seen), net)
    initial, roles, federation = tiny.facts(entry, net)
    cohorts = [sampled(SEED, round_, 3, training()) for round_ in (1, 2)]
    # Every client is measured after every round.
    assert list(zip(result.round, result.client, strict=True)) == list(product((1, 2), (0, 1, 2)))
    each = tiny.LENGTH if net.takes == "text" else 1
    assert result.total.tolist() == [5 * each, 8 * each, 6 * each] * 2 and result.positions == each
    assert (result.last <= result.correct).all() and (each > 1 or (result.last == result.correct).all())
    assert np.isfinite(result.loss).all() and (result.loss > 0).all() and result.diverged is None
    # It repeats bit by bit, and another seed is another run.
    assert result_bytes(run(entry, net)) == result_bytes(result)
    assert (run(entry, net, seed=SEED + 1).loss != result.loss).all()
    # Nothing personal leaves a client, and what travels is counted.
    updates = [it for of_round in seen for it in of_round]
    assert [(it.client, it.samples) for it in updates] == [(i, (14, 7, 9)[i]) for it in cohorts for i in it]
    assert all(it.returned.keys() == it.sent.keys() == sizes.keys() for it in updates)
    up, down = (round(np.mean(part)) for part in zip(*map(entry.traffic, updates), strict=True))
    total, cost = sum(sizes.values()), result.cost
    assert (cost.sent_up, cost.sent_down) == (up, down) and cost.macs > 0 and cost.received * 4 >= total / 2
    if type(entry).traffic is Method.traffic:
        assert up == down == total
    else:  # what is compressed
        assert 0 < up < total and 0 < down < total
    # The server holds shared entries and clients their own.
    trained, groups = set(range(3)) if entry.warmup() else {i for it in cohorts for i in it}, groups_of(net, entry)
    entries, names = entry.init_client(initial, roles, federation), result.weights.keys()
    personal = {f"client.{i}.{it}" for i in trained for it in (*roles.personal, *add_prefix(OWN, entries))}
    server = {it for it in names if it.startswith("server.")}
    assert not {it.removeprefix("server.") for it in server} & (roles.personal | roles.shared | roles.generated)
    assert names - server == personal | (sizes.keys() - roles.generated) | groups.fixed
    assert result.parameters == count(pick(initial, groups.parameters))
    assert cost.stored == count({**pick(initial, roles.personal), **add_prefix(OWN, entries)})


@pytest.mark.parametrize("name", METHODS.names())
def test_what_is_kept_or_exchanged_beside_the_model_is_listed(name):
    entry = method(name)
    initial, roles, federation = tiny.facts(entry, tiny.first_fitting(entry))
    assert bool(entry.exchanges) == bool(entry.init_shared(initial, roles, federation))
    assert entry.keeps or not entry.init_client(initial, roles, federation)
    assert entry.personal or entry.keeps or not roles.personal


# --- averages --------------------------------------------------------------------------------------------------------

# As their papers or their authors' codes have it; averages of `OF_THEIR_OWN` are among the rounds by hand.
UNIFORM = {"fedbabu", "fedbn", "fedkd", "fedrep", "fedselect", "lg_fedavg", "pfedgp", "scaffold"}
NO_AVERAGES, OF_THEIR_OWN = {"fedamp", "fedproto", "local"}, ("fednova", "feddyn", "fedas")


@pytest.mark.parametrize("averaging", [None, "samples", "uniform"])
@pytest.mark.parametrize("name", few_of(name for name in METHODS.names() if name not in OF_THEIR_OWN))
def test_every_method_averages_what_is_shared_over_the_cohort(name, averaging):
    if averaging and name in NO_AVERAGES:
        refuses(f"^method {name}: averaging has no effect", method, name, averaging=averaging)
        return
    seen, entry = [], method(name, averaging=averaging)
    net, settings = tiny.first_fitting(entry), training(rounds=1)
    result = run(spied(entry, seen), net, federation((14, 3, 40)), training=settings)
    uniform = averaging == "uniform" or (averaging is None and name in UNIFORM)
    samples = {it: 1 if uniform else (14, 3, 40)[it] for it in sampled(SEED, 1, 3, settings)}
    assert len(samples) == 2
    for key in roles_of(entry, groups_of(net, entry)).shared:  # not what is beside a model
        mean = sum(samples[it.client] / sum(samples.values()) * it.returned[key] for it in seen[0])
        torch.testing.assert_close(result.weights[key], mean, rtol=1e-4, atol=1e-6)


# --- groups that are never trained -----------------------------------------------------------------------------------


def partly(name):
    """The method as it trains attention and the head alone."""
    return method(name, train_only=("lora" if name == "lora" else "attention", "head"))


@pytest.mark.parametrize("name", few_of(name for name in METHODS.names() if fits(partly(name), backbone("tiny_vit"))))
def test_train_only_leaves_the_rest_as_it_begins_and_neither_sends_nor_stores_it(name):
    entry, net, seen = partly(name), backbone("tiny_vit"), []
    result, (model, groups) = run(spied(entry, seen), net), tiny.create(net, SEED, entry)
    fixed = pick(dict(model.state_dict()), groups.fixed)
    assert "blocks.0.mlp.0.weight" in fixed and not groups.fixed & groups.select(entry.train_only)
    assert all(torch.equal(result.weights[key], tensor) for key, tensor in fixed.items())
    travelled = {name for updates in seen for update in updates for name in (*update.sent, *update.returned)}
    stored = {name.split(".", 2)[2] for name in result.weights if name.startswith("client.")}
    assert not {name.removeprefix(COMMON).removeprefix(OWN) for name in travelled | stored} & groups.fixed


# --- refusals --------------------------------------------------------------------------------------------------------

HEAD = {"finetune_epochs": 1, "finetune_groups": ("head",)}
MORE_THAN_MEANS = "scaffold fednova fedkd fedselect pfedhn fedtp fedcac fedproto"


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("scaffold", {"also_personal": ("all",)}, r": all .* of the model is personal$"),
        *((name, {"averaging": "krum"}, ": averaging") for name in MORE_THAN_MEANS.split()),
        ("fedala", {"also_personal": ("head",)}, ": layers: head: the backbone has none, or they are personal"),
        *((name, {"finetune_epochs": 1}, r": finetune_\*: ") for name in ("fedala", "pfedfda", "pfedgp", "ifca")),
        ("fedselect", {"alternations": 3}, ": in part 6 of 6 of its round no client takes a local step; change"),
        ("fedamp", {"own_weight": 0.3}, ": own_weight: with attention by distance"),
        ("fedamp", {"alpha": 1.0, "sigma": 1.9}, ": alpha: 1 above sigma / 2"),
        ("fedrep", {"head_epochs": 0.2}, ": in part 1 of 2 of its round no client"),
        ("heurpfedla", {"keep": 5}, ": keep: 5 is more than the 4 layers that are mixed$"),
        ("fedofa", {"also_personal": ("conv",)}, ": no convolution is generated; use"),
        ("fedtp", {"generated_part": "encoder"}, "fedtp: generated_part 'encoder' lies in the blocks of a Transformer"),
        ("lora", {"projections": ()}, r"lora\.projections names none"),
        ("prompts", {}, "^prompt tuning needs a Transformer .*one projection to queries, keys and values.* plain ViT"),
        ("fedavg", {"train_only": ("haed",)}, ": train_only: .* group 'haed'; did you mean 'head'"),
        ("per_fedavg", {"finetune_epochs": 1}, r": finetune_\*: what clients do before"),
        ("fedproto", HEAD, r"^fedproto\.finetune_groups: its predictions read no classifier"),
        ("personal_groups", {"groups": ("hed",)}, ": groups: .* has no parameter group 'hed'; did you mean 'head'"),
        ("fedavg", {**HEAD, "finetune_groups": ("haed",)}, ": finetune_groups: .*'haed'; did"),
        ("fedavg", {**HEAD, "train_only": ("conv1",)}, ": finetune_groups: train_only leaves nothing"),
    ],
)
def test_what_does_not_go_together_is_a_line(name, options, words):
    line = line_of(lambda: run(method(name, **options), backbone("convnet")))
    assert re.search(f"^method {name}{words}" if words.startswith(":") else words, line)


def test_what_does_not_fit_is_refused_in_a_line():
    refused = [pair for pair in tiny.pairs() if pair not in FITTING]
    assert 0 < len(refused) < len(FITTING)
    for name, net in refused:
        line = line_of(run, method(name), backbone(net))
        assert re.search("the backbone has no parameter group|needs a|lies in", line)
    too_few = training(local_steps=5)  # the head takes all
    line = line_of(lambda: run(method("fedrep", head_epochs=4.0), backbone("convnet"), training=too_few))
    assert "fedrep: in part 2 of 2 of its round no client takes a local step" in line
    for name, words in (("fedbabu", "rounds do not train head, which is all"), ("fedrep", "trains what is shared")):
        assert f"method {name}: " in (line := line_of(run, method(name), backbone("linear"))) and words in line


ON_A_CLASSIFIER = "fedcp feddbe fedpac gpfl pfedfda fedas pfedgp moon fedproto fedkd fedrod"


@pytest.mark.parametrize("name", ON_A_CLASSIFIER.split())
def test_a_model_without_a_classifier_is_refused(name):
    initial, roles, federation = tiny.facts(method(name), backbone("convnet"))
    with pytest.raises(UserError, match=f"^method {name} needs a backbone .*'head'"):
        for begin in (method(name).init_shared, method(name).init_client):
            begin(initial, roles, replace(federation, head=(), features=0))
