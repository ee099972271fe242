"""The parts of a run's state: what is saved is restored, and what does not fit is named leaf by leaf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny import backbone, federation, method, result_bytes, run, training
from torch import Tensor

from pflcore.engine.checkpoint import Stateful, join, misfit, restore
from pflcore.engine.evaluation import Scores
from pflcore.engine.state import ClientStates, History, ServerState
from pflcore.errors import UserError
from pflcore.memory import memory_limit
from pflcore.method import Server

INITIAL = {"head.weight": torch.zeros(3, 2), "head.count": torch.tensor(0)}


def own(value: int) -> dict[str, Tensor]:
    return {"head.weight": torch.full((3, 2), float(value)), "head.count": torch.tensor(value)}


def parts() -> dict[str, Stateful]:
    clients = ClientStates(INITIAL, 12, None)
    history = History(np.ones(4, bool))
    server = ServerState(Server({"conv": torch.ones(2)}, {"shared/odd": torch.ones(1)}), torch.device("cpu"))
    return {"server": server, "personal": clients, "history": history}


def filled() -> dict[str, Stateful]:
    made = parts()
    clients, history = made["personal"], made["history"]
    assert isinstance(clients, ClientStates) and isinstance(history, History)
    for client in (10, 2):
        clients[client] = own(client)
    for round_ in (9, 10):
        history.add(round_, Scores.join([((round_, 20, 0.5, round_),)] * 4))
    return made


def test_rows_of_clients_that_follow_each_other_are_saved_as_one() -> None:
    clients = ClientStates(INITIAL, 12, None)
    clients.update({client: own(client) for client in (0, 3, 4, 5, 11)})
    state = clients.state()
    assert {name: len(rows) for name, rows in state.items()} == {"0": 1, "3": 3, "11": 1}
    for client in range(12):
        entries = clients.entries(state, client)
        assert bool(entries) == (client in clients.trained())
        assert not entries or int(entries["head.count"]) == client


def test_what_is_saved_is_restored() -> None:
    made, state = parts(), join(filled())
    assert misfit(made, state) == ""
    restore(made, state)
    assert list(join(made)) == list(state)
    assert all(torch.equal(join(made)[name], tensor) for name, tensor in state.items())
    history = made["history"]
    assert isinstance(history, History) and list(history.scores) == [9, 10]


@pytest.mark.parametrize(("splits", "precise", "rows"), [(1, False, 4), (2, False, 8), (1, True, 5), (2, True, 10)])
def test_a_measurement_has_its_numbers(splits: int, precise: bool, rows: int) -> None:
    history = History(np.ones(3, bool), splits, precise=precise)
    assert history.misfit({"7": torch.zeros(rows, 3, dtype=torch.float64)}) == ""
    for wrong in ((rows + 4, 3), (rows - 1, 3), (rows, 4)):
        expected = f"7 is {wrong} torch.float64, expected ({rows}, 3) torch.float64"
        assert history.misfit({"7": torch.zeros(wrong, dtype=torch.float64)}) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"other/a": torch.ones(1)}, "other/a is not known"),
        ({"server/shared/conv": None}, "shared/conv is missing"),
        ({"server/shared/conv": torch.ones(3)}, "shared/conv is (3,) torch.float32, expected (2,) torch.float32"),
        ({"server/extra/more": torch.ones(3)}, "extra/more is not known"),
        ({"personal/11": torch.ones(2, 128, dtype=torch.uint8)}, "there is no client 11"),
        ({"personal/-1": torch.ones(1, 128, dtype=torch.uint8)}, "there is no client -1"),
        ({"personal/²": torch.ones(1, 128, dtype=torch.uint8)}, "there is no client ²"),
        ({"personal/2": torch.ones(1, 64, dtype=torch.uint8)}, "client 2: (1, 64) torch.uint8, expected rows of 128"),
        ({"personal/2": torch.ones(1, 128)}, "client 2: (1, 128) torch.float32, expected rows of 128 bytes"),
        ({"personal/2": torch.tensor(1, dtype=torch.uint8)}, "client 2: () torch.uint8, expected rows of 128 bytes"),
        ({"history/x": torch.ones(3, 4)}, "there is no round x"),
        ({"history/11": torch.ones(4, 5, dtype=torch.float64)}, "11 is (4, 5) torch.float64, expected (4, 4)"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Tensor | None], reason: str) -> None:
    state = {**join(filled()), **changes}
    assert misfit(parts(), {name: tensor for name, tensor in state.items() if tensor is not None}).startswith(reason)


# --- personal state on disk ----------------------------------------------------------------------------------------


def test_past_the_limit_personal_state_is_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not ClientStates(INITIAL, 12, tmp_path).on_disk
    monkeypatch.setenv("PFL_MEMORY", "0")
    clients = ClientStates(INITIAL, 12, tmp_path)
    assert clients.on_disk
    clients[7], clients[3] = own(7), own(3)
    clients[7] = own(8)
    assert clients.trained() == [3, 7]
    assert float(clients[7]["head.weight"].sum()) == 48 and int(clients[3]["head.count"]) == 3
    assert clients[0] is INITIAL and float(INITIAL["head.weight"].sum()) == 0
    assert list(tmp_path.iterdir()) == []  # the file has no name


@pytest.mark.parametrize("name", ["fedper", "local", "fedavg"])
def test_where_personal_state_rests_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for limit in ("1", "0"):
        monkeypatch.setenv("PFL_MEMORY", limit)
        results.append(result_bytes(run(method(name), backbone("convnet"), federation(), training=training(rounds=3))))
    assert results[0] == results[1]


def test_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_MEMORY", "0.5")
    assert memory_limit() == 2**29
    monkeypatch.delenv("PFL_MEMORY")
    assert memory_limit() > 2**28
    for wrong in ("-1", "much", "nan", "inf", "1e308"):
        monkeypatch.setenv("PFL_MEMORY", wrong)
        with pytest.raises(UserError, match="PFL_MEMORY"):
            memory_limit()
