"""MOON with its projection against rounds of a module that is put together by hand."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from support.pretend_device import pretend_cuda
from support.pretend_device.runs import on_host
from support.tiny import (
    EXECUTORS,
    NormNet,
    backbone,
    batches,
    create,
    federation,
    method,
    normalised,
    run,
    run_by_all,
    sampled,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from pflcore.backbones import Backbone
from pflcore.errors import UserError

SEED, MU, TAU, WIDTH = 3, 2.0, 0.3, 5
DATA = federation()


class Projected(nn.Module):
    """Body, projection and classifier, one after the other; gives logits and what is compared."""

    def __init__(self, net: Backbone, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.body = create(net, SEED)[0]
        width, classes = start["projection.hidden.weight"].shape[0], len(start["head.bias"])
        self.body.head = nn.Identity()
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, WIDTH))
        self.head = nn.Linear(WIDTH, classes)
        names = {"projection.hidden": "projection.0", "projection.out": "projection.2", "head": "head"}
        self.names = {name: self.mine(name, names) for name in start}
        self.load_state_dict({self.names[name]: tensor for name, tensor in start.items()})

    @staticmethod
    def mine(name: str, names: Mapping[str, str]) -> str:
        module, _, entry = name.rpartition(".")
        return f"{names[module]}.{entry}" if module in names else f"body.{name}"

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projection(self.body(inputs))
        return self.head(z), z

    def state(self) -> dict[str, Tensor]:
        own = self.state_dict()
        return {name: own[mine].clone() for name, mine in self.names.items()}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("net", [backbone("convnet"), NormNet()], ids=["convnet", "norm"])
def test_rounds_are_those_of_the_paper(net: Backbone, executor: str) -> None:
    entry, settings = method("moon", mu=MU, tau=TAU, projection=WIDTH), training(rounds=3, momentum=0.5)
    result = run(entry, net, DATA, training=settings, seed=SEED, executor=executor)
    w = {name: tensor.clone() for name, tensor in create(net, SEED, entry)[0].state_dict().items()}
    previous = [w] * 3
    for round_ in range(1, settings.rounds + 1):
        cohort = sampled(SEED, round_, 3, settings)
        for client in cohort:
            model = Projected(net, w).train()
            others = [Projected(net, one).train() for one in (w, previous[client])]
            sgd = torch.optim.SGD(model.parameters(), settings.lr, momentum=settings.momentum)
            for rows in batches(DATA, client, round_, settings, SEED):
                inputs = normalised(DATA, rows)
                logits, z = model(inputs)
                towards, away = (F.cosine_similarity(z, copy.deepcopy(one)(inputs)[1].detach()) for one in others)
                ratio = (towards / TAU).exp() / ((towards / TAU).exp() + (away / TAU).exp())
                sgd.zero_grad()
                (F.cross_entropy(logits, DATA.labels[rows]) - MU * ratio.log().mean()).backward()
                sgd.step()
            previous[client] = model.state()
        total = sum(len(DATA.train[client]) for client in cohort)
        w = {
            name: sum(len(DATA.train[one]) / total * previous[one][name] for one in cohort)
            if tensor.is_floating_point()
            else previous[cohort[0]][name]
            for name, tensor in w.items()
        }
    for name, tensor in w.items():
        torch.testing.assert_close(result.weights[name], tensor, rtol=1e-3, atol=2e-5)
    measured = Projected(net, w).eval()
    for client, rows in enumerate(DATA.test):
        loss = float(F.cross_entropy(measured(normalised(DATA, rows))[0].detach(), DATA.labels[rows]))
        assert result.loss[6 + client] == pytest.approx(loss, rel=1e-3)


def test_the_model_has_the_authors_shape() -> None:
    """Two layers and a classifier of their width; the rest begins as without them."""
    with_it, without = (create(backbone("convnet"), 0, one)[0] for one in (method("moon", projection=256), None))
    added = {name: tuple(tensor.shape) for name, tensor in with_it.state_dict().items() if name[:4] in ("proj", "head")}
    assert added == {
        "head.weight": (4, 256), "head.bias": (4,),
        "projection.hidden.weight": (8, 8), "projection.hidden.bias": (8,),
        "projection.out.weight": (256, 8), "projection.out.bias": (256,),
    }  # fmt: skip
    for name, tensor in without.state_dict().items():
        assert name.startswith("head.") or torch.equal(with_it.state_dict()[name], tensor)


def test_a_module_of_its_own_gets_what_its_classifier_got() -> None:
    """That is the class token after its norm, in a backbone that is no sequence of layers."""
    net = backbone("tiny_vit")
    model, plain = create(net, 0, method("moon", projection=6))[0].eval(), create(net, 0)[0].eval()
    plain.head = nn.Identity()
    state, images = model.state_dict(), torch.randn(3, 1, 8, 8)
    hidden = F.relu(plain(images) @ state["projection.hidden.weight"].T + state["projection.hidden.bias"])
    z = hidden @ state["projection.out.weight"].T + state["projection.out.bias"]
    torch.testing.assert_close(model(images), z @ state["head.weight"].T + state["head.bias"])


@pytest.mark.parametrize("net", ["tiny_vit", "language_transformer"])
def test_executors_agree_on_transformers(net: str) -> None:
    result = run_by_all(method("moon", projection=6), backbone(net))
    assert result.weights["projection.out.weight"].shape[0] == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
@pytest.mark.parametrize("net", [backbone("convnet"), backbone("tiny_vit", dropout=0.0)], ids=["convnet", "tiny_vit"])
def test_on_a_pretended_gpu_it_is_the_same(net: Backbone) -> None:
    entry, settings = method("moon", projection=6), training(rounds=3)
    with pretend_cuda() as events:
        there = on_host(run(entry, net, federation(device="cuda"), training=settings, executor="stacked"))
    here = run(entry, net, federation(), training=settings, executor="sequential")
    assert events["replays"] > 0
    torch.testing.assert_close(there.weights["projection.out.weight"], here.weights["projection.out.weight"])
    assert there.loss.tolist() == pytest.approx(here.loss.tolist(), rel=1e-4)


def test_the_projection_is_a_group() -> None:
    result = run(method("moon", projection=6, also_personal=("projection",)), backbone("convnet"))
    assert "projection.out.bias" not in result.weights and "client.0.projection.out.bias" in result.weights


def test_a_backbone_without_a_last_linear_layer_is_refused() -> None:
    with pytest.raises(UserError, match=r"^method moon: projection: the backbone ends with Softmax, not a linear"):
        method("moon", projection=4).extend(nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)))
    with pytest.raises(UserError, match=r"^moon.projection = 0 must be at least 1"):
        method("moon", projection=0)
