"""Servers that generate what clients get, against modules, ``backward`` and ``torch.optim.SGD``."""

import math
from dataclasses import replace

import pytest
import torch
from support import tiny
from support.by_hand import SEED, Rounds, losses, near_rows
from support.tiny import backbone, federation, known, method, result_bytes, run, spied, training
from torch import nn

from pflcore.backbones import BACKBONES
from pflcore.groups import add_prefix, pick, strip_prefix
from pflcore.method import Update, average, weights
from pflcore.methods import METHODS
from pflcore.operators.hypernetworks import HyperNetwork

SIZES = {"embedding": 4, "hidden": 6, "layers": 3, "server_lr": 0.3}
LARGE = torch.Size((3, 32, 32))


def is_conv(name):
    return name.startswith("conv") and name.endswith(".weight")


def start(entry, net, clients=3, novel=()):
    """The server before the first round, and the roles."""
    model, groups = tiny.create(net, SEED, entry)
    initial, roles = dict(model.state_dict()), entry.roles(groups)
    return entry.init_server(initial, roles, known(clients, SEED, initial, roles, novel=frozenset(novel))), roles


@pytest.mark.parametrize(
    "name, net, options",
    [
        ("pfedhn", "convnet", {"server_clip": 0.02, "server_lr": 2.0}),
        ("pfedhn", "norm", {"server_clip": 0.03, "layers": 1}),
        ("fedtp", "tiny_vit", {"server_momentum": 0.5, "server_weight_decay": 0.2}),
        ("fedtp", "tiny_vit", {"generated_part": "encoder", "also_personal": ("head",), "server_clip": 0.005}),
        ("fedofa", "convnet", {"lam": 0.01, "mix": 0.3, "server_clip": 0.05, "filter_embedding": "dense"}),
        ("fedofa", "convnet", {"kind": "intra", "lam": 0.1, "scale": True, "percent": 60.0}),
        ("fedofa", "convnet", {"kind": "inter", "lam": 1e-4, "percent": 90.0, "server_clip": 0.01}),
    ],
)
def test_the_server_steps_along_the_gradient_of_what_it_generates(name, net, options):
    """Two of three clients a round, uneven; all are measured with what is generated after the last step."""
    settings = training(rounds=3, lr=0.02, momentum=0.5, batch_size=6)
    hand = Rounds(net, settings, federation((15, 9, 11)), own="head." if "also_personal" in options else "")
    entry = method(name, **{**SIZES, **({"percent": 0.0} if name == "fedofa" else {}), **options})
    server, roles = start(entry, hand.net)
    params = {n: it.requires_grad_() for n, it in server.extra.items() if not n.startswith("momentum/")}
    rates = {"lr": entry.server_lr, "momentum": entry.server_momentum, "weight_decay": entry.server_weight_decay}
    sgd, norms = torch.optim.SGD(params.values(), **rates), []
    hand.x = pick(hand.x, roles.shared)

    def client(i, round_):
        received = hand.x | hand.own[i] | entry.generate(server, [i])[0]
        hooks = []
        for n, parameter in hand.model.named_parameters():  # a pruned weight has no gradient
            keep = received[n] != 0 if is_conv(n) and name == "fedofa" else torch.ones_like(received[n])
            hooks.append(parameter.register_hook(lambda gradient, keep=keep: gradient * keep))
        ended = hand.train(i, round_, received)
        for hook in hooks:
            hook.remove()
        return Update(i, len(hand.data.train[i]), received, ended)

    for round_, cohort in hand:
        updates, total = [client(i, round_) for i in cohort], 0
        for share, it in zip(weights(updates), updates, strict=True):
            generated = entry.make(server, [it.client])
            total += share * sum((t[0] * (it.sent[n] - it.returned[n])).sum() for n, t in generated.items())
            if name == "fedofa":  # before pruning, as the paper writes it
                full = replace(entry, percent=0.0).make(server, [it.client])
                rows = [tensor[0].flatten(1) for n, tensor in full.items() if is_conv(n)]
                away = [(o.t() @ o - torch.eye(o.shape[1])).square().sum() for o in rows]
                total += share * entry.lam * torch.stack(away).mean()
        sgd.zero_grad()
        total.backward()
        norms.append(float(nn.utils.clip_grad_norm_(params.values(), entry.server_clip or math.inf)))
        sgd.step()
        hand.x |= average(updates, roles.shared)
    assert not options.get("server_clip") or min(norms) > entry.server_clip
    models = [hand.x | hand.own[i] | entry.generate(server, [i])[0] for i in range(3)]
    hand.check(hand.run(entry), {f"server.{n}": it.detach() for n, it in params.items()}, models=models)


def test_a_hypernetwork_is_an_mlp_with_a_head_per_tensor_begun_as_pytorchs():
    params = HyperNetwork(300, 20, 64, 2, {"a": (30, 10)}).init(1)
    assert abs(float(params["embedding"].std()) - 1) < 0.05
    for name, width in (("mlp.0", 20), ("mlp.1", 64), ("heads.a", 64)):
        largest = max(float(params[f"{name}.{part}"].abs().max()) for part in ("weight", "bias"))
        assert 0.9 * width**-0.5 < largest <= width**-0.5
    x = params["embedding"][[2, 0]] @ params["mlp.0.weight"].T + params["mlp.0.bias"]
    x = x.relu() @ params["mlp.1.weight"].T + params["mlp.1.bias"]
    generated = HyperNetwork(300, 20, 64, 2, {"a": (30, 10)})(params, [2, 0])["a"]
    torch.testing.assert_close(generated.flatten(1), x @ params["heads.a.weight"].T + params["heads.a.bias"])


def test_hypernetworks_have_the_parameters_of_the_papers():
    for classes, numbers in ((10, 12_271_732), (100, 13_044_382)):
        with torch.device("meta"):
            entry, (model, groups) = METHODS.create("pfedhn"), BACKBONES.create("convnet").create(LARGE, classes, 0)
            initial, roles = dict(model.state_dict()), entry.roles(groups)
            extra = entry.init_server(initial, roles, known(50, 0, initial, roles)).extra
        assert sum(t.numel() for n, t in extra.items() if n.startswith("hyper/")) == numbers
    assert extra["hyper/embedding"].shape == (50, 13)
    with torch.device("meta"):
        params = HyperNetwork(100, 32, 150, 4, {str(block): (1536, 128) for block in range(8)}).init(0)
    numbers = [sum(t.numel() for n, t in params.items() if kind in n) for kind in ("emb", "mlp", "heads")]
    assert numbers == [3_200, 72_900, 237_502_464]


def test_fedtp_generates_the_chosen_part_of_each_block():
    with torch.device("meta"):
        model, groups = BACKBONES.create("tiny_vit", depth=3).create(LARGE, 10, 0)
    for part, count in (("attention.qkv", 196_608), ("mlp", 65_920), ("norm", 512), ("encoder", 328_704)):
        roles = METHODS.create("fedtp", generated_part=part).roles(groups)
        names = roles.generated
        assert sum(model.state_dict()[name].numel() for name in names) == 3 * count
        assert all(name.startswith("blocks.") for name in names) and roles.shared == groups.group_of.keys() - names
    personal = METHODS.create("fedtp", generated_part="encoder", also_personal=("norm", "head")).roles(groups)
    assert personal.personal == groups.select(("norm", "head")) and personal.generated == names - personal.personal


def test_fedofa_without_attention_regularisation_and_pruning_is_pfedhn():
    ofa = run(method("fedofa", **SIZES, percent=0.0, kind="none", lam=0.0, server_clip=50.0), backbone("convnet"))
    plain = method("pfedhn", **SIZES, server_clip=50.0)
    assert result_bytes(ofa) == result_bytes(run(plain, backbone("convnet")))


@pytest.mark.parametrize("net, percent, parts", [("convnet", 70.0, "conv"), ("lenet_bn", 12.5, "all")])
def test_as_much_is_left_and_travels_as_is_stated(net, percent, parts):
    """Four bytes per weight that is left; downwards also a bit per weight of a pruned tensor; buffers as they are."""
    entry, net, seen = method("fedofa", percent=percent, parts=parts), backbone(net), []
    settings = training(momentum=0.5, weight_decay=1e-2, clip=1.0)
    cost = run(spied(entry, seen), net, federation((15, 10, 20), (4, 4, 4)), training=settings).cost
    up = down = 0
    for name, sent in seen[0][0].sent.items():
        trained = name in tiny.groups_of(net).parameters
        dropped = math.floor(sent.numel() * percent / 100) if trained and (is_conv(name) or parts == "all") else 0
        up += sent.element_size() * (sent.numel() - dropped)
        down += sent.element_size() * (sent.numel() - dropped) + (math.ceil(sent.numel() / 8) if dropped else 0)
        for update in (update for updates in seen for update in updates if trained):
            assert int((update.sent[name] == 0).sum()) == dropped
            # What was pruned comes back as exactly zero, the rest has learned.
            assert torch.equal(update.returned[name] == 0, update.sent[name] == 0)
    assert (cost.sent_up, cost.sent_down) == (up, down)


class Mixer:
    """One client's hypernetwork, and what it makes of all models; the `keep` layers of largest own share stay."""

    def __init__(self, server, client, keep):
        params = strip_prefix("hyper/", server.extra)
        self.params = {name: tensor[client].clone().requires_grad_() for name, tensor in params.items()}
        self.client, self.keep, self.kept = client, keep, set()

    def layer(self, name, x):
        return (self.params[f"{name}.weight"] @ x + self.params[f"{name}.bias"]).relu()

    def __call__(self, models):
        hidden, shares, model = self.params["embedding"], {}, {}
        for index in range(3):
            hidden = self.layer(f"mlp.{index}", hidden)
        for layer in {name.rpartition(".")[0] or name for name in models[0]}:
            out = self.layer(f"layers.{layer}", hidden)
            shares[layer] = out / out.sum()
        self.kept = set(sorted(shares, key=lambda it: -float(shares[it][self.client].detach()))[: self.keep])
        for name, value in models[self.client].items():
            layer = name.rpartition(".")[0] or name
            mixed = sum(share * it[name] for share, it in zip(shares[layer], models, strict=True))
            model[name] = value if layer in self.kept else mixed
        return model


@pytest.mark.parametrize("name, net, keep", [("pfedla_layerwise", "tiny_vit", 0), ("heurpfedla", "convnet", 2)])
def test_mixtures_by_layer(name, net, keep):
    own = "" if keep else "head."
    hand = Rounds(net, training(rounds=3, lr=0.03), own=own)
    options = {"embedding": 4, "hidden": 6, "server_lr": 5.0 if keep else 0.05, **({"keep": keep} if keep else {})}
    entry = method(name, **options, also_personal=("head",) if own else ())
    _, roles, federation_ = tiny.facts(entry, hand.net)
    tables = add_prefix("common/", entry.init_shared(hand.initial, roles, federation_))
    server = entry.init_server({**hand.initial, **tables}, roles, replace(federation_, seed=SEED))
    mixers, models, sent = [Mixer(server, i, keep) for i in range(3)], [hand.x] * 3, []
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
        near_rows(result, "models", i, models[i])
        near_rows(result, "hyper", i, {name: tensor.detach() for name, tensor in mixer.params.items()})
    losses(result, [hand.loss(i, mixer(models), hand.own[i]) for i, mixer in enumerate(mixers)])
    assert result.cost.sent_down == pytest.approx(sum(sent) / len(sent), abs=0.5)


def test_mixtures_begin_near_the_mean_and_where_all_outputs_are_zero_a_client_gets_its_own_layer():
    entry = method("pfedla_layerwise", embedding=100, hidden=100)
    wide, roles = start(entry, backbone("tiny_vit"), 20)
    for shares in entry.weights_of(wide, [0, 3]).values():
        assert bool((shares >= 0).all()) and float((shares - 1 / 20).abs().max()) < 0.5 / 20
    wide.extra["models/head.weight"].normal_()
    wide.extra["hyper/layers.head.weight"][2] = -1.0
    (model,) = entry.generate(wide, [2])
    assert torch.equal(model["head.weight"], wide.extra["models/head.weight"][2])
    after = entry.update_server(wide, roles, [Update(2, 5, model, {n: torch.randn_like(t) for n, t in model.items()})])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.extra.values())


def test_models_of_clients_that_never_train_are_not_mixed_in():
    entry = method("pfedla_layerwise")
    server, roles = start(entry, backbone("convnet"), 4, novel=[2])
    for _ in range(2):
        (sent,) = entry.generate(server, [1])
        for models in entry.models(server).values():
            models[2] += 9.0
        (model,) = entry.generate(server, [1])
        assert all(torch.equal(model[name], tensor) for name, tensor in sent.items())
        returned = {name: tensor + torch.randn_like(tensor) for name, tensor in sent.items()}
        server = entry.update_server(server, roles, [Update(1, 5, sent, returned)])
