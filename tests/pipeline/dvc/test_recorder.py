"""DVC's side of running stages, in a repository whose stages are written by hand and made by the tests themselves."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pflcore.errors import UserError
from pipeline.compile.graph import Stage
from pipeline.dvc.finished import Finished
from pipeline.dvc.recorder import Recorder, Verdict

A, B, C = "dvc.yaml:a", "dvc.yaml:b", "other/dvc.yaml:c"


class Study:
    """Stages a → b, which makes a report, and c in a file of its own; two recorders are two processes' one by one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes = Finished(root, root / "notes")
        self.write(".dvc/config", "[core]\n    no_scm = true\n    analytics = false\n")
        self.write("in", "input")
        self.stages = [
            Stage("dvc.yaml", "a", "pfl stage a", ("in",), ("out/a",)),
            Stage("dvc.yaml", "b", "pfl stage b", ("out/a",), ("reports/b", "out/b")),
            Stage("other/dvc.yaml", "c", "pfl stage c", ("in",), ("out/c",)),
        ]
        self.compile()
        self._recorder: Recorder | None = None

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # which may be a link into the cache
        path.write_text(text)
        return path

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    def compile(self, **commands: str) -> None:
        """Write the stage files, some of them with other commands."""
        files: dict[str, dict[str, Any]] = {}
        for one in self.stages:
            up = "../" if "/" in one.file else ""
            entry = {"cmd": commands.get(one.name, one.command), **({"wdir": ".."} if up else {})}
            files.setdefault(one.file, {})[one.name] = {**entry, "deps": [*one.deps], "outs": [*one.outs]}
        for name, stages in files.items():
            self.write(name, yaml.safe_dump({"stages": stages}))

    @property
    def recorder(self) -> Recorder:
        if self._recorder is None:
            self._recorder = Recorder(self.root, self.stages, self.notes)
        return self._recorder

    def again(self) -> None:
        """The next process."""
        if self._recorder:
            self._recorder.close()
        self._recorder = None

    def begin(self, address: str) -> Verdict:
        return self.recorder.begin([address])[address]

    def make(self, address: str, text: str) -> Verdict:
        """Begin a stage, write its outputs and record it."""
        verdict = self.begin(address)
        if verdict.what == "run":
            for out in next(one.outs for one in self.stages if one.address == address):
                self.write(out, f"{text} {out}")
            assert self.recorder.record([address]) == {}
        return verdict

    def locked(self, name: str = "dvc.lock") -> list[str]:
        """The stages that a lock file has."""
        return list(yaml.safe_load(self.read(name))["stages"]) if (self.root / name).is_file() else []


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    made = Study(tmp_path)
    yield made
    made.again()


def test_why_a_stage_is_stale(study: Study) -> None:
    assert study.recorder.stale([A, C]) == {A: "not made yet", C: "not made yet"}
    assert study.make(A, "1").what == "run" and study.make(B, "1").what == "run"
    assert study.recorder.stale([A, B]) == {}
    study.write("out/a", "other")
    assert study.recorder.stale([A, B]) == {A: "out/a is modified", B: "out/a is modified"}
    shutil.rmtree(study.root / "out")
    assert study.recorder.stale([A])[A] == "out/a is deleted"
    study.again()
    study.write("in", "edited")
    assert study.recorder.stale([A]) == {A: "in is modified"}
    study.again()
    study.compile(a="pfl stage other", c="pfl stage other")
    assert study.recorder.stale([A, C]) == {A: "its command changed", C: "not made yet"}


def test_what_was_made_is_found_again(study: Study) -> None:
    first = study.make(A, "1")
    assert first.what == "run" and len(first.key) == 64 and study.begin(A).what == "fresh"
    study.write("in", "edited")
    study.again()
    second = study.begin(A)
    assert second.what == "run" and second.key != first.key
    assert not (study.root / "out/a").exists(), "it would be taken for what is made now"
    study.write("out/a", "2")
    study.recorder.record([A])
    assert study.begin(A).what == "fresh"
    study.write("in", "input")
    study.again()
    assert study.begin(A) == Verdict("cached") and study.read("out/a") == "1 out/a"
    assert study.begin(A).what == "fresh" and study.recorder.stale([A]) == {}
    # The lock file is of no need for it.
    study.again()
    (study.root / "dvc.lock").unlink()
    (study.root / "out/a").unlink()
    assert study.begin(A).what == "cached" and study.read("out/a") == "1 out/a"
    study.again()
    assert study.locked() == ["a"]


def test_keys_are_of_the_command_the_inputs_and_the_outputs(study: Study) -> None:
    keys = {study.begin(A).key, study.begin(C).key}
    for name, text in (("dvc.yaml", study.read("dvc.yaml").replace("stage a", "stage else")), ("in", "edited")):
        study.again()
        study.write(name, text)
        keys.add(study.begin(A).key)
    assert len(keys) == 4
    study.again()
    assert study.begin(A).key in keys


def test_what_was_complete_when_the_process_was_killed_is_recorded(study: Study) -> None:
    key = study.begin(A).key
    study.write("out/a", "made")
    study.notes.note(A, key, ("out/a",))
    study.again()
    assert study.begin(A) == Verdict("cached") and study.read("out/a") == "made"
    assert not study.notes.complete(A, key), "the note has been used"
    study.again()
    assert study.locked() == ["a"]
    # Of other inputs it is not.
    study.notes.note(C, key, ("out/a",))
    assert study.begin(C).what == "run"


def test_each_of_several_is_recorded_by_itself(study: Study) -> None:
    for address in (A, C):
        assert study.begin(address).what == "run"
    study.write("out/c", "made")
    (problem,) = study.recorder.record([A, C]).items()
    assert problem == (A, "output 'out/a' does not exist")
    assert study.recorder.stale([A, C]) == {A: "not made yet"}
    assert study.begin(A).what == "run"
    study.write("out/a", "made")
    study.write("in", "edited")
    assert study.recorder.record([A]) == {
        A: "what it depends on changed while it ran; nothing is recorded, run it again"
    }
    study.again()
    assert study.locked() == [] and study.locked("other/dvc.lock") == ["c"]


def marks(study: Study) -> dict[str, Any]:
    path = study.root / ".dvc/tmp/rwlock"
    return {kind: sorted(one) for kind, one in json.loads(path.read_text() if path.is_file() else "{}").items() if one}


def test_what_is_under_way_is_marked_until_it_ends(study: Study) -> None:
    path = {name: str(study.root / name) for name in ("in", "out/a", "out/c")}
    study.begin(A)
    study.begin(C)
    assert marks(study) == {"read": [path["in"]], "write": [path["out/a"], path["out/c"]]}
    study.write("out/c", "made")
    study.recorder.record([C])
    assert marks(study) == {"read": [path["in"]], "write": [path["out/a"]]}
    study.recorder.give_up(A)
    assert marks(study) == {}
    study.begin(A)
    study.again()  # what was not given up
    assert marks(study) == {}


def test_what_somebody_else_has_under_way_is_left_alone(study: Study) -> None:
    theirs = study.write("out/a", "theirs so far")
    mark = {"pid": os.getppid(), "cmd": "dvc repro theirs"}
    study.write(".dvc/tmp/rwlock", json.dumps({"write": {str(theirs): mark}}))
    verdict = study.begin(A)
    assert verdict.what == "busy" and "dvc repro theirs" in verdict.why and not verdict.key
    assert study.read("out/a") == "theirs so far" and study.begin(C).what == "run"


def test_what_the_cache_has_lost_is_put_back(study: Study) -> None:
    for address in (A, B, C):
        study.make(address, "1")
    assert study.recorder.keep() == 0
    study.again()
    shutil.rmtree(study.root / ".dvc/cache")
    study.write("out/b", "edited")  # which is not what was made
    assert study.recorder.keep() == 2
    (study.root / "out/a").unlink()
    assert study.begin(A).what == "cached" and study.read("out/a") == "1 out/a"
    study.again()
    shutil.rmtree(study.root / ".dvc/cache")
    assert study.begin(C).what == "fresh" and list((study.root / ".dvc/cache/runs").rglob("*"))


def test_a_report_that_a_person_changed_is_moved_away(study: Study) -> None:
    study.make(A, "1")
    study.make(B, "1")
    study.write("reports/b", "with a remark")
    study.write("out/b", "damaged")
    (place,) = study.begin(B).aside
    assert place.startswith(".pfl/replaced/") and place.endswith("/reports/b")
    assert study.read(place) == "with a remark" and study.read("reports/b") == "1 reports/b"
    assert study.read("out/b") == "1 out/b"
    study.write("in", "edited")
    study.again()
    study.make(A, "2")
    verdict = study.begin(B)
    assert (verdict.what, verdict.aside) == ("run", ()), "it is what a stage wrote, if not this time"


def test_what_is_in_the_way_of_one_stage(study: Study) -> None:
    study.make(A, "1")
    shutil.rmtree(study.root / "out")
    study.write("out", "a file in the place of a folder")
    verdict = study.begin(A)
    assert verdict.what == "broken" and verdict.why.startswith("DVC: ") and "\n" not in verdict.why
    assert study.recorder.stale([A])[A]


def test_what_was_compiled_anew_or_away_meanwhile_is_stale_or_not_recorded(study: Study) -> None:
    study.make(A, "1")  # at once; what follows within seconds, at the end
    study.make(B, "1")
    study.make(C, "1")
    assert study.locked() == ["a"]
    study.compile(a="pfl stage other")  # as `pfl results keep` does with runs that have ended
    study.again()
    assert study.locked() == ["a", "b"]
    assert study.recorder.stale([A, B]) == {A: "its command changed"}
    study.begin(A)
    study.write("out/a", "made")
    study.recorder.record([A])
    (study.root / "dvc.yaml").unlink()
    study.again()
    assert study.locked() == ["a", "b"]


@pytest.mark.parametrize("damage", ["", "{", '{"write": 3'])
def test_marks_that_cannot_be_read_are_made_anew(study: Study, damage: str) -> None:
    study.write(".dvc/tmp/rwlock", damage)
    assert study.begin(A).what == "run"


@pytest.mark.parametrize("damage", ["", "stages: [", "schema: '2.0'\nstages: {a: 3}\n"])
def test_lock_files_that_cannot_be_read_are_removed(study: Study, damage: str) -> None:
    study.make(A, "1")
    study.make(C, "1")
    study.again()
    study.write("dvc.lock", damage)
    assert study.recorder.stale([A, C]) == {A: "not made yet"}
    assert not (study.root / "dvc.lock").exists() and study.locked("other/dvc.lock") == ["c"]
    assert study.begin(A).what == "cached"


def test_what_the_disk_refuses_is_one_line(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, which = study.recorder.repo.lock, iter([("a",), ("a", None, "b"), ()])

    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *next(which))

    monkeypatch.setattr(type(lock), "__enter__", fail)
    for where in ("a", "b", ".dvc"):
        with pytest.raises(UserError) as error:
            study.begin(A)
        assert str(error.value) == (
            f"DVC: {where}: No space left on device; what is recorded so far stays, the same command goes on"
        )
    monkeypatch.undo()


def test_a_process_ends_that_cannot_give_back_what_it_holds(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its disk has become read-only."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), ".dvc/tmp/lock")

    study.begin(A)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"\.dvc/tmp/lock: Read-only file system"):
        patch.setattr(type(study.recorder.repo.lock), "__enter__", refuse)
        study.again()
    assert not study.recorder._held, "or it would be given back when the interpreter ends"


def test_what_is_no_repository_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"DVC: .*not.* inside of a DVC repository"):
        Recorder(tmp_path, [], Finished(tmp_path, tmp_path))
