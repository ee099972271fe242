"""Samples of text: windows of what a role says, the lines that test, and the roles that are kept."""

from __future__ import annotations

from typing import Any

import pytest
from support.editions import create, texts, windows

from pflcore.data.samples import Samples


@pytest.mark.parametrize(("lines", "test"), [(3, 1), (9, 1), (10, 1), (11, 2), (20, 3), (21, 4), (100, 19)])
def test_the_last_lines_test(lines: int, test: int) -> None:
    assert test == max(1, int((1 - 0.8) * lines))  # the released arithmetic
    said = {"a": [f"line {number:03}" for number in range(lines)]}
    samples = create(chunk_len=7).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert texts(samples, train=True) == windows(" ".join(said["a"][:-test]), 7)
    assert texts(samples, train=False) == windows(" ".join(said["a"][-test:]), 7)


def test_roles_with_too_little_text_are_dropped() -> None:
    said = {
        "short test": ["0123456789", "0123456789", "01234"],
        "short training": ["0", "1", "0123456789"],
        "few lines": ["0123456789", "0123456789"],
        "kept": ["012", "345", "012345"],
    }
    samples = create(chunk_len=5).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert samples.attributes["role"].names == ("kept",)
    assert texts(samples) == ["012 34", "12 345", "012345"]
    more = create(chunk_len=5, min_lines=2).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert more.attributes["role"].names == ("few lines", "kept")
    half = create(chunk_len=5, train_share=0.3).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]
    assert half.attributes["role"].names == ("short test",)
    assert texts(half, train=True) == windows("0123456789", 5)


def test_a_share_of_the_roles_is_drawn() -> None:
    said = {f"role {number}": [f"{number:06}"] * 3 for number in range(40)}

    def load(**options: Any) -> Samples:
        return create(chunk_len=5, **options).from_lines(said, where="here", source="test")  # type: ignore[attr-defined]

    everyone, some, others = load(), load(role_share=0.62), load(role_share=0.62, role_seed=1)
    kept = some.attributes["role"].names
    assert len(kept) == 24 and list(kept) == [name for name in said if name in kept]  # int(24.8)
    assert kept != others.attributes["role"].names and kept == load(role_share=0.62).attributes["role"].names
    for name in kept:
        assert texts(some, name) == texts(everyone, name) != []
    assert len(load(role_share=0.001).attributes["role"].names) == 1
