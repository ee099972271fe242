"""LEAF's Shakespeare: its shards, split or not, whole and damaged."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from support.editions import create, texts
from support.official import failure, unreachable


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", unreachable)


def spoken(user: str, count: int) -> str:
    """So many samples' worth of text that is different for each user."""
    rng = np.random.default_rng(list(user.encode()))
    return "".join(string.printable[code] for code in rng.integers(0, 100, count + 80))


def shard(users: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """A shard as LEAF writes it; of each user the samples from the first to before the second number."""
    data = {}
    for user, (start, stop) in users.items():
        text = spoken(user, stop)
        rows = range(start, stop)
        data[user] = {"x": [text[row : row + 80] for row in rows], "y": [text[row + 80] for row in rows]}
    return {
        "users": list(users),
        "num_samples": [stop - start for start, stop in users.values()],
        "user_data": {**data, "deleted": {"x": [], "y": []}},  # LEAF leaves them in
        "hierarchies": ["A PLAY"] * 9,
    }


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """A folder with four split shards."""
    folder = tmp_path / "shakespeare"
    put(folder, "train/all_data_1_train_8.json", shard({"b": (0, 7)}))
    put(folder, "train/all_data_0_train_8.json", shard({"a": (0, 5), "only trains": (0, 4)}))
    put(folder, "test/all_data_1_test_8.json", shard({"only tests": (0, 3), "a": (84, 90)}))
    put(folder, "test/all_data_0_test_8.json", shard({"b": (86, 87)}))
    return folder


def leaf_windows(user: str, start: int, stop: int, length: int) -> list[str]:
    return [spoken(user, stop)[row + 80 - length : row + 81] for row in range(start, stop)]


@pytest.mark.parametrize("length", [80, 79, 5, 1])
def test_split_shards(leaf: Path, length: int) -> None:
    dataset = create(source="leaf", chunk_len=length)
    assert dataset.found(leaf) and not create().found(leaf)
    samples = dataset.load(leaf)
    assert samples.attributes["role"].names == ("a", "b") and samples.shape == (length,)
    assert texts(samples, "a", train=True) == leaf_windows("a", 0, 5, length)
    assert texts(samples, "a", train=False) == leaf_windows("a", 84, 90, length)
    assert texts(samples, "b", train=True) == leaf_windows("b", 0, 7, length)
    assert texts(samples, "b", train=False) == leaf_windows("b", 86, 87, length)
    assert samples.source == "LEAF train/*.json and test/*.json"
    np.testing.assert_array_equal(samples.labels, samples.inputs[:, -1])


def test_unsplit_shards(tmp_path: Path) -> None:
    put(tmp_path, "all_data/all_data_0.json", shard({"a": (0, 500), "short": (0, 395), "nothing": (0, 0)}))
    put(tmp_path, "all_data/all_data_1.json", shard({"b": (0, 397)}))
    samples = create(source="leaf").load(tmp_path)
    assert samples.attributes["role"].names == ("a", "b") and samples.source == "LEAF all_data/*.json"
    assert texts(samples, "a", train=True) == leaf_windows("a", 0, 400, 80)
    assert texts(samples, "a", train=False) == leaf_windows("a", 479, 500, 80)
    assert texts(samples, "b", train=False) == leaf_windows("b", 396, 397, 80)  # int(317.6) + 79
    half = create(source="leaf", train_share=0.5).load(tmp_path)
    assert texts(half, "short", train=False) == leaf_windows("short", 197 + 79, 395, 80)


def change(**values: Any) -> Callable[[dict[str, Any]], Any]:
    """Replaces items of a shard."""
    return lambda content: content | values


def change_user(**values: Any) -> Callable[[dict[str, Any]], Any]:
    """Replaces items of user b."""
    return lambda content: content | {"user_data": {"b": content["user_data"]["b"] | values}}


def refused(leaf: Path, damage: Callable[[dict[str, Any]], Any]) -> str:
    """What is said of a damaged shard, but for its path."""
    path = leaf / "train" / "all_data_1_train_8.json"
    put(leaf, "train/all_data_1_train_8.json", damage(json.loads(path.read_text())))
    message = failure(create(source="leaf"), leaf)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


X = ["x" * 80] * 7
LISTS = "'users' and 'num_samples' must be lists of one length"
COUNTS = "user 'b': 'x' and 'y' must be lists of 7 texts"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: [1], "'users' is missing"),
        (lambda _: None, "'users' is missing"),
        (lambda c: {"users": c["users"]}, "'num_samples' is missing"),
        (lambda c: {k: c[k] for k in ("users", "num_samples")}, "'user_data' is missing"),
        (change(users="b"), LISTS),
        (change(users=["b", "c"]), LISTS),
        (change(num_samples=7), LISTS),
        (change(num_samples=[8]), COUNTS.replace("7", "8")),
        (change(num_samples=[[[]]]), COUNTS.replace("7", "a list")),
        (change(users=[3]), "3 in 'users' must be a name"),
        (change(users=[["b"]]), "a list in 'users' must be a name"),
        (change(users=[""]), "'' in 'users' must be a name"),
        (change(users=["\ud800"]), "'\\ud800' in 'users' must be a name"),
        (change(users=["a\nb"]), "'a\\nb' in 'users' must be a name"),
        (change(user_data={}), "'b' is missing"),
        (change(user_data=[]), "'b' is missing"),
        (change(user_data={"b": []}), "user 'b': 'x' is missing"),
        (change(user_data={"b": {"x": []}}), "user 'b': 'y' is missing"),
        (change_user(x=X[1:]), COUNTS),
        (change_user(y="abcdefg"), COUNTS),
    ],
)
def test_damaged_shards(leaf: Path, damage: Callable[[dict[str, Any]], Any], message: str) -> None:
    assert refused(leaf, damage) == f"{message}; use a shard made by LEAF"


def test_an_incomplete_set_of_shards(leaf: Path) -> None:
    hint = (
        "make LEAF's shakespeare with https://github.com/TalwalkarLab/leaf and put its train/ and test/, or its "
        "all_data/, there"
    )
    for path in (leaf / "test").iterdir():
        path.unlink()
    assert failure(create(source="leaf"), leaf) == f"{leaf}: no test/*.json beside train/*.json; {hint}"
    put(leaf, "all_data/a.json", shard({"a": (0, 500)}))
    assert failure(create(source="leaf"), leaf) == f"{leaf}: no test/*.json beside train/*.json; {hint}"
    (leaf / "train").rename(leaf / "elsewhere")
    put(leaf, "test/a.json", shard({"a": (0, 500)}))
    assert failure(create(source="leaf"), leaf) == f"{leaf}: no train/*.json; {hint}"
