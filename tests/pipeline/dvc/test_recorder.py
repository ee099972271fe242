"""DVC's side of running stages, in a repository whose stages are written by hand and made by the tests themselves."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from dvc.lock import make_lock

from pflcore.errors import UserError
from pipeline.compile.compilation import Stage
from pipeline.dvc.recorder import CHANGED, WAITING, Locked, Recorder, Verdict

A, B, C = "dvc.yaml:a", "dvc.yaml:b", "other/dvc.yaml:c"
STAGES = {
    A: Stage("dvc.yaml", "a", "pfl stage a", ("in",), ("out/a",)),
    B: Stage("dvc.yaml", "b", "pfl stage b", ("out/a",), ("reports/b", "out/b")),
    C: Stage("other/dvc.yaml", "c", "pfl stage c", ("in",), ("out/c",)),
}


class Study:
    """Stages a → b, which makes a report, and c in a file of its own; two recorders are two processes' one by one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write(".dvc/config", "[core]\n    no_scm = true\n    analytics = false\n")
        self.write("in", "input")
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
        for name in ("dvc.yaml", "other/dvc.yaml"):
            place = {"wdir": ".."} if "/" in name else {}
            stages = {
                one.name: {
                    "cmd": commands.get(one.name, one.command),
                    "deps": [*one.deps],
                    "outs": [*one.outs],
                    **place,
                }
                for one in STAGES.values()
                if one.file == name
            }
            self.write(name, yaml.safe_dump({"stages": stages}))

    @property
    def recorder(self) -> Recorder:
        self._recorder = self._recorder or Recorder(self.root, STAGES.values())
        return self._recorder

    def again(self) -> Study:
        """Go on as the next process."""
        if self._recorder:
            self._recorder.close()
        self._recorder = None
        return self

    def begin(self, address: str) -> Verdict:
        return self.recorder.begin(address)

    def make(self, address: str, text: str) -> Verdict:
        """Begin a stage, write its outputs and record it."""
        verdict = self.begin(address)
        if verdict.what == "run":
            for out in STAGES[address].outs:
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
    study.write("out", "a file in the place of a folder")
    verdict = study.begin(A)
    assert verdict.what == "broken" and verdict.why.startswith("DVC: ") and "\n" not in verdict.why
    (study.root / "out").unlink()
    study.again().write("in", "edited")
    assert study.recorder.stale([A]) == {A: "in is modified"}
    study.again().compile(a="pfl stage other", c="pfl stage other")
    assert study.recorder.stale([A, C]) == {A: "its command changed", C: "not made yet"}


def test_what_was_made_is_found_again(study: Study) -> None:
    assert study.make(A, "1").what == "run" and study.begin(A).what == "fresh"
    study.again().write("in", "edited")
    assert study.begin(A).what == "run"
    assert not (study.root / "out/a").exists(), "it would be taken for what is made now"
    study.write("out/a", "2")
    study.recorder.record([A])
    study.again().write("in", "input")
    assert study.begin(A) == Verdict("cached") and study.read("out/a") == "1 out/a"
    study.again()
    (study.root / "dvc.lock").unlink()  # of no need for it
    (study.root / "out/a").unlink()
    assert study.begin(A).what == "cached" and study.read("out/a") == "1 out/a"
    assert study.again().locked() == ["a"]
    study.compile(a="pfl stage else")
    assert study.begin(A).what == "run"


def test_each_of_several_is_recorded_by_itself(study: Study) -> None:
    assert [study.begin(address).what for address in (A, C)] == ["run"] * 2
    study.write("out/c", "made")
    assert study.recorder.record([A, C]) == {A: "output 'out/a' does not exist"}
    assert study.recorder.stale([A, C]) == {A: "not made yet"} and study.begin(A).what == "run"
    study.write("out/a", "made")
    study.write("in", "edited")
    assert study.recorder.record([A]) == {A: CHANGED}
    assert study.again().locked() == [] and study.locked("other/dvc.lock") == ["c"]


def test_what_is_under_way_is_marked_until_it_ends_and_theirs_is_left_alone(study: Study) -> None:
    def marks() -> dict[str, list[str]]:
        path = study.root / ".dvc/tmp/rwlock"
        found = json.loads(path.read_text() if path.is_file() else "{}")
        return {kind: sorted(os.path.relpath(path, study.root) for path in one) for kind, one in found.items() if one}

    for address in (A, C):
        study.begin(address)
    assert marks() == {"read": ["in"], "write": ["out/a", "out/c"]}
    study.write("out/c", "made")
    study.recorder.record([C])
    assert marks() == {"read": ["in"], "write": ["out/a"]}
    study.recorder.give_up(A)
    assert marks() == {}
    study.begin(A)
    study.again()  # what was not given up
    assert marks() == {}
    theirs = study.write("out/a", "theirs so far")
    mark = {"pid": os.getppid(), "cmd": "dvc repro theirs"}
    study.write(".dvc/tmp/rwlock", json.dumps({"write": {str(theirs): mark}}))
    verdict = study.begin(A)
    assert verdict.what == "busy" and "dvc repro theirs" in verdict.why and study.read("out/a") == "theirs so far"


def test_what_was_compiled_anew_or_away_meanwhile_is_stale_or_not_recorded(study: Study) -> None:
    study.make(A, "1")  # at once; what follows within seconds, at the end
    study.make(B, "1")
    assert study.locked() == ["a"]
    study.compile(a="pfl stage other")  # as `pfl results keep` does with runs that have ended
    assert study.again().locked() == ["a", "b"]
    assert study.recorder.stale([A, B]) == {A: "its command changed"}
    study.begin(A)
    study.write("out/a", "made")
    study.recorder.record([A])
    (study.root / "dvc.yaml").unlink()
    assert study.again().locked() == ["a", "b"]


def test_while_another_process_has_dvcs_lock_nothing_is_done(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As during a `dvc push`, which may take hours."""
    monkeypatch.setattr("dvc.lock.DEFAULT_TIMEOUT", 0.01)
    study.begin(A)
    study.write("out/a", "made")
    theirs = make_lock(str(study.root / ".dvc/tmp/lock"))
    with theirs:
        with pytest.raises(Locked):
            study.begin(C)
        with pytest.raises(Locked):
            study.recorder.record([A])
        assert capsys.readouterr().err == ""
        threading.Timer(0.2, theirs.unlock).start()
        assert study.recorder.record([A], wait=True) == {}
        assert capsys.readouterr().err == f"{WAITING}\n"
        theirs.lock()
    assert study.begin(C).what == "run" and study.again().locked() == ["a"]


@pytest.mark.parametrize("damage", ["", "stages: [", "schema: '2.0'\nstages: {a: 3}\n"])
def test_files_that_a_kill_has_cut_are_made_anew(study: Study, damage: str) -> None:
    study.make(A, "1")
    study.make(C, "1")
    study.again().write("dvc.lock", damage)
    study.write(".dvc/tmp/rwlock", '{"write": 3'[: 3 * len(damage)])
    assert study.recorder.stale([A, C]) == {A: "not made yet"}
    assert not (study.root / "dvc.lock").exists() and study.locked("other/dvc.lock") == ["c"]
    assert study.begin(A).what == "cached"


def test_what_the_disk_refuses_is_one_line(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = type(study.recorder.repo.lock)
    study.begin(C)

    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a")

    with monkeypatch.context() as patch:
        patch.setattr(lock, "lock", fail)
        with pytest.raises(UserError, match=r"^DVC: a: No space left on device; what is recorded so far stays"):
            study.begin(A)
        with pytest.raises(UserError, match=r"^DVC: a: No space"):
            study.again()  # which lets go of C, or that would be tried when the interpreter ends
    study._recorder = None
    with pytest.raises(UserError, match=r"DVC: .*not.* inside of a DVC repository"):
        Recorder(Path("/"), [])
