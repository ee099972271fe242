"""The arithmetic of a run is a setting; parameters stay float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny import assert_states_close, backbone, method, run, training

from pflcore.engine import Result
from pflcore.engine.precision import use_precision
from pflcore.errors import UserError


def trained(precision: str, executor: str = "sequential", net: str = "tiny_vit") -> Result:
    return run(method("fedper"), backbone(net), training=training(precision=precision), executor=executor)


@pytest.mark.parametrize("net", ["convnet", "tiny_vit"])
def test_bf16_is_close_to_fp32_but_not_the_same(net: str) -> None:
    half, full = trained("bf16", net=net), trained("fp32", net=net)
    assert not np.array_equal(half.loss, full.loss)
    np.testing.assert_allclose(half.loss, full.loss, rtol=0.1)
    for name, tensor in half.weights.items():
        assert tensor.dtype == full.weights[name].dtype
        torch.testing.assert_close(tensor, full.weights[name], rtol=0.1, atol=0.02)


def test_on_a_cpu_tf32_is_fp32() -> None:
    assert np.array_equal(trained("tf32").loss, trained("fp32").loss)


@pytest.mark.parametrize("executor", ["pooled", "stacked"])
def test_executors_agree_in_bf16(executor: str) -> None:
    one, other = trained("bf16", executor), trained("bf16")
    np.testing.assert_allclose(one.loss, other.loss, rtol=0.02)
    if executor == "pooled":
        assert_states_close(one.weights, other.weights)


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("bf16", False)])
def test_switches_are_set_for_the_run_and_put_back(precision: str, allowed: bool) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with pytest.raises(KeyError), use_precision(precision):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (allowed, allowed)
        raise KeyError
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UserError, match=r"Training.precision = 'fp16' must be one of"):
        training(precision="fp16")
