"""The same arguments give the same assignment as ever: else kept results would be of other clients.

That an assignment is right is for other tests to say. After a change that is meant:
``PYTHONPATH=.:tests python -m support.assignments``, and commit the table with the edit.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.assignments import CASES, FILE, rows
from support.recorded import recorded
from support.toy_samples import make_samples

from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS
from pflcore.partitions._base import draws_for
from pflcore.partitions._coarse import coarse_of_classes


def test_assignments_are_those_of_the_table() -> None:
    found = list(rows())
    known = recorded(FILE)
    assert found == known, sorted(set(found) ^ set(known))
    assert len({name for name, *_ in CASES} & set(PARTITIONS.names())) >= 10
    assert len({digest for *_, digest in found}) == len(CASES)


def test_a_class_without_samples_has_no_coarse_class() -> None:
    samples = make_samples(90, 20)
    assert coarse_of_classes(samples, "coarse", "any").tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    named = dataclasses.replace(samples, class_names=(*samples.class_names, "zebra"))
    with pytest.raises(UserError, match=r"^partition 'any': toy has no sample of class 'zebra'$"):
        coarse_of_classes(named, "coarse", "any")


def test_a_minute_of_draws_and_at_least_twenty() -> None:
    assert [draws_for(shares) for shares in (1, 5_000, 20_000, 5_000_000, 10**9)] == [20_000, 20_000, 5_000, 20, 20]
    assert np.diff([draws_for(10**k) for k in range(9)]).max() <= 0
