"""Training on one's own tensors: what does not fit is refused; settings of PyTorch change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pipeline
from pflcore.errors import UserError

CONVNET = {"name": "convnet", "kernel": 3, "padding": 1}
DRAW = np.random.default_rng(0)
IMAGES, LABELS = DRAW.integers(0, 255, (12, 1, 8, 8), np.uint8), np.arange(12) % 3
CLIENT = (IMAGES, LABELS)
REFUSED = [
    ({"test": [(IMAGES.transpose(0, 2, 3, 1), LABELS)]}, r"^client 0: channels come last in \(12, 8, 8, 1\)"),
    ({"train": [(IMAGES[:0], LABELS[:0])]}, "^client 0 has no samples"),
    ({"test": [IMAGES]}, "^client 0: give a pair"),
    ({"test": [(IMAGES[:, :, :7], LABELS)]}, r"^images must have one shape, got \(1, 7, 8\) and \(1, 8, 8\)$"),
    ({"classes": 2}, "^classes = 2, but a label is 2$"),
    ({"mean": [0.1, 0.2]}, "^mean has 2 numbers for 1 channels$"),
    ({"seed": -1}, "^seed = -1 must be a whole number"),
]


def trained(**changes):
    return pipeline.train(**{"train": [CLIENT], "test": [CLIENT], "backbone": CONVNET, "rounds": 1, **changes})


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_what_does_not_fit_is_refused(changes, line):
    with pytest.raises(UserError, match=line):
        trained(**changes)


def test_settings_of_the_caller_change_no_result_and_stay():
    expected, threads = trained(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(threads + 1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad(), torch.device("meta"):
            own = trained()
            assert not torch.is_grad_enabled()
        with torch.inference_mode():
            logits = trained().model(0).predict(IMAGES)
        assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float64, threads + 1)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert own.results.equals(expected.results) and torch.equal(logits, expected.model(0).predict(IMAGES))
