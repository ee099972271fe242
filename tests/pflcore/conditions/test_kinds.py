"""What conditions do to clients, to labels and to what is sent, against what the same run does without them."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support import tiny
from support.mistakes import refuses
from support.tiny import CLASSES, backbone, continued, federation, method, result_bytes, run, spied, training

from pflcore.conditions import CONDITIONS
from pflcore.conditions._base import Draws
from pflcore.methods.simple import FedAvg

SIZES = (14, 7, 9, 12, 6), (5, 8, 6, 4, 7)
DRAWS = Draws(3, (0, 1, 2, 3, 4))
ALL = training(rounds=1, sample_rate=1.0)
NET = backbone("convnet")
make = CONDITIONS.create


def updates_of(condition, name="scaffold", **options):
    """The updates of the first round, in which all take part, by client, and the result."""
    seen = []
    result = run(spied(method(name, **options), seen), NET, federation(*SIZES), training=ALL, condition=condition)
    return {update.client: update for update in (seen[0] if seen else ())}, result


@pytest.mark.parametrize(("pattern", "noisy"), (("symmetric", 0.6), ("pair", 1.0)))
def test_wrong_labels_are_as_many_as_asked_for_of_those_clients_training_samples(pattern, noisy):
    data = federation((900, 700, 800, 600, 1000), (50, 60, 70, 80, 90))
    noisy_data = make("label_noise", flipped=0.3, pattern=pattern, noisy=noisy).data(DRAWS, data)
    shifts = [(noisy_data.labels[rows] - data.labels[rows]) % CLASSES for rows in data.train]
    changed = [float((shift != 0).float().mean()) for shift in shifts]
    assert sum(share > 0 for share in changed) == round(5 * noisy)
    assert all(share == 0 or abs(share - 0.3) < 0.06 for share in changed)  # three standard deviations
    counts = torch.bincount(torch.cat(shifts), minlength=CLASSES)[1:]
    assert (counts[1:] == 0).all() if pattern == "pair" else counts.min() > 0.85 * counts.max()
    assert all(torch.equal(noisy_data.labels[rows], data.labels[rows]) for rows in data.test)


ATTACKS = {
    "sign_flip": lambda received, trained: received - 2.5 * (trained - received),
    "scale": lambda received, trained: received + 2.5 * (trained - received),
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_attackers_send_what_they_say_in_all_entries_and_the_others_what_they_have_trained(kind):
    condition = make("attack", share=0.4, kind=kind, strength=2.5)
    honest, _ = updates_of(None)
    sent, result = updates_of(condition)
    assert len(result.attackers) == 2 and "common/fc1.weight" in sent[0].returned
    for client, update in sent.items():
        for name, tensor in update.returned.items():
            trained = honest[client].returned[name]
            before = 0 if name.startswith("common/") else update.sent[name]  # control variates are sent as changes
            expected = ATTACKS[kind](before, trained) if client in result.attackers else trained
            torch.testing.assert_close(tensor, expected)


def test_attackers_in_a_cluster_turn_the_change_of_its_model_round():
    honest, _ = updates_of(None, "ifca")
    sent, result = updates_of(make("attack", share=0.4), "ifca")
    chosen = {client: int(honest[client].returned["common/choice"]) for client in result.attackers}
    assert any(chosen.values())
    for client, cluster in chosen.items():
        for name in ("conv1.weight", "head.bias"):
            received = honest[client].sent[f"common/{cluster}/{name}" if cluster else name]
            torch.testing.assert_close(sent[client].returned[name], 2 * received - honest[client].returned[name])


def test_attackers_train_on_other_classes_or_send_noise():
    data = federation(*SIZES)
    condition = make("attack", share=0.4, kind="label_flip")
    flipped, attackers = condition.data(DRAWS, data), condition.attackers(DRAWS)
    for client, rows in enumerate(data.train):
        expected = CLASSES - 1 - data.labels[rows] if client in attackers else data.labels[rows]
        assert torch.equal(flipped.labels[rows], expected)
    sent, result = updates_of(make("attack", share=0.2, kind="gaussian", strength=0.7), "fedavg")
    (update,) = (sent[client] for client in result.attackers)
    noise = torch.cat([(update.returned[name] - value).flatten() for name, value in update.sent.items()])
    assert abs(float(noise.std()) - 0.7) < 0.05 and abs(float(noise.mean())) < 0.1


def test_who_is_away_keeps_what_it_has_and_a_round_without_anybody_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away.csv").write_text("round,client\n1,0\n1,3\n" + "".join(f"2,{i}\n" for i in range(5)) + "\n")
    condition, seen = make("availability", path="away.csv"), []
    entry, data = spied(method("fedper"), seen), federation(*SIZES)
    first = run(entry, NET, data, training=ALL, condition=condition)
    assert [update.client for update in seen[0]] == [1, 2, 4]
    assert {name.split(".")[1] for name in first.weights if name.startswith("client.")} == {"1", "2", "4"}
    second = run(entry, NET, data, training=replace(ALL, rounds=2), condition=condition)
    assert len(seen) == 2  # a round of each run
    np.testing.assert_array_equal(second.loss[second.round == 2], first.loss)
    assert all(torch.equal(second.weights[name], tensor) for name, tensor in first.weights.items())


def test_stragglers_take_a_share_of_their_steps():
    honest, _ = updates_of(None, "fednova")
    slow, _ = updates_of(make("availability", away=0.0, slow=0.4, pace=0.6), "fednova")
    steps = {client: (honest[client].steps, update.steps) for client, update in slow.items()}
    slowed = {client for client, (before, after) in steps.items() if after < before}
    assert len(slowed) == 2 and all(after == int(0.6 * before) for before, after in map(steps.get, slowed))
    redrawn = make("availability", slow=0.4, redrawn=True)
    drawn = [redrawn.share_of_steps(DRAWS, round_, client) for round_ in range(1, 301) for client in range(5)]
    assert abs(drawn.count(0.5) / len(drawn) - 0.4) < 0.04 and drawn.count(0.5) + drawn.count(1.0) == len(drawn)


@pytest.mark.parametrize(("where", "spread"), (("client", 0.6 * 0.05), ("central", 0.6 * 0.05 / 5**0.5)))
def test_private_updates_are_cut_down_to_a_norm_and_noisy(where, spread):
    honest, _ = updates_of(None, "fedavg")
    private, noise = make("privacy", clip=0.05, noise=0.6, where=where), []
    for update in private.sent(DRAWS, 1, list(honest.values())):
        names = sorted(update.returned)
        received, trained, sent = (
            torch.cat([entries[name].flatten() for name in names]).double()
            for entries in (update.sent, honest[update.client].returned, update.returned)
        )
        change = trained - received
        noise.append(sent - received - change * min(1.0, 0.05 / float(change.norm())))
    assert abs(float(torch.cat(noise).std()) / spread - 1) < 0.06 and not torch.equal(noise[0], noise[1])


def test_epsilon_is_that_of_the_formula():
    pytest.importorskip("dp_accounting")
    cohorts = [[0, 1], [1, 2], [1, 3]]
    # Canonne, Kamath and Steinke's conversion of Rényi divergences α · k / (2 z²), k = 3 of client 1, z of a half.
    orders = np.arange(2, 513)
    renyi = orders * 3 / (2 * (4.0 / 2) ** 2)
    expected = (renyi + np.log1p(-1 / orders) - np.log(1e-3 * orders) / (orders - 1)).min()
    each = make("privacy", where="client", noise=4.0, delta=1e-3)
    assert each.epsilon(5, cohorts) == pytest.approx(expected, rel=1e-6)
    small, full = (make("privacy", noise=1.1).epsilon(100, [range(size)] * 20) for size in (5, 100))
    assert 0 < small < full / 3


class Everyone(FedAvg):
    """Trains all clients, whichever are sampled."""

    def participants(self, sampled, clients):
        return range(clients)


@pytest.mark.parametrize("where", ("client", "central"))
def test_epsilon_counts_the_clients_that_a_method_trains(where):
    pytest.importorskip("dp_accounting")
    condition, data = make("privacy", where=where), federation(*SIZES)
    settings = {"few": training(rounds=3, sample_rate=0.2), "all": training(rounds=3, sample_rate=1.0)}
    result = {
        (kind.__name__, name): run(
            kind(averaging="uniform"), NET, data, training=options, condition=condition, executor="sequential"
        ).epsilon
        for kind in (Everyone, FedAvg)
        for name, options in settings.items()
    }
    assert result["Everyone", "few"] == result["Everyone", "all"] == result["FedAvg", "all"] > result["FedAvg", "few"]


def test_a_robust_mean_leaves_the_same_bytes_after_a_stop(tmp_path):
    train = partial(run, method("fedcp", averaging="median"), NET, federation(*SIZES), executor="sequential")
    assert result_bytes(continued(train, tmp_path)) == result_bytes(train())


def test_a_share_is_of_one_client_at_least():
    draws = Draws(3, (1, 4))
    assert len(make("attack", share=0.2).attackers(draws)) == 1 and not draws.share(0.0, "stragglers")


ABSENCES = {
    "1,0\n": "1: must be round,client",
    "": "1: must be round,client",
    "client,round\n0,1\n": "1: must be round,client",
    "round,client\n1,0\n0,1\n": "3: '0,1' must be a round, from 1",
    "round,client\n1,0,2\n": "2: '1,0,2' must be",
    '\ufeff"round", client\r\n\r\n1,0\r\n2;1\r\n': "4: '2;1' must be",
    "round;client\n1;0\n": "1: must be round,client, with commas between the names",
}


@pytest.mark.parametrize("text", ABSENCES)
def test_a_file_of_absences_has_a_header_and_pairs(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"away{len(text)}.csv"  # what is in a file is read once
    (tmp_path / name).write_text(text)
    refuses(f"{name}:{ABSENCES[text]}", lambda: make("availability", path=name).attends(DRAWS, 1, 0))


REFUSED = {
    "condition privacy does not go with method local: its clients send nothing": ("local", "privacy", {}),
    "its clients send 'present', to which no noise": ("fedproto", "privacy", {"where": "client"}),
    "its clients send something before the first round": ("feddbe", "privacy", {"where": "client"}),
    "noise on the sum needs method.averaging: uniform": ("fedavg", "privacy", {}),
    "noise on the sum protects a mean, and its server sums control variates": ("scaffold", "privacy", {}),
    "slow does not go with method fedrep: its round is several phases": ("fedrep", "availability", {"slow": 0.3}),
    "nowhere.csv: no such file": ("fedavg", "availability", {"path": "nowhere.csv"}),
    "attack: needs two clients that train": ("fedavg", "attack", {}),
    "attack.strength says nothing of": ("fedavg", "attack", {"share": 0.1, "kind": "label_flip", "strength": 2.0}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(reason):
    name, kind, options = REFUSED[reason]
    data = federation((9,), (5,)) if "two clients" in reason else None
    refuses(re.escape(reason), lambda: run(method(name), NET, data, condition=make(kind, **options)))


@pytest.mark.parametrize(("data", "word"), ((tiny.texts(*SIZES), "texts"), (tiny.boxed(*SIZES).with_boxes(), "boxes")))
def test_samples_without_one_class_have_no_wrong_labels(data, word):
    refuses(f"condition: .* {word} have none", lambda: make("label_noise", flipped=0.1).data(DRAWS, data))
