"""A run leaves the same bytes however often it was stopped, and whatever lies in the folder of its checkpoints."""

import hashlib
import json
import os
import re
from contextlib import suppress
from functools import cache

import pytest
import torch
from safetensors.torch import save, save_file
from support.damage import empty, flip, shorten
from support.tiers import few_of
from support.tiny import NormNet, federation, first_fitting, method, result_bytes, run, stop_in, training

from pflcore.engine import CheckpointFolder, checkpoint
from pflcore.engine.checkpoint import compare, stored
from pflcore.errors import UserError
from pflcore.memory import memory_limit

ROUNDS = 5
SETTINGS = {"rounds": ROUNDS, "momentum": 0.5, "local_epochs": 1}
TENSORS = {"shared/a": torch.arange(3.0), "shared/n": torch.tensor(2)}
# Personal groups, a hypernetwork, buffers; shared alone, a second model, the progress, nothing that is shared, sums
# that go by the order of the entries.
FEW, OTHERS = ("fedper", "fedtp", "norms"), ("fedavg", "ditto", "fedkd", "local", "fedamp")


class Stopped(BaseException):
    """Stands for anything that ends a process."""


def trained(name, **changes):
    if name == "norms":
        settings, data = training(**SETTINGS, server_optimizer="adam"), federation((15, 10, 20), (4, 4, 4))
        return run(method("fedper"), NormNet(), data, training=settings, **changes)
    entry = method(name, **({"attention": "cosine"} if name == "fedamp" else {}))
    return run(entry, first_fitting(entry), training=training(**SETTINGS), **changes)


@cache
def undisturbed(name):
    return result_bytes(trained(name))


def start(folder, name, stop=0):
    """Train `name` in `folder`, from its newest checkpoint; with `stop`, end in that round, before it is stored."""
    lines = []
    with CheckpointFolder(folder, "me", lines.append) as checkpoints, suppress(InterruptedError):
        return trained(name, checkpoints=checkpoints, checkpoint_every=0, on_round=stop_in(stop)), lines
    return None, lines


def finish(folder, name, resumed_from):
    """Train to the end and compare with the undisturbed run; return the lines that were said."""
    result, lines = start(folder, name)
    assert result.resumed_from == resumed_from and result_bytes(result) == undisturbed(name)
    return lines


def rounds_in(folder):
    return sorted(map(checkpoint.round_of, stored(folder)))


@pytest.mark.parametrize("name", few_of((*FEW, *OTHERS), FEW))
def test_a_stopped_run_ends_with_the_same_bytes(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_MEMORY", "0" if name == "norms" else "1")  # states of clients on disk
    for stop in (1, 3, ROUNDS):
        assert start(tmp_path, name, stop) == (None, [])
    (tmp_path / ".new.part").write_bytes(b"half")
    (tmp_path / "round-notes.txt").write_text("mine")
    assert finish(tmp_path, name, ROUNDS - 1) == finish(tmp_path, name, ROUNDS) == []
    with CheckpointFolder(tmp_path, "me", pytest.fail) as folder:
        folder.clear()
    assert {path.name for path in tmp_path.iterdir()} <= {"lock", "round-notes.txt"}


def test_neither_the_time_between_checkpoints_nor_the_place_of_states_changes_a_result(tmp_path, monkeypatch):
    for every, rounds, limit in ((0, [4, 5], "1"), (1e9, [5], "0")):
        monkeypatch.setenv("PFL_MEMORY", limit)
        with CheckpointFolder(tmp_path / limit, "me", pytest.fail) as folder:
            result = trained("fedper", checkpoints=folder, checkpoint_every=every)
        assert result_bytes(result) == undisturbed("fedper") and rounds_in(folder.folder) == rounds
    monkeypatch.setenv("PFL_MEMORY", "0.5")
    assert memory_limit() == 2**29
    for wrong in ("-1", "much", "nan", "1e308"):
        monkeypatch.setenv("PFL_MEMORY", wrong)
        with pytest.raises(UserError, match="PFL_MEMORY"):
            memory_limit()


def test_at_most_a_twentieth_of_the_time_goes_into_writing(tmp_path, monkeypatch):
    clock = [0.0]

    def slow(*args):
        clock[0] += 7.0
        save_file(*args)

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(checkpoint, "save_file", slow)
    with CheckpointFolder(tmp_path, "me", print) as folder:
        for end in (60.0, 67.0 + 20 * 7.0):
            for clock[0] in (end - 1, end):
                assert folder.is_due(60.0) == (clock[0] == end) and folder.is_due(0) and not folder.is_due(200.0)
            folder.save(1, TENSORS)  # first from 60 to 67


def test_a_damaged_checkpoint_is_skipped(tmp_path):
    start(tmp_path, "fedper", stop=4)
    newer, older = stored(tmp_path)
    flip(newer)
    assert finish(tmp_path, "fedper", 2) == [f"{newer}: its content does not match its name; skipped"]
    for path, damage in zip(stored(tmp_path), (shorten, empty), strict=True):
        damage(path)
    assert len(finish(tmp_path, "fedper", 0)) == 2, "without a good one a run starts anew"
    assert rounds_in(tmp_path) == [4, 5] and not older.exists()


HEADER = {"pfl": json.dumps({"run": "me", "lineage": "", "round": 7})}
FOREIGN = {
    "it belongs to another run": save(TENSORS, {"pfl": '{"run": "you"}'}),
    "not a checkpoint": save(TENSORS, {"pfl": '{"run": "me"}'}),
    "shared/n is missing": save({"shared/a": TENSORS["shared/a"]}, HEADER),
    r"shared/a is \(4,\) torch.float32, expected": save({**TENSORS, "shared/a": torch.ones(4)}, HEADER),
    "more is not known": save({**TENSORS, "more": torch.ones(4)}, HEADER),
}


@pytest.mark.parametrize("reason", FOREIGN)
def test_a_checkpoint_of_another_run_is_refused(reason, tmp_path):
    lines, digest = [], hashlib.sha256(FOREIGN[reason]).hexdigest()[:16]  # its name fits
    with CheckpointFolder(tmp_path, "me", lines.append) as folder:
        folder.save(3, TENSORS)
        (tmp_path / f"round-000007-{digest}.safetensors").write_bytes(FOREIGN[reason])
        assert folder.load(lambda tensors: compare(tensors, TENSORS)).round == 3
        folder.save(4, TENSORS)
    assert rounds_in(tmp_path) == [3, 4]
    assert len(lines) == 1 and "\n" not in lines[0] and re.search(f": {reason}.*; skipped$", lines[0])


def test_what_is_saved_is_loaded_and_only_the_newest_two_are_kept(tmp_path):
    state = {**TENSORS, "personal/3": torch.rand(4, 2).t(), "extra/empty": torch.zeros(0)}
    with CheckpointFolder(tmp_path / "made" / "for it", "me", pytest.fail) as folder:
        assert folder.load(lambda _: "") is None
        for round_ in (1, 2, 9, 10, 11, 11):
            folder.save(round_, state)
            assert len(stored(folder.folder)) == min(round_, 2)
        for _ in range(2):
            restored = folder.load(lambda tensors: compare(tensors, state))
            assert restored.round == 11 and list(restored.tensors) == list(state)
            assert all(torch.equal(restored.tensors[name], state[name]) for name in state)
            restored.tensors["shared/a"].add_(1)  # which the file does not see
    assert rounds_in(folder.folder) == [10, 11]


def test_a_kill_between_any_two_operations_loses_one_checkpoint_at_most(tmp_path):
    """From the `when`-th operation on files on none takes place; what is being written is half."""
    for when in range(20):
        place, remaining, reached = tmp_path / str(when), iter(range(when)), 0

        def dying(operation, remaining=remaining):
            def call(*args, **named):
                if next(remaining, None) is None:
                    if operation is save_file:
                        args[1].write_bytes(b"half")
                    raise Stopped
                return operation(*args, **named)

            return call

        folder = CheckpointFolder(place, "me", pytest.fail)
        with pytest.MonkeyPatch.context() as patch, suppress(Stopped), folder:
            for module, name in ((os, "replace"), (os, "fsync"), (os, "unlink"), (checkpoint, "save_file")):
                patch.setattr(module, name, dying(getattr(module, name)))
            while reached < 20:
                folder.save(reached + 1, {"shared/a": torch.full((9,), reached + 1.0)})
                reached += 1
        with CheckpointFolder(place, "me", pytest.fail) as folder_:
            restored = folder_.load(lambda _: "")
            assert (restored.round if restored else 0) >= reached
            assert not restored or set(restored.tensors["shared/a"].tolist()) == {restored.round}
            folder_.save(98, TENSORS)
            folder_.save(99, TENSORS)
        assert rounds_in(place) == [98, 99] and {path.suffix for path in place.iterdir()} <= {"", ".safetensors"}
    assert reached >= 3


def test_a_full_disk_costs_no_checkpoint_and_one_with_a_name_is_on_the_disk(tmp_path, monkeypatch):
    def full(tensors, path, *_):
        path.write_bytes(b"half")
        raise OSError("no space left")

    lines, synced = [], []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((*os.fstat(file)[1:7:5], rounds_in(tmp_path))))
    with CheckpointFolder(tmp_path, "me", lines.append) as folder:
        folder.save(1, TENSORS)
        (path,) = stored(tmp_path)
        assert (path.stat().st_ino, path.stat().st_size, []) in synced
        monkeypatch.setattr(checkpoint, "save_file", full)
        folder.save_last(2, TENSORS)  # nothing is left to be trained
        with pytest.raises(OSError, match="no space"):
            folder.save(2, TENSORS)
        assert folder.load(lambda _: "").round == 1 and rounds_in(tmp_path) == [1]
    assert lines == [f"{tmp_path}: the state after round 2 is not kept (no space left)"]
    assert not list(tmp_path.glob(".*.part"))


def test_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LOCK_SECONDS", 0.05)
    refused = pytest.raises(UserError, match=f"^{tmp_path}: another process is training this run")
    with CheckpointFolder(tmp_path, "me", print), refused:
        start(tmp_path, "fedavg")
