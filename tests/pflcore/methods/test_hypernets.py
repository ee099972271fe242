"""Servers that generate what clients get, against modules, ``backward`` and ``torch.optim.SGD``."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.by_hand import SEED, Rounds, State, losses, moved, near
from support.tiny import (
    CLASSES,
    NormNet,
    backbone,
    create,
    facts,
    federation,
    groups_of,
    known,
    method,
    result_bytes,
    run,
    spied,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.errors import UserError
from pflcore.groups import Roles, add_prefix, pick, strip_prefix
from pflcore.method import Server, Update, average, weights
from pflcore.methods import METHODS
from pflcore.operators.hypernetworks import HyperNetwork

SIZES: dict[str, Any] = {"embedding": 4, "hidden": 6, "layers": 3, "server_lr": 0.3}
LARGE = torch.Size((3, 32, 32))


def is_conv(name: str) -> bool:
    return name.startswith("conv") and name.endswith(".weight")


def start(entry: Any, net: Any, clients: int) -> tuple[Server, Roles]:
    """The server before the first round, and the roles."""
    model, groups = create(net, SEED, entry)
    initial, roles = dict(model.state_dict()), entry.roles(groups)
    return entry.init_server(initial, roles, known(clients, SEED, initial, roles)), roles


def fresh(name: str, clients: int = 5, net: str = "convnet", **options: Any) -> tuple[Any, Server, Roles]:
    entry = method(name, **options)
    return entry, *start(entry, backbone(net), clients)


# --- pFedHN, FedTP and FedOFA ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "net", "options"),
    [
        ("pfedhn", "convnet", {"server_clip": 0.02, "server_lr": 2.0}),
        ("pfedhn", "norm", {"server_clip": 0.03, "layers": 1}),
        ("fedtp", "tiny_vit", {"server_momentum": 0.5, "server_weight_decay": 0.2}),
        ("fedtp", "tiny_vit", {"generated_part": "encoder", "also_personal": ("head",), "server_clip": 0.005}),
        ("fedtp_fedrod", "tiny_vit", {"server_clip": None}),
        ("fedofa", "convnet", {"lam": 0.01, "mix": 0.3, "server_clip": 0.05, "filter_embedding": "dense"}),
        ("fedofa", "convnet", {"kind": "intra", "lam": 0.1, "scale": True, "percent": 60.0}),
        ("fedofa", "convnet", {"kind": "inter", "lam": 1e-4, "percent": 90.0, "server_clip": 0.01}),
    ],
)
def test_the_server_steps_along_the_gradient_of_what_it_generates(name: str, net: str, options: dict[str, Any]) -> None:
    """Two of three clients a round, uneven; all are measured with what is generated after the last step.

    With FedRoD: balanced softmax for all but a personal classifier, on the class token before its norm, detached.
    """
    settings = training(rounds=3, lr=0.02, momentum=0.5, batch_size=6)
    hand = Rounds(net, settings, federation((15, 9, 11)), own="head." if "also_personal" in options else "")
    entry: Any = method(name, **{**SIZES, **({"percent": 0.0} if name == "fedofa" else {}), **options})
    (server, roles), two = start(entry, hand.net, 3), name == "fedtp_fedrod"
    params = {n: one.requires_grad_() for n, one in server.extra.items() if not n.startswith("momentum/")}
    rates = {"lr": entry.server_lr, "momentum": entry.server_momentum, "weight_decay": entry.server_weight_decay}
    sgd = torch.optim.SGD(params.values(), **rates)
    hand.x, norms, token = pick(hand.x, roles.shared), [], list[Tensor]()
    heads = [copy.deepcopy(hand.head) for _ in range(3 if two else 0)]
    for head in heads:
        head._forward_pre_hooks.clear()
    if two:
        hand.model.get_submodule("norm").register_forward_pre_hook(lambda _, inputs: token.append(inputs[0]))

    def client(i: int, round_: int) -> Update:
        def loss(rows: Tensor) -> Tensor:
            logits, labels = hand.logits(rows), hand.labels(rows)
            prior = torch.bincount(hand.labels(hand.data.train[i]), minlength=CLASSES).log()
            own = heads[i](token[-1].detach()) + logits.detach()
            return F.cross_entropy(logits + prior, labels) + F.cross_entropy(own, labels)

        received, hooks = hand.x | hand.own[i] | entry.generate(server, [i])[0], []
        for n, parameter in hand.model.named_parameters():  # a pruned weight has no gradient
            kept = received[n] != 0 if is_conv(n) and name == "fedofa" else torch.ones_like(received[n])
            hooks.append(parameter.register_hook(lambda gradient, kept=kept: gradient * kept))
        beside = {"loss": loss, "beside": heads[i].parameters()} if two else {}
        ended = hand.train(i, round_, received, **beside)
        for hook in hooks:
            hook.remove()
        return Update(i, len(hand.data.train[i]), received, ended)

    for round_, cohort in hand:
        updates, total = [client(i, round_) for i in cohort], torch.zeros(())
        for share, one in zip(weights(updates), updates, strict=True):
            made = entry.make(server, [one.client])
            along = [(t[0] * (one.sent[n] - one.returned[n])).sum() for n, t in made.items()]
            total = total + share * torch.stack(along).sum()
            if name == "fedofa":  # before pruning, as the paper writes it
                whole = replace(entry, percent=0.0).make(server, [one.client])
                rows = [tensor[0].flatten(1) for n, tensor in whole.items() if is_conv(n)]
                apart = [(o.t() @ o - torch.eye(o.shape[1])).square().sum() for o in rows]
                total = total + share * entry.lam * torch.stack(apart).mean()
        sgd.zero_grad()
        total.backward()
        norms.append(float(nn.utils.clip_grad_norm_(params.values(), entry.server_clip or float("inf"))))
        sgd.step()
        hand.x |= average(updates, roles.shared)
    assert not options.get("server_clip") or min(norms) > entry.server_clip
    models = [hand.x | hand.own[i] | entry.generate(server, [i])[0] for i in range(3)]
    kept = [add_prefix("head.", head.state_dict()) for head in heads]
    logits = (lambda i, plain: plain + heads[i](token[-1])) if two else None
    beside = {f"server.{n}": one.detach() for n, one in params.items()}
    hand.check(hand.run(entry), beside, kept=kept, models=models, logits=logits)


def test_a_hypernetwork_is_an_mlp_with_a_head_per_tensor() -> None:
    hyper = HyperNetwork(4, 3, 5, 2, {"a": (2, 3), "b": (7,)})
    params = {name: torch.randn_like(one) for name, one in hyper.init(0).items()}
    x = params["embedding"][[2, 0]] @ params["mlp.0.weight"].T + params["mlp.0.bias"]
    x = x.relu() @ params["mlp.1.weight"].T + params["mlp.1.bias"]
    for name, made in hyper(params, [2, 0]).items():
        torch.testing.assert_close(made.flatten(1), x @ params[f"heads.{name}.weight"].T + params[f"heads.{name}.bias"])


@pytest.mark.parametrize("clip", [0.5, None])
def test_a_step_along_a_clipped_gradient_is_as_long_as_the_limit(clip: float | None) -> None:
    """Where h(z) is the heads' biases, so that its derivative is the identity: without a limit, what was returned."""
    plain = {**SIZES, "server_momentum": 0.0, "server_weight_decay": 0.0, "server_lr": 1.0}
    entry, server, roles = fresh("pfedhn", server_clip=clip, **plain)
    for name, tensor in server.extra.items():
        if name.startswith("hyper/") and not (name.startswith("hyper/heads.") and name.endswith(".bias")):
            tensor.zero_()
    one = moved(entry.generate(server, [2])[0], client=2)
    after = entry.generate(entry.update_server(server, roles, [one]), [2])[0]
    steps = torch.cat([(after[name] - one.sent[name]).flatten() for name in after])
    learned = torch.cat([(one.returned[name] - one.sent[name]).flatten() for name in after])
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
    _, server, _ = fresh("pfedhn", 50, hidden=2, embedding=None)
    assert server.extra["hyper/embedding"].shape == (50, 13)
    params = HyperNetwork(300, 20, 64, 2, {"a": (30, 10)}).init(1)
    assert abs(float(params["embedding"].std()) - 1) < 0.05
    for name, width in (("mlp.0", 20), ("mlp.1", 64), ("heads.a", 64)):
        largest = max(float(params[f"{name}.{part}"].abs().max()) for part in ("weight", "bias"))
        assert 0.9 * width**-0.5 < largest <= width**-0.5


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
    own = method("fedtp", generated_part="encoder", also_personal=("norm", "head")).roles(groups)
    assert own.personal == groups.select(("norm", "head"))
    assert own.generated == {name for name in groups.of if name.startswith("blocks.")} - own.personal
    with pytest.raises(UserError, match="fedtp: generated_part 'encoder' lies in the blocks of a Transformer"):
        method("fedtp", generated_part="encoder").roles(groups_of(backbone("convnet")))


OFA: dict[str, Any] = {
    **{"embedding": 4, "hidden": 6, "layers": 2, "heads": 2, "server_lr": 0.3, "server_momentum": 0.9},
    **{"server_weight_decay": 1e-3, "server_clip": 50.0, "percent": 0.0},
}


def test_fedofa_without_attention_regularisation_and_pruning_is_pfedhn() -> None:
    shared = {key: value for key, value in OFA.items() if key not in ("heads", "percent")}
    ofa = run(method("fedofa", **OFA, kind="none", lam=0.0), backbone("convnet"))
    assert result_bytes(ofa) == result_bytes(run(method("pfedhn", **shared), backbone("convnet")))
    with pytest.raises(UserError, match="kind 'tfa' needs a convolution among the generated tensors"):
        run(method("fedofa", **OFA, also_personal=("conv",)), backbone("convnet"))


@pytest.mark.parametrize(("net", "percent", "parts"), [("convnet", 70.0, "conv"), ("lenet_bn", 12.5, "all")])
def test_as_much_is_left_and_travels_as_is_stated(net: str, percent: float, parts: str) -> None:
    """Four bytes per weight that is left; downwards also a bit per weight of a pruned tensor; buffers as they are."""
    seen: list[list[Update]] = []
    entry = method("fedofa", **{**OFA, "percent": percent, "parts": parts})
    settings = training(momentum=0.5, weight_decay=1e-2, clip=1.0)
    cost = run(spied(entry, seen), backbone(net), federation((15, 10, 20), (4, 4, 4)), training=settings).cost
    trained, up, down = groups_of(backbone(net)).parameters, 0, 0
    for name, sent in seen[0][0].sent.items():
        pruned = name in trained and (is_conv(name) or parts == "all")
        dropped = math.floor(sent.numel() * percent / 100) if pruned else 0
        up += sent.element_size() * (sent.numel() - dropped)
        down += sent.element_size() * (sent.numel() - dropped) + (math.ceil(sent.numel() / 8) if dropped else 0)
        for one in (one for updates in seen for one in updates if name in trained):
            assert int((one.sent[name] == 0).sum()) == dropped
            # What was pruned comes back as exactly zero, the rest has learned.
            assert torch.equal(one.returned[name] == 0, one.sent[name] == 0)
    assert (cost.sent_up, cost.sent_down) == (up, down)


# --- mixtures by layer: pFedLA and HeurpFedLA ------------------------------------------------------------------------


class Mixer:
    """One client's hypernetwork, and what it makes of all models; the `keep` layers of largest own share stay."""

    def __init__(self, server: Server, client: int, keep: int) -> None:
        own = strip_prefix("hyper/", server.extra)
        self.params = {name: tensor[client].clone().requires_grad_() for name, tensor in own.items()}
        self.client, self.keep, self.kept = client, keep, set[str]()

    def __call__(self, models: list[State]) -> State:
        def layer(name: str, x: Tensor) -> Tensor:
            return (self.params[f"{name}.weight"] @ x + self.params[f"{name}.bias"]).relu()

        hidden, shares = self.params["embedding"], dict[str, Tensor]()
        for index in range(3):
            hidden = layer(f"mlp.{index}", hidden)
        for name in (name for name in self.params if name.startswith("layers.") and name.endswith(".bias")):
            out = layer(name.removesuffix(".bias"), hidden)
            shares[name.removesuffix(".bias").removeprefix("layers.")] = out / out.sum()
        self.kept = set(sorted(shares, key=lambda one: -float(shares[one][self.client].detach()))[: self.keep])
        made = {}
        for name, mine in models[self.client].items():
            of = name.rpartition(".")[0] or name
            mixed = sum(share * one[name] for share, one in zip(shares[of], models, strict=True))
            made[name] = mine if of in self.kept else mixed
        return made


@pytest.mark.parametrize(
    ("name", "net", "keep", "own"), [("pfedla_layerwise", "tiny_vit", 0, "head."), ("heurpfedla", "convnet", 2, "")]
)
def test_mixtures_by_layer(name: str, net: str, keep: int, own: str) -> None:
    hand = Rounds(net, training(rounds=3, lr=0.03), own=own)
    options = {"embedding": 4, "hidden": 6, "server_lr": 5.0 if keep else 0.05, **({"keep": keep} if keep else {})}
    entry: Any = method(name, **options, also_personal=("head",) if own else ())
    _, roles, told = facts(entry, hand.net)
    tables = add_prefix("common/", entry.init_shared(hand.initial, roles, told))
    server = entry.init_server({**hand.initial, **tables}, roles, replace(told, seed=SEED))
    mixers, models, sent = [Mixer(server, i, keep) for i in range(3)], [hand.x] * 3, list[int]()
    for round_, cohort in hand:
        ends = {}
        for i in cohort:
            received = {n: tensor.detach() for n, tensor in mixers[i](models).items()}
            sent.append(sum(t.nbytes for n, t in received.items() if n.rpartition(".")[0] not in mixers[i].kept))
            ends[i] = pick(hand.train(i, round_, received | hand.own[i]), hand.x)
            sgd = torch.optim.SGD(mixers[i].params.values(), entry.server_lr)
            mixed = {n: tensor for n, tensor in mixers[i](models).items() if tensor.requires_grad}
            torch.autograd.backward(list(mixed.values()), [received[n] - ends[i][n] for n in mixed])
            sgd.step()
            sgd.zero_grad()
        models = [ends.get(i, models[i]) for i in range(3)]  # mixtures of a round are of the models before it
    result = hand.run(entry)
    for i, mixer in enumerate(mixers):
        near({n: result.weights[f"server.models/{n}"][i] for n in models[i]}, models[i])
        values = {name: tensor.detach() for name, tensor in mixer.params.items()}
        near({n: result.weights[f"server.hyper/{n}"][i] for n in values}, values)
    losses(result, [hand.loss(i, mixer(models), hand.own[i]) for i, mixer in enumerate(mixers)])
    assert result.cost.sent_down == pytest.approx(sum(sent) / len(sent), abs=0.5)


def test_heurpfedla_between_pfedla_and_training_alone() -> None:
    sizes = {"embedding": 4, "hidden": 6, "server_lr": 5.0}
    alone = method("local", schedule="when_sampled"), backbone("convnet")
    for keep, other, net in ((0, method("pfedla_layerwise", **sizes), NormNet()), (4, *alone)):
        one, plain = run(method("heurpfedla", keep=keep, **sizes), net), run(other, net)
        assert one.loss.tolist() == plain.loss.tolist() and one.cost.sent_down == plain.cost.sent_down
    with pytest.raises(UserError, match=r"^method heurpfedla: keep: 5 is more than the 4 layers that are mixed$"):
        run(method("heurpfedla", keep=5, **sizes), backbone("convnet"))


def test_mixtures_begin_near_the_mean_and_where_all_outputs_are_zero_a_client_gets_its_own_layer() -> None:
    entry, wide, roles = fresh("pfedla_layerwise", 20, "tiny_vit", embedding=100, hidden=100)
    for one in entry.weights_of(wide, [0, 3]).values():
        assert bool((one >= 0).all()) and float((one - 1 / 20).abs().max()) < 0.5 / 20
    wide.extra["models/head.weight"].normal_()
    wide.extra["hyper/layers.head.weight"][2] = -1.0
    (made,) = entry.generate(wide, [2])
    assert torch.equal(made["head.weight"], wide.extra["models/head.weight"][2])
    after = entry.update_server(wide, roles, [moved(made, client=2)])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.extra.values())
