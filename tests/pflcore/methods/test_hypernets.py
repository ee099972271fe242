"""Servers that generate or mix what clients get, against modules, ``backward`` and ``torch.optim.SGD``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.by_hand import Rounds, losses, moved
from support.hypernets import Hypernet, fresh, server_entries, start
from support.tiny import CLASSES, assert_states_close, backbone, federation, groups_of, known, method, training
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.errors import UserError
from pflcore.groups import add_prefix, pick, strip_prefix
from pflcore.method import Update, average
from pflcore.methods import METHODS
from pflcore.operators.hypernetworks import HyperNetwork

SIZES: dict[str, Any] = {"embedding": 4, "hidden": 6, "layers": 3}
LARGE = torch.Size((3, 32, 32))


# --- pFedHN and FedTP ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "net", "options"),
    [
        ("pfedhn", "convnet", {"server_clip": 0.02, "server_lr": 2.0}),
        ("pfedhn", "convnet", {"also_personal": ("head",), "server_weight_decay": 0.1, "server_clip": None}),
        ("pfedhn", "norm", {"server_clip": 0.03, "layers": 1}),
        ("fedtp", "tiny_vit", {"server_momentum": 0.5, "server_weight_decay": 0.2}),
        ("fedtp", "tiny_vit", {"generated_part": "encoder", "also_personal": ("head",), "server_clip": 0.005}),
    ],
)
def test_hypernetworks(name: str, net: str, options: dict[str, Any]) -> None:
    """Two of three clients a round, uneven; all are measured with what is generated after the last step."""
    settings = training(rounds=3, lr=0.02, momentum=0.5, batch_size=6)
    hand = Rounds(net, settings, federation((15, 9, 11)), own="head." if "also_personal" in options else "")
    entry: Any = method(name, **{**SIZES, "server_lr": 0.3, **options})
    initial, roles, server = start(entry, hand.net, 3)
    hypernet = Hypernet(server, {n: tensor.shape for n, tensor in initial.items() if n in roles.generated})
    rate, momentum, decay = entry.server_lr, entry.server_momentum, entry.server_weight_decay
    sgd = torch.optim.SGD(hypernet.parameters(), rate, momentum=momentum, weight_decay=decay)
    hand.x, norms = pick(hand.x, roles.shared), []
    for round_, cohort in hand:
        updates = []
        for i in cohort:
            received = hand.x | hand.own[i] | hypernet.sent(i)
            updates.append(Update(i, len(hand.data.train[i]), received, hand.train(i, round_, received)))
        sgd.zero_grad()
        hypernet.backward(updates)
        norms.append(float(nn.utils.clip_grad_norm_(hypernet.parameters(), entry.server_clip or float("inf"))))
        sgd.step()
        hand.x |= average(updates, roles.shared)
    assert not options.get("server_clip") or min(norms) > entry.server_clip
    result = hand.run(entry)
    assert_states_close(server_entries(result, "hyper/"), hypernet.values(), 1e-5)
    hand.check(result, models=[hand.x | hand.own[i] | hypernet.sent(i) for i in range(3)])


@pytest.mark.parametrize("clip", [0.5, None])
def test_a_step_along_a_clipped_gradient_is_as_long_as_the_limit(clip: float | None) -> None:
    """Where h(z) is the heads' biases, so that its derivative is the identity: without a limit, what was returned."""
    plain = {"server_momentum": 0.0, "server_weight_decay": 0.0, **SIZES}
    entry, server, roles = fresh("pfedhn", server_lr=1.0, server_clip=clip, **plain)
    for name, tensor in server.extra.items():
        if name.startswith("hyper/") and not (name.startswith("hyper/heads.") and name.endswith(".bias")):
            tensor.zero_()
    one = moved(entry.generate(server, [2])[0], client=2)
    after = entry.generate(entry.update_server(server, roles, [one]), [2])[0]
    steps = torch.cat([(after[name] - one.sent[name]).flatten() for name in after])
    learned = torch.cat([(one.returned[name] - one.sent[name]).flatten() for name in after])
    assert float(learned.norm()) > 3.0
    torch.testing.assert_close(steps, (clip or learned.norm()) * learned / learned.norm())


def test_hypernetworks_have_the_parameters_of_the_papers_and_begin_as_pytorchs() -> None:
    with torch.device("meta"):
        for classes, numbers in ((10, 12_271_732), (100, 13_044_382)):
            entry: Any = METHODS.create("pfedhn")
            model, groups = BACKBONES.create("convnet").create(LARGE, classes, 0)
            initial, roles = dict(model.state_dict()), entry.roles(groups)
            server = entry.init_server(initial, roles, known(50, 0, initial, roles))
            assert sum(t.numel() for n, t in server.extra.items() if n.startswith("hyper/")) == numbers
        params = HyperNetwork(100, 32, 150, 4, {str(block): (1536, 128) for block in range(8)}).init(0)
    numbers_of = {kind: sum(t.numel() for n, t in params.items() if kind in n) for kind in ("emb", "mlp", "heads")}
    assert numbers_of == {"emb": 3_200, "mlp": 72_900, "heads": 237_502_464}
    for clients, width in ((10, 3), (50, 13), (1, 1)):
        _, server, _ = fresh("pfedhn", clients, hidden=2, embedding=None)
        assert server.extra["hyper/embedding"].shape == (clients, width)
    sizes = HyperNetwork(300, 20, 64, 2, {"a": (30, 10), "b": (7,)})
    params = sizes.init(1)
    assert params["embedding"].shape == (300, 20) and abs(float(params["embedding"].std()) - 1) < 0.05
    for name, width in (("mlp.0", 20), ("mlp.1", 64), ("heads.a", 64), ("heads.b", 64)):
        largest = max(float(params[f"{name}.{part}"].abs().max()) for part in ("weight", "bias"))
        assert 0.9 * width**-0.5 < largest <= width**-0.5
    assert not torch.equal(sizes.init(2)["embedding"], params["embedding"])


# Per block of tiny_vit with its defaults.
@pytest.mark.parametrize(
    ("part", "count"), [("attention.qkv", 196_608), ("mlp", 65_920), ("norm", 512), ("encoder", 328_704)]
)
def test_fedtp_generates_the_chosen_part_of_each_block(part: str, count: int) -> None:
    with torch.device("meta"):
        model, groups = BACKBONES.create("tiny_vit", depth=3).create(LARGE, 10, 0)
    roles, state = METHODS.create("fedtp", generated_part=part).roles(groups), model.state_dict()
    assert sum(state[name].numel() for name in roles.generated) == 3 * count
    assert all(name.startswith("blocks.") for name in roles.generated)
    assert roles.shared | roles.generated == set(groups.of) and not roles.shared & roles.generated
    own = method("fedtp", generated_part="encoder", also_personal=("norm", "head")).roles(groups)
    assert own.personal == groups.select(("norm", "head"))
    assert own.generated == {name for name in groups.of if name.startswith("blocks.")} - own.personal
    with pytest.raises(UserError, match="fedtp: generated_part 'encoder' lies in the blocks of a Transformer"):
        method("fedtp", generated_part="encoder").roles(groups_of(backbone("convnet")))


def test_fedtp_fedrod() -> None:
    """Balanced softmax for body, projections and generic classifier; a personal classifier on detached features."""
    data = federation((15, 9), (5, 8))
    data.labels[data.train[0]] %= 3  # the first client lacks a class
    hand = Rounds("tiny_vit", training(rounds=2, sample_rate=1.0), data)
    entry: Any = method("fedtp_fedrod", **SIZES, server_lr=0.3)
    initial, roles, server = start(entry, hand.net, 2)
    hypernet = Hypernet(server, {n: tensor.shape for n, tensor in initial.items() if n in roles.generated})
    sgd = torch.optim.SGD(hypernet.parameters(), 0.3, momentum=0.9, weight_decay=1e-3)
    heads = [nn.Linear(8, CLASSES) for _ in range(2)]
    for head in heads:
        head.load_state_dict(strip_prefix("head.", initial))
    before_norm: list[Tensor] = []
    hand.model.get_submodule("norm").register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0]))
    hand.x = pick(hand.x, roles.shared)

    def client(i: int, round_: int) -> Update:
        prior = torch.bincount(data.labels[data.train[i]], minlength=CLASSES).log()

        def loss(rows: Tensor) -> Tensor:
            logits, labels = hand.logits(rows), hand.labels(rows)
            own = heads[i](before_norm.pop().detach()) + logits.detach()
            return F.cross_entropy(logits + prior, labels) + F.cross_entropy(own, labels)

        received = hand.x | hypernet.sent(i)
        ended = hand.train(i, round_, received, loss=loss, beside=heads[i].parameters())
        return Update(i, len(data.train[i]), received, ended)

    for round_, cohort in hand:
        updates = [client(i, round_) for i in cohort]
        sgd.zero_grad()
        hypernet.backward(updates)
        sgd.step()
        hand.x |= average(updates, roles.shared)
    result = hand.run(entry)
    assert_states_close(server_entries(result, "hyper/"), hypernet.values(), 1e-5)
    hand.check(result, kept=[add_prefix("head.", head.state_dict()) for head in heads], measured=False)
    measured = []
    for i, head in enumerate(heads):
        hand.lend(hand.x, hypernet.sent(i)).eval()
        logits = (hand.logits(data.test[i]) + head(before_norm[-1])).detach()
        measured.append(float(F.cross_entropy(logits, hand.labels(data.test[i]))))
    losses(result, measured)
