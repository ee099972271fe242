"""Functions in forms of ours: the values and gradients of PyTorch's, in fewer operations, and only vectorised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.tiny import assert_states_close, backbone, method, run
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from pflcore.engine.executors import vectorised
from pflcore.engine.executors.vectorised import Rewritten
from pflcore.engine.forward import attention

# --- rewritten -------------------------------------------------------------------------------------------------------


QKV = [torch.randn(2, 3, length, 5, generator=torch.Generator().manual_seed(length)).double() for length in (4, 6, 6)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Something for each time that attention was computed here."""
    seen: list[int] = []

    def noted(*qkv: Tensor) -> Tensor:
        seen.append(1)
        return attention(*qkv)

    monkeypatch.setattr(vectorised, "attention", noted)
    return seen


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        ({}, 1),
        ({"attn_mask": None, "dropout_p": 0.0, "is_causal": False}, 1),
        ({"is_causal": True}, 0),
        ({"scale": 0.5}, 0),
        ({"attn_mask": torch.zeros(4, 6).double()}, 0),
    ],
)
def test_what_has_options_is_left_to_pytorch(options: dict[str, Any], ours: int, calls: list[int]) -> None:
    expected = F.scaled_dot_product_attention(*QKV, **options)
    with Rewritten():
        torch.testing.assert_close(F.scaled_dot_product_attention(*QKV, **options), expected)
    assert len(calls) == ours


@pytest.mark.parametrize(("net", "name"), [("tiny_vit", "fedavg"), ("tiny_vit", "prefix"), ("vit", "fedavg")])
def test_stacked_clients_have_it_and_others_have_not(net: str, name: str, calls: list[int]) -> None:
    expected = run(method(name), backbone(net), executor="sequential")
    assert not calls
    found = run(method(name), backbone(net), executor="stacked")
    assert calls
    assert_states_close(found.weights, expected.weights, atol=1e-5)


class Operations(TorchDispatchMode):
    """Counts what is executed, but for views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func._schema.name == "aten::_unsafe_view")
        return func(*args, **(kwargs or {}))


def slopes_and_operations(form: Callable[..., Tensor], *given: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """The gradients of each client, and how many operations they took."""
    slopes = vmap(grad(lambda *given: form(*given).sin().sum(), tuple(range(len(given)))))
    with Operations() as operations:
        made: tuple[Tensor, ...] = slopes(*given)
    return made, operations.count


def norm(x: Tensor, *own: Tensor) -> Tensor:
    return F.layer_norm(x, (5,), *own, eps=0.1)


@pytest.mark.parametrize(
    ("form", "shapes", "fewer"),
    [(norm, [], 0), (norm, [(5,)], 2), (norm, [(5,), (5,)], 2), (F.linear, [(6, 5)], 0), (F.linear, [(6, 5), (6,)], 1)],
)
def test_layers(form: Callable[..., Tensor], shapes: list[tuple[int, ...]], fewer: int) -> None:
    torch.manual_seed(0)
    given = [torch.randn(3, *shape).double() for shape in [(4, 2, 5), *shapes]]
    expected, before = slopes_and_operations(form, *given)
    with Rewritten():
        found, after = slopes_and_operations(form, *given)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    assert before - after == fewer
