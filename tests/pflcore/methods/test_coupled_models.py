"""Methods whose server stores all clients' models: FedU's coupling and pFedLA's layer-wise mixtures."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import (
    NormNet,
    assert_states_close,
    backbone,
    create,
    federation,
    groups_of,
    method,
    normalised,
    run,
    sampled,
    train_by_hand,
    training,
)
from torch import nn
from torch.nn import functional as F

from pflcore.backbones import BACKBONES
from pflcore.groups import Roles, Tensors
from pflcore.method import Federation, Server, Update
from pflcore.methods import METHODS, Method

SEED = 3


def start(entry: Method, net: Any, clients: int) -> tuple[nn.Module, Tensors, Roles, Server]:
    model, groups = create(net, SEED, entry)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    roles = entry.roles(groups)
    return model, initial, roles, entry.init_server(initial, roles, Federation(clients, SEED))


def stored(server: Server, client: int) -> Tensors:
    return {
        name.removeprefix("models/"): tensor[client].clone()
        for name, tensor in server.extra.items()
        if name.startswith("models/")
    }


def at_random(server: Server, seed: int = 0) -> None:
    """Other models for all clients."""
    torch.manual_seed(seed)
    for name in sorted(server.extra):
        if name.startswith("models/"):
            server.extra[name].normal_()


# --- FedU ----------------------------------------------------------------------------------------------------------


def couple(models: dict[int, Tensors], step: float) -> dict[int, Tensors]:
    """Every model moves along the sum of its differences to all."""
    return {
        k: {name: own - step * sum((own - other[name]) for other in models.values()) for name, own in model.items()}
        for k, model in models.items()
    }  # type: ignore[return-value]


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    st.floats(0, 2),
    st.floats(0, 0.5),
)
def test_the_coupling_is_a_step_of_the_laplacian(
    samples: int, clients: list[int], coupling: float, strength: float
) -> None:
    entry: Any = METHODS.create("fedu", coupling=coupling, strength=strength)
    roles = Roles(frozenset(), frozenset(), frozenset({"w"}))
    server = entry.init_server({"w": torch.zeros(4)}, roles, Federation(6, 0))
    torch.manual_seed(len(clients))
    returned = torch.randn(len(clients), 4)
    updates = [
        Update(client, samples + client, {"w": torch.zeros(4)}, {"w": row})
        for client, row in zip(clients, returned, strict=True)
    ]
    after = entry.update_server(server, roles, updates).extra["models/w"]
    laplacian = len(clients) * torch.eye(len(clients)) - torch.ones(len(clients), len(clients))
    expected = torch.zeros(6, 4)
    expected[clients] = returned - strength * coupling * laplacian @ returned
    torch.testing.assert_close(after, expected, atol=1e-5, rtol=1e-5)
    # The mean of the cohort stays where it is.
    torch.testing.assert_close(after[clients].mean(0), returned.mean(0), atol=1e-5, rtol=1e-5)


def test_the_default_step_is_that_of_the_authors_code() -> None:
    entry: Any = METHODS.create("fedu")
    assert entry.coupling == 0.5
    assert entry.strength == pytest.approx(0.5 * 0.05 * 0.03 * 1 * 1)


@pytest.mark.parametrize("net", ["convnet", "norm_net"])
def test_without_coupling_it_is_local_training(net: str) -> None:
    chosen: Any = NormNet() if net == "norm_net" else backbone(net)
    data, settings = federation((13, 8, 10)), training(rounds=3, momentum=0.5)
    fedu, local = (
        run(entry, chosen, data, training=settings)
        for entry in (method("fedu", coupling=0.0), method("local", schedule="when_sampled"))
    )
    assert fedu.correct.tolist() == local.correct.tolist()
    torch.testing.assert_close(torch.from_numpy(fedu.loss), torch.from_numpy(local.loss))
    trained = {int(name.split(".")[1]) for name in local.weights}
    for client, name in itertools.product(sorted(trained), groups_of(chosen).of):
        stored = f"client.{client}.{name}"
        own = fedu.weights[stored] if stored in fedu.weights else fedu.weights[f"server.models/{name}"][client]
        torch.testing.assert_close(own, local.weights[stored])
    assert fedu.cost.sent_up == fedu.cost.sent_down == 4 * sum(p.numel() for p in create(chosen)[0].parameters())


def test_a_coupling_of_one_over_the_cohort_gives_all_the_mean() -> None:
    data = federation((10, 10, 10))
    settings = training(rounds=1, sample_rate=1.0)
    result = run(method("fedu", coupling=1.0, strength=1 / 3), backbone("convnet"), data, training=settings)
    averaged = run(method("fedavg"), backbone("convnet"), data, training=settings)
    for name, tensor in averaged.weights.items():
        torch.testing.assert_close(result.weights[f"server.models/{name}"], tensor.expand(3, *tensor.shape))
    torch.testing.assert_close(torch.from_numpy(result.loss), torch.from_numpy(averaged.loss))


def test_fedu_equals_rounds_written_out_by_hand() -> None:
    """Two of three clients a round; who is not sampled neither moves nor pulls."""
    net, data = backbone("convnet"), federation((14, 7, 9))
    settings = training(rounds=3, momentum=0.5)
    model, initial, _, _ = start(method("fedu"), net, 3)
    models = {client: initial for client in range(3)}
    for round_ in (1, 2, 3):
        cohort = sampled(SEED, round_, 3, settings)
        done = {client: train_by_hand(model, models[client], data, client, round_, settings, SEED) for client in cohort}
        models.update(couple(done, 0.2 * 0.5))
    result = run(method("fedu", coupling=0.5, strength=0.2), net, data, training=settings)
    for client, expected in models.items():
        own = {name: result.weights[f"server.models/{name}"][client] for name in expected}
        assert_states_close(own, expected, 1e-5)
        model.load_state_dict(expected)
        rows = data.test[client]
        loss = float(F.cross_entropy(model(normalised(data, rows)).detach(), data.labels[rows]))
        assert result.loss[6 + client] == pytest.approx(loss, rel=1e-4)


def test_buffers_of_fedu_stay_on_the_client() -> None:
    groups = groups_of(NormNet())
    roles = method("fedu").roles(groups)
    assert roles.personal == set(groups.of) - groups.parameters
    assert roles.generated == groups.parameters and not roles.shared


# --- layer-wise mixtures: a module per client ----------------------------------------------------------------------

SIZES: dict[str, Any] = {"embedding": 4, "hidden": 6, "server_lr": 0.05}


class Mixer(nn.Module):
    """One client's hypernetwork, with the values of a server's entries."""

    def __init__(self, server: Server, client: int) -> None:
        super().__init__()
        own = {name.removeprefix("hyper/"): tensor[client].clone() for name, tensor in server.extra.items()
               if name.startswith("hyper/")}  # fmt: skip
        self.client = client
        self.embedding = nn.Parameter(own["embedding"])
        self.mlp = nn.Sequential()
        self.outputs = nn.ModuleDict()
        for name, weight in own.items():
            if not name.endswith(".weight"):
                continue
            stem = name.removesuffix(".weight")
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight, "bias": own[f"{stem}.bias"]})
            if stem.startswith("mlp."):
                self.mlp.extend([layer, nn.ReLU()])
            else:
                self.outputs[stem.removeprefix("layers.").replace(".", "|")] = layer

    def forward(self, models: list[Tensors]) -> Tensors:
        hidden = self.mlp(self.embedding)
        made = {}
        for name in models[0]:
            outputs = self.outputs[name.rpartition(".")[0].replace(".", "|") or name](hidden).relu()
            shares = outputs / outputs.sum()
            made[name] = sum(share * model[name] for share, model in zip(shares, models, strict=True))
        return made  # type: ignore[return-value]

    def values(self) -> Tensors:
        """By the names of the server's entries."""
        values = {"hyper/embedding": self.embedding.detach()}
        for index in range(3):
            linear = self.mlp[2 * index].state_dict()
            values.update({f"hyper/mlp.{index}.{part}": tensor for part, tensor in linear.items()})
        for name, layer in self.outputs.items():
            stem = f"hyper/layers.{name.replace('|', '.')}"
            values.update({f"{stem}.{part}": tensor for part, tensor in layer.state_dict().items()})
        return values


@pytest.mark.parametrize(("name", "options"), [("convnet", {}), ("tiny_vit", {"also_personal": ("head",)})])
def test_mixtures_equal_rounds_written_out_by_hand(name: str, options: dict[str, Any]) -> None:
    net, data = backbone(name), federation((14, 7, 9))
    settings = training(rounds=3, sample_rate=0.67, lr=0.03)
    entry: Any = method("pfedla_layerwise", **{**SIZES, **options})
    model, initial, roles, server = start(entry, net, 3)
    mixers = [Mixer(server, client) for client in range(3)]
    models = [{name: initial[name] for name in initial if name in roles.generated} for _ in range(3)]
    personal = [{name: initial[name] for name in initial if name in roles.personal} for _ in range(3)]
    for round_ in (1, 2, 3):
        returned = {}
        for client in sampled(SEED, round_, 3, settings):
            made = {name: tensor.detach() for name, tensor in mixers[client](models).items()}
            received = {**made, **personal[client]}
            returned[client] = train_by_hand(model, received, data, client, round_, settings, SEED)
            sgd = torch.optim.SGD(mixers[client].parameters(), 0.05)
            mixed = mixers[client](models)
            changes = [received[name] - returned[client][name] for name in mixed]
            torch.autograd.backward(list(mixed.values()), changes)
            sgd.step()
            sgd.zero_grad()
        for client, after in returned.items():  # mixtures of a round are of the models before it
            models[client] = {name: after[name] for name in models[client]}
            personal[client] = {name: after[name] for name in personal[client]}
    result = run(entry, net, data, training=settings)
    for client in range(3):
        expected = mixers[client].values()
        obtained = {name: result.weights[f"server.{name}"][client] for name in expected}
        assert_states_close(obtained, expected, 1e-5)
        own = {name: result.weights[f"server.models/{name}"][client] for name in models[client]}
        assert_states_close(own, models[client], 1e-5)
        model.load_state_dict({**mixers[client](models), **personal[client]})
        model.eval()
        rows = data.test[client]
        loss = float(F.cross_entropy(model(normalised(data, rows)).detach(), data.labels[rows]))
        assert result.loss[6 + client] == pytest.approx(loss, rel=1e-4)


def mixed_server(clients: int = 4, **options: Any) -> tuple[Any, Roles, Server]:
    entry = METHODS.create("pfedla_layerwise", **{**SIZES, **options})
    _, _, roles, server = start(entry, backbone("convnet"), clients)
    at_random(server)
    return entry, roles, server


def mixtures(entry: Any, server: Server, clients: list[int]) -> Tensors:
    params = {n.removeprefix("hyper/"): t[clients] for n, t in server.extra.items() if n.startswith("hyper/")}
    layers = {name.rpartition(".")[0] for name in stored(server, 0)}
    return entry.mixtures(params, clients, sorted(layers))


def test_mixtures_are_shares_and_begin_near_the_plain_mean() -> None:
    entry, _, server = mixed_server(20, embedding=100, hidden=100)
    shares = mixtures(entry, server, [0, 3, 7])
    assert set(shares) == {"conv1", "conv2", "fc1", "head"}
    for one in shares.values():
        assert one.shape == (3, 20) and bool((one >= 0).all())
        torch.testing.assert_close(one.sum(1), torch.ones(3))
        assert float((one - 1 / 20).abs().max()) < 0.5 / 20
    # A client's layers, and clients, have weights of their own.
    assert not torch.equal(shares["conv1"], shares["conv2"]) and not torch.equal(shares["fc1"][0], shares["fc1"][1])


def test_where_all_outputs_are_zero_a_client_gets_its_own_layer() -> None:
    entry, roles, server = mixed_server()
    server.extra["hyper/layers.conv2.weight"][2] = -1.0
    shares = mixtures(entry, server, [1, 2])
    assert shares["conv2"][1].tolist() == [0, 0, 1, 0]
    (made,) = entry.generate(server, [2])
    own = stored(server, 2)
    assert torch.equal(made["conv2.weight"], own["conv2.weight"]) and torch.equal(made["conv2.bias"], own["conv2.bias"])
    assert not torch.equal(made["conv1.weight"], own["conv1.weight"])
    after = entry.update_server(server, roles, [Update(2, 5, made, {n: t + 1 for n, t in made.items()})])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.extra.values())
    assert bool((after.extra["hyper/layers.conv2.weight"][2] == -1).all())  # nothing to learn from


@pytest.mark.parametrize("friend", [0, 3])
def test_weights_grow_of_the_models_that_resemble_what_the_client_returned(friend: int) -> None:
    """The sign: after training ends in a friend's model, more of that model is mixed in, layer by layer."""
    entry, roles, server = mixed_server(server_lr=1e-3)
    (sent,) = entry.generate(server, [1])
    returned = stored(server, friend)
    returned["fc1.weight"], returned["fc1.bias"] = sent["fc1.weight"], sent["fc1.bias"]
    before = mixtures(entry, server, [1])
    server = entry.update_server(server, roles, [Update(1, 5, sent, returned)])
    after = mixtures(entry, server, [1])
    for layer in ("conv1", "conv2", "head"):
        assert after[layer][0, friend] > before[layer][0, friend]


def test_only_a_clients_own_hypernetwork_and_model_change() -> None:
    entry, roles, server = mixed_server()
    before = {name: tensor.clone() for name, tensor in server.extra.items()}
    updates = [
        Update(client, 5, sent, {name: tensor + 0.1 * torch.randn(tensor.shape) for name, tensor in sent.items()})
        for client, sent in zip([0, 2], entry.generate(server, [0, 2]), strict=True)
    ]
    after = entry.update_server(server, roles, updates).extra
    for name, tensor in after.items():
        assert all(torch.equal(tensor[client], before[name][client]) for client in (1, 3))
        if name.startswith("models/"):
            for client, one in zip([0, 2], updates, strict=True):
                assert torch.equal(tensor[client], one.returned[name.removeprefix("models/")])
    for client, layer in itertools.product([0, 2], ["conv1", "conv2", "fc1", "head"]):
        name = f"hyper/layers.{layer}.weight"
        assert not torch.equal(after[name][client], before[name][client])


def test_each_client_learns_as_if_it_were_alone() -> None:
    entry, roles, server = mixed_server()
    sent = entry.generate(server, [0, 2])
    updates = [Update(c, 5 + c, one, {n: 2 * t for n, t in one.items()}) for c, one in zip([0, 2], sent, strict=True)]
    copy = Server({}, {name: tensor.clone() for name, tensor in server.extra.items()})
    together = entry.update_server(server, roles, updates).extra
    alone = entry.update_server(copy, roles, updates[1:]).extra
    for name, tensor in together.items():
        if name.startswith("hyper/"):
            torch.testing.assert_close(tensor[2], alone[name][2])


def test_a_layer_is_a_module_with_parameters() -> None:
    with torch.device("meta"):
        model, groups = BACKBONES.create("tiny_vit", depth=1).create((3, 32, 32), 10, 0)
    entry = METHODS.create("pfedla_layerwise")
    state = {name: torch.empty(1) for name in model.state_dict()}
    server = entry.init_server(state, entry.roles(groups), Federation(2, 0))
    outputs = {name for name in server.extra if name.startswith("hyper/layers.") and name.endswith(".weight")}
    block = ("attention_norm", "attention.qkv", "attention.out", "mlp_norm", "mlp.0", "mlp.3")
    layers = ["patch_embed", "cls_token", "pos_embed", "norm", "head", *(f"blocks.0.{name}" for name in block)]
    assert outputs == {f"hyper/layers.{layer}.weight" for layer in layers}


def test_buffers_of_mixtures_are_shared() -> None:
    groups = groups_of(NormNet())
    roles = method("pfedla_layerwise").roles(groups)
    assert roles.shared == set(groups.of) - groups.parameters
    assert roles.generated == groups.parameters


def test_the_defaults_of_mixtures() -> None:
    entry: Any = METHODS.create("pfedla_layerwise")
    assert (entry.embedding, entry.hidden, entry.server_lr) == (100, 100, 20.0)


def test_hypernetworks_begin_as_stated() -> None:
    entry, _, server = mixed_server(5, embedding=50, hidden=40)
    extra = server.extra
    assert abs(float(extra["hyper/embedding"].std()) - 1) < 0.15
    for index, width in enumerate((50, 40, 40)):
        for part in ("weight", "bias"):
            assert 0.9 * width**-0.5 < float(extra[f"hyper/mlp.{index}.{part}"].abs().max()) <= width**-0.5
    outputs = extra["hyper/layers.head.weight"]
    assert 0 <= float(outputs.min()) < 0.05 and 0.95 < float(outputs.max()) <= 1
    assert not extra["hyper/layers.head.bias"].any()
    again = start(entry, backbone("convnet"), 5)[3].extra
    assert all(torch.equal(extra[name], again[name]) for name in extra if name.startswith("hyper/"))


def test_the_order_of_a_servers_entries_does_not_matter() -> None:
    entry, roles, server = mixed_server()
    same = Server({}, {key: server.extra[key].clone() for key in sorted(server.extra, reverse=True)})
    updates = [
        Update(client, 4, sent, {key: tensor * 1.1 for key, tensor in sent.items()})
        for client, sent in enumerate(entry.generate(server, [0, 1]))
    ]
    first, second = (entry.update_server(each, roles, updates).extra for each in (server, same))
    assert all(torch.equal(first[key], second[key]) for key in first)
