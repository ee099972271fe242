"""FedOFA against modules, ``backward`` and ``torch.optim.SGD``."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.by_hand import Rounds, State, losses
from support.hypernets import Hypernet, server_entries, start
from support.tiny import (
    assert_states_close,
    backbone,
    federation,
    groups_of,
    method,
    result_bytes,
    run,
    spied,
    training,
)
from torch import Tensor, nn

from pflcore.errors import UserError
from pflcore.groups import Tensors, strip_prefix
from pflcore.method import Server, Update, weights
from pflcore.operators.filter_attention import FilterAttention

OFA: dict[str, Any] = {
    **{"embedding": 4, "hidden": 6, "layers": 2, "heads": 2, "server_lr": 0.3, "server_momentum": 0.9},
    **{"server_weight_decay": 1e-3, "server_clip": 50.0, "percent": 0.0},
}


def is_conv(name: str) -> bool:
    return name.startswith("conv") and name.endswith(".weight")


class Recalibrated(nn.Module):
    """Hypernetwork, attention, and a mask; the hypernetwork and the attention's parameters are its own."""

    def __init__(self, entry: Any, server: Server, shapes: dict[str, torch.Size]) -> None:
        super().__init__()
        self.hypernet, self.percent = Hypernet(server, shapes), entry.percent
        dense = entry.filter_embedding == "dense"
        self.attention = FilterAttention(entry.kind, entry.heads, entry.mix, entry.scale, shapes, entry.bias, dense)
        own = strip_prefix("attention/", server.extra)
        self.params = nn.ParameterDict({name.replace(".", "|"): tensor for name, tensor in own.items()})

    def forward(self, client: int) -> Tensors:
        params = {name.replace("|", "."): tensor for name, tensor in self.params.items()}
        made = {name: tensor.unsqueeze(0) for name, tensor in self.hypernet(client).items()}
        return {name: tensor.squeeze(0) for name, tensor in self.attention(params, made).items()}

    def sent(self, client: int) -> State:
        """What a client gets: of each convolution the smallest values are zero."""
        made = {name: tensor.detach().clone() for name, tensor in self(client).items()}
        for name, tensor in made.items():
            dropped = math.floor(tensor.numel() * self.percent / 100) if is_conv(name) else 0
            tensor.view(-1)[tensor.abs().flatten().argsort()[:dropped]] = 0
        return made

    def values(self) -> State:
        own = {f"attention/{name.replace('|', '.')}": tensor.detach() for name, tensor in self.params.items()}
        return {**self.hypernet.values(), **own}

    def loss(self, updates: list[Update], lam: float) -> Tensor:
        """Σ p · (⟨masked θ, before − after⟩ + λ · mean of ‖Oᵀ·O − I‖²), as the paper writes it."""
        total = torch.zeros(())
        for share, one in zip(weights(updates), updates, strict=True):
            made = self(one.client)
            along = [(t * (one.sent[n] != 0) * (one.sent[n] - one.returned[n])).sum() for n, t in made.items()]
            rows = [tensor.flatten(1) for name, tensor in made.items() if is_conv(name)]
            apart = [(o.t() @ o - torch.eye(o.shape[1])).square().sum() for o in rows]
            total = total + share * (torch.stack(along).sum() + lam * torch.stack(apart).mean())
        return total


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "tfa", "lam": 0.01, "mix": 0.3, "server_clip": 0.05, "filter_embedding": "dense"},
        {"kind": "intra", "lam": 0.1, "scale": True, "percent": 60.0},
        {"kind": "inter", "lam": 1e-4, "percent": 90.0, "server_clip": 0.01},
        {"kind": "none", "lam": 0.05, "percent": 30.0},
    ],
)
def test_fedofa(options: dict[str, Any]) -> None:
    """Two of three clients a round, with momentum and decay on both sides."""
    settings = training(rounds=2, lr=0.02, momentum=0.5, weight_decay=1e-2, batch_size=6)
    hand = Rounds("convnet", settings, federation((15, 9, 11)))
    entry: Any = method("fedofa", **{**OFA, **options})
    initial, roles, server = start(entry, hand.net, 3)
    generator = Recalibrated(entry, server, {n: one.shape for n, one in initial.items() if n in roles.generated})
    sgd = torch.optim.SGD(generator.parameters(), entry.server_lr, momentum=0.9, weight_decay=1e-3)
    for round_, cohort in hand:
        updates = []
        for i in cohort:
            received = generator.sent(i)
            named = [(name, parameter) for name, parameter in hand.model.named_parameters() if is_conv(name)]
            hooks = [one.register_hook(lambda gradient, kept=received[n] != 0: gradient * kept) for n, one in named]
            updates.append(Update(i, len(hand.data.train[i]), received, hand.train(i, round_, received)))
            for hook in hooks:
                hook.remove()
        sgd.zero_grad()
        generator.loss(updates, entry.lam).backward()
        norm = float(nn.utils.clip_grad_norm_(generator.parameters(), entry.server_clip))
        assert "server_clip" not in options or norm > entry.server_clip
        sgd.step()
    result = hand.run(entry)
    assert_states_close(server_entries(result, "hyper/", "attention/"), generator.values(), 1e-5)
    losses(result, [hand.loss(i, generator.sent(i)) for i in range(3)])


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
