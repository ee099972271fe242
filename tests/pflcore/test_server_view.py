"""What a method is told at the server: what nobody said is none, and rounds are known to who asks for the progress."""

from __future__ import annotations

import pytest
import torch

from pflcore.errors import UserError
from pflcore.server_view import Federation, Server, Update, average, weights


def test_what_nobody_said_is_none() -> None:
    told, server = Federation(3, 7), Server({})
    assert (told.clients, told.seed, told.momentum, told.classes, told.features) == (3, 7, 0.0, 0, 0)
    assert (told.head, told.local_epochs, told.samples, dict(told.generated)) == ((), None, (), {})
    assert (server.extra, server.federation, server.round) == ({}, Federation(0, 0), 0)
    assert Update(0, 5, {}, {}).steps == 0


def test_the_number_of_rounds_must_be_asked_for() -> None:
    assert Federation(3, 7, planned=12).rounds == 12
    with pytest.raises(UserError, match=r"test_server_view\.py:\d+: federation\.rounds must be asked for"):
        print(Federation(3, 7).rounds)


def test_a_mean_is_by_samples_or_by_the_shares_that_are_given() -> None:
    before = {"w": torch.zeros(2), "n": torch.tensor(0), "own": torch.zeros(1)}
    returned = [{"w": torch.tensor([2.0 * k, -k]), "n": torch.tensor(k), "own": torch.ones(1)} for k in (1, 2, 5)]
    updates = [
        Update(k, samples, before, one) for k, (samples, one) in enumerate(zip((6, 3, 1), returned, strict=True))
    ]
    assert weights(updates) == [0.6, 0.3, 0.1]
    for shares, mean in ((None, 0.6 + 0.6 + 0.5), ([0.5, 0.0, 0.5], 3.0), ([1.0, 1.0, 1.0], 8.0)):
        found = average(updates, frozenset({"w", "n"}), shares)
        assert found.keys() == {"w", "n"} and found["n"].item() == 1
        torch.testing.assert_close(found["w"], torch.tensor([2 * mean, -mean]))
    found["n"].add_(1)
    assert returned[0]["n"].item() == 1  # nothing of a client's is handed on
    counters = average(updates, frozenset({"n"}))
    assert counters["n"].item() == 1 and counters.keys() == {"n"}
