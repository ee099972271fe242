"""DVC's side of running stages: how often lock files, which DVC rewrites as wholes, are written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.dvc import recorder
from pipeline.dvc.recorder import Recorder


class Clock:
    now = 1000.0


def dumping(root: Path, clock: Clock, took: float, files: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each of some lock files is written in 1,000 s when a stage of each is recorded every second."""
    made = Recorder.__new__(Recorder)
    made.root, made._undumped, made._dumped, made._rests = root, {}, {}, 0.0
    made._texts = {f"{number}.yaml": b"" for number in range(files)}
    written = dict.fromkeys(made._texts, 0)
    monkeypatch.setattr(recorder.time, "monotonic", lambda: clock.now)

    def stage(name: str) -> Any:
        def dump_stages(stages: list[Any], update_pipeline: bool) -> None:
            clock.now += took
            written[name] += 1

        return SimpleNamespace(dvcfile=SimpleNamespace(dump_stages=dump_stages))

    for name in written:
        (root / name).write_bytes(b"")
    end = clock.now + 1000
    while clock.now < end:
        clock.now += 1
        for name in written:
            made._undumped.setdefault(name, {})[str(clock.now)] = stage(name)
        made._dump_due()
    return written


def test_lock_files_take_a_tenth_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = dumping(tmp_path, Clock(), 0.01, 3, monkeypatch)
    assert all(85 <= count <= 101 for count in quick.values()), "every ten seconds"
    slow = dumping(tmp_path, Clock(), 2.5, 5, monkeypatch)
    assert 30 <= sum(slow.values()) <= 41, "of 1,000 s a tenth, 2.5 s each"
    assert max(slow.values()) - min(slow.values()) <= 1, "in turns"
