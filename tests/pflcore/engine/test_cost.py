"""What methods are told, and what they are said to cost, against counts by hand."""

from collections import Counter

import pytest
import torch
from support.tiny import CLASSES, SHAPE, backbone, create, federation, method, run, training

from pflcore.client_view import FACTS
from pflcore.engine.client import balanced
from pflcore.engine.cost import operations
from pflcore.engine.phases import make_trainer
from pflcore.errors import UserError
from pflcore.methods.simple import FedAvg
from pflcore.seeds import torch_seed

SEED, DATA = 5, federation((14, 7, 9))
Curious = type("Curious", (FedAvg,), {"facts": FACTS})  # which wants to know everything


def trainer(entry, **settings):
    return make_trainer(*create(backbone("convnet"), SEED), DATA, entry, training(**settings), SEED)


def test_the_federation():
    model, groups = create(backbone("convnet"), SEED)
    initial = dict(model.state_dict())
    actual = trainer(Curious(), rounds=9, momentum=0.5, local_epochs=3).federation(initial)
    assert (actual.clients, actual.seed, actual.momentum, actual.classes, actual.samples) == (
        3,
        SEED,
        0.5,
        4,
        (14, 7, 9),
    )
    assert (actual.local_epochs, actual.total_rounds, actual.rounds, dict(actual.generated)) == (3, 9, 9, {})
    assert actual.head == ("head.weight", "head.bias") and actual.parameters == groups.parameters
    assert actual.features == initial["head.weight"].shape[1]
    plain = trainer(FedAvg(), local_steps=4, local_epochs=3).federation(initial)
    assert plain.local_epochs is None and plain.total_rounds is None
    with pytest.raises(UserError, match=r"test_cost\.py:\d+: federation\.rounds must be asked for"):
        print(plain.rounds)


def test_a_client_in_a_round_knows_what_it_asks_for():
    curious = trainer(Curious(), rounds=8, local_epochs=2, batch_size=4, class_weights="balanced")
    for client, round_ in ((0, 1), (1, 3), (1, 4)):
        facts = {name.removeprefix("data/"): fact.tolist() for name, fact in curious.facts(client, round_).items()}
        seen, per_epoch = Counter(DATA.labels[DATA.train[client]].tolist()), -(-(14, 7, 9)[client] // 4)
        counts = [seen[label] for label in range(CLASSES)]
        assert facts == {
            **{"epoch_steps": per_epoch, "steps": 2 * per_epoch, "round": round_, "progress": round_ / 8},
            **{"class_counts": counts, "class_weights": balanced(torch.tensor(counts)).tolist()},
            "draws": torch_seed(SEED, "draws", round_, client),
        }
    assert trainer(FedAvg()).facts(0, 1) == {}


# Of 64 pixels, 7 hidden units and the classes: forward, and backward the gradients of both layers' weights and of the
# output of the first one.
STEP = 2 * (64 * 7 + 7 * CLASSES) + 7 * CLASSES
MODEL, HEAD = 64 * 7 + 7 + 7 * CLASSES + CLASSES, 7 * CLASSES + CLASSES
HELD = {  # times the step; numbers that a client keeps and receives
    "fedavg": (1, 0, MODEL),
    "fedper": (1, HEAD, MODEL - HEAD),
    "local": (1, MODEL, 0),
    "apfl": (2, MODEL + 1, MODEL),
    "pfedme": (5, MODEL, MODEL),
}


@pytest.mark.parametrize("name", HELD)
def test_multiply_adds_of_a_step_and_numbers_that_are_held(name):
    factor, stored, received = HELD[name]
    net = backbone("mlp", hidden=(7,))
    cost = run(method(name), net, federation((1, 7, 9))).cost  # of which few samples are taken again
    assert (cost.macs, cost.stored, cost.received, cost.server) == (factor * STEP, stored, received, received)
    assert cost.sent_up == cost.sent_down == 4 * received


@pytest.mark.parametrize("kind", [torch.nn.Conv2d, torch.nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_gradients_of_a_grouped_convolution(kind, groups):
    layer, images = kind(6, 6, 3, groups=groups), torch.ones(2, 6, 8, 8, requires_grad=True)
    side = 6 if kind is torch.nn.Conv2d else 8  # places at which the kernel is applied
    forward = 2 * 2 * side**2 * 9 * 6 * 6 // groups
    with operations() as counted:
        out = layer(images).sum()
    assert counted.flops == forward
    with operations() as counted:
        out.backward()
    assert counted.flops == 2 * forward


def test_attention_is_counted():
    shallow, deep = (run(method("fedavg"), backbone("tiny_vit", depth=depth)).cost.macs for depth in (1, 2))
    tokens, dim, inner, mlp = (SHAPE[1] // 4) ** 2 + 1, 8, 8, 12
    block = tokens * (dim * 3 * inner + inner * dim + 2 * dim * mlp) + 2 * tokens * tokens * inner
    assert deep - shallow == 3 * block  # forward, and twice that backward


def test_the_server_of_fedtp_holds_its_hypernetwork():
    cost = run(method("fedtp"), backbone("tiny_vit"), training=training(rounds=1)).cost
    embedding, hidden, layers, clients, qkv, blocks = 4, 6, 2, 3, 8 * 3 * 8, 2
    generating = embedding * hidden + hidden + (layers - 1) * (hidden * hidden + hidden)
    hypernetwork = clients * embedding + generating + blocks * (hidden * qkv + qkv)
    assert cost.server == cost.received - blocks * qkv + hypernetwork and cost.stored == 0
