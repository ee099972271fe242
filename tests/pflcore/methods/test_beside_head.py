"""What methods put beside a classifier: layers that begin as PyTorch's do, drawn for the seed and the purpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pflcore.errors import UserError
from pflcore.method import Federation
from pflcore.methods._beside_head import classified, classifier_weight, normed_layer


def test_a_layer_begins_as_pytorchs() -> None:
    """Uniform over ±1/√inputs, in weight and bias."""
    made = normed_layer(25, 400, 3, "one")
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == {
        **{"weight": (400, 25), "bias": (400,)},
        **{"norm.weight": (400,), "norm.bias": (400,)},
    }
    for name in ("weight", "bias"):
        values, theirs = made[name], nn.Linear(25, 400).state_dict()[name]
        assert float(values.abs().max()) <= 0.2 and values.dtype == torch.float32
        assert (float(values.min()), float(values.max())) == pytest.approx((-0.2, 0.2), abs=0.005)
        quantiles = torch.linspace(0.05, 0.95, 7)
        np.testing.assert_allclose(values.quantile(quantiles), theirs.quantile(quantiles), atol=0.04)
    assert made["norm.weight"].eq(1).all() and made["norm.bias"].eq(0).all()
    for other in (normed_layer(25, 400, 4, "one"), normed_layer(25, 400, 3, "two")):
        assert not torch.equal(other["weight"], made["weight"]) and not torch.equal(other["bias"], made["bias"])
    assert torch.equal(normed_layer(25, 400, 3, "one")["weight"], made["weight"])


def test_the_classifier_is_the_first_matrix_of_the_head() -> None:
    initial = {"head.bias": torch.zeros(2), "head.weight": torch.zeros(2, 3), "conv.weight": torch.zeros(2, 3, 1, 1)}
    told = Federation(1, 0, head=("head.bias", "head.weight"))
    assert classifier_weight("any", initial, told) == "head.weight"
    for head in ((), ("head.bias",), ("conv.weight",)):
        with pytest.raises(UserError, match="method any needs a backbone whose group 'head' begins with a linear"):
            classifier_weight("any", initial, Federation(1, 0, head=head))


def test_logits_are_of_the_classifier_with_and_without_bias() -> None:
    state = {"head.weight": torch.tensor([[1.0, 2.0], [0.0, -1.0]]), "head.bias": torch.tensor([0.5, 3.0])}
    features = torch.tensor([[[1.0, 1.0]], [[2.0, 0.0]]])
    assert classified(state, "head.weight", features).tolist() == [[[3.5, 2.0]], [[2.5, 3.0]]]
    del state["head.bias"]
    assert classified(state, "head.weight", features).tolist() == [[[3.0, -1.0]], [[2.0, 0.0]]]
