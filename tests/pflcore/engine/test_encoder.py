"""A frozen encoder: what it gives of a sample is of that sample alone."""

import numpy as np
import torch
from support import tiny
from support.mistakes import line_of

from pflcore.engine.encoder import Encoder


def test_features_do_not_depend_on_the_batch():
    encoder, rows = Encoder(tiny.backbone("lenet_bn"), tiny.federation()), torch.tensor([3, 0, 8, 5])
    together = encoder.encode(rows)
    np.testing.assert_allclose(together[1:2], encoder.encode(rows[1:2]), rtol=1e-4, atol=1e-5)
    assert np.ptp(together, axis=0).max() > 0.01
    net = tiny.backbone(tiny.TEXT)
    assert "a text has a label at every position" in line_of(lambda: Encoder(net, tiny.suited(net)))
