"""DVC's side of running stages, in a repository whose stages are written by hand and made by the tests themselves."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
import yaml
from dvc.lock import make_lock
from support.mistakes import refuses

from pipeline.compile.compilation import Stage
from pipeline.dvc.recorder import CHANGED, WAITING, Locked, Recorder, Verdict

A, B, C = "dvc.yaml:a", "dvc.yaml:b", "other/dvc.yaml:c"
STAGES = {
    A: Stage("dvc.yaml", "a", "pfl stage a", ("in",), ("out/a",)),
    B: Stage("dvc.yaml", "b", "pfl stage b", ("out/a",), ("reports/b", "out/b")),
    C: Stage("other/dvc.yaml", "c", "pfl stage c", ("in",), ("out/c",)),
}


class Study:
    """Stages a → b, which makes a report, and c in a file of its own."""

    def __init__(self, root):
        self.root, self.recorder = root, None
        self.write(".dvc/config", "[core]\n    no_scm = true\n    analytics = false\n")
        self.write("in", "input")
        self.compile()
        self.again()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # which may be a link into the cache
        path.write_text(text)
        return path

    def read(self, name):
        return (self.root / name).read_text()

    def compile(self, **commands):
        """Write the stage files, some of them with other commands."""
        files = {"dvc.yaml": {}, "other/dvc.yaml": {}}
        for one in STAGES.values():
            place = {"wdir": ".."} if "/" in one.file else {}
            own = {"cmd": commands.get(one.name, one.command), "deps": [*one.deps], "outs": [*one.outs], **place}
            files[one.file][one.name] = own
        for file, stages in files.items():
            self.write(file, yaml.safe_dump({"stages": stages}))

    def again(self):
        """Go on as the next process."""
        if self.recorder:
            self.recorder.close()
        self.recorder = Recorder(self.root, STAGES.values())
        return self

    def make(self, address, text):
        """Begin a stage, write its outputs and record it."""
        assert self.recorder.begin(address) == Verdict("run")
        for out in STAGES[address].outs:
            self.write(out, f"{text} {out}")
        assert self.recorder.record([address]) == {}

    def locked(self, name="dvc.lock"):
        """Return the stages that a lock file has."""
        return list(yaml.safe_load(self.read(name))["stages"]) if (self.root / name).is_file() else []

    def marks(self):
        """Return what DVC takes for being read and written."""
        path = self.root / ".dvc/tmp/rwlock"
        found = json.loads(path.read_text() if path.is_file() else "{}")
        return {kind: sorted(os.path.relpath(path, self.root) for path in one) for kind, one in found.items() if one}


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    made = Study(tmp_path)
    yield made
    made.recorder.close()


def test_why_a_stage_is_stale(study):
    assert study.recorder.stale([A, C]) == {A: "not made yet", C: "not made yet"}
    study.make(A, "1")
    study.make(B, "1")
    assert study.recorder.stale([A, B]) == {}
    study.write("out/a", "other")
    assert study.recorder.stale([A, B]) == {A: "out/a is modified", B: "out/a is modified"}
    shutil.rmtree(study.root / "out")
    assert study.recorder.stale([A])[A] == "out/a is deleted"
    study.write("out", "a file in the place of a folder")
    verdict = study.recorder.begin(A)
    assert verdict.decision == "broken" and verdict.reason.startswith("DVC: ") and "\n" not in verdict.reason
    (study.root / "out").unlink()
    study.again().write("in", "edited")
    assert study.recorder.stale([A]) == {A: "in is modified"}
    study.again().compile(a="pfl stage other", c="pfl stage other")
    assert study.recorder.stale([A, C]) == {A: "its command changed", C: "not made yet"}


def test_what_was_made_is_found_again(study):
    study.make(A, "1")
    assert study.recorder.begin(A).decision == "fresh"
    study.again().write("in", "edited")
    assert study.recorder.begin(A).decision == "run"
    assert not (study.root / "out/a").exists(), "it would be taken for what is made now"
    study.write("out/a", "2")
    study.recorder.record([A])
    study.again().write("in", "input")
    assert study.recorder.begin(A) == Verdict("cached") and study.read("out/a") == "1 out/a"
    study.again()
    (study.root / "dvc.lock").unlink()  # of no need for it
    (study.root / "out/a").unlink()
    assert study.again().recorder.begin(A).decision == "cached" and study.read("out/a") == "1 out/a"
    assert study.again().locked() == ["a"]
    study.compile(a="pfl stage else")
    assert study.again().recorder.begin(A).decision == "run"


def test_each_of_several_is_recorded_by_itself(study):
    assert [study.recorder.begin(address).decision for address in (A, C)] == ["run"] * 2
    study.write("out/c", "made")
    assert study.recorder.record([A, C]) == {A: "output 'out/a' does not exist"}
    assert study.recorder.stale([A, C]) == {A: "not made yet"} and study.recorder.begin(A).decision == "run"
    study.write("out/a", "made")
    study.write("in", "edited")
    assert study.recorder.record([A]) == {A: CHANGED}
    assert study.again().locked() == [] and study.locked("other/dvc.lock") == ["c"]


def test_what_is_under_way_is_marked_until_it_ends_and_theirs_is_left_alone(study):
    for address in (A, C):
        study.recorder.begin(address)
    assert study.marks() == {"read": ["in"], "write": ["out/a", "out/c"]}
    study.write("out/c", "made")
    study.recorder.record([C])
    assert study.marks() == {"read": ["in"], "write": ["out/a"]}
    study.recorder.abandon(A)
    assert study.marks() == {}
    study.recorder.begin(A)
    assert study.again().marks() == {}  # of what was not given up, too
    theirs = study.write("out/a", "theirs so far")
    mark = {"pid": os.getppid(), "cmd": "dvc repro theirs"}
    study.write(".dvc/tmp/rwlock", json.dumps({"write": {str(theirs): mark}}))
    verdict = study.recorder.begin(A)
    assert verdict.decision == "busy" and "dvc repro theirs" in verdict.reason
    assert study.read("out/a") == "theirs so far"
    assert study.again().recorder.begin(A).decision == "busy"
    os.utime(study.root / ".dvc/tmp/rwlock", (1, 1))  # before that process began: it has another one's number
    assert study.again().recorder.begin(A).decision == "run"


def test_what_was_compiled_anew_or_away_meanwhile_is_stale_or_not_recorded(study):
    study.make(A, "1")  # at once; what follows within seconds, at the end
    study.make(B, "1")
    assert study.locked() == ["a"]
    study.compile(a="pfl stage other")  # as `pfl keep` does with runs that have ended
    assert study.again().locked() == ["a", "b"]
    assert study.recorder.stale([A, B]) == {A: "its command changed"}
    study.make(A, "2")
    (study.root / "dvc.yaml").unlink()
    assert study.again().locked() == ["a", "b"]


def test_while_another_process_has_dvcs_lock_nothing_is_done(study, monkeypatch, capsys):
    """As during a `dvc push`, which may take hours."""
    monkeypatch.setattr("dvc.lock.DEFAULT_TIMEOUT", 0.01)
    study.recorder.begin(A)
    study.write("out/a", "made")
    theirs = make_lock(str(study.root / ".dvc/tmp/lock"))
    with theirs:
        with pytest.raises(Locked):
            study.recorder.begin(C)
        with pytest.raises(Locked):
            study.recorder.record([A])
        assert capsys.readouterr().err == ""
        threading.Timer(0.2, theirs.unlock).start()
        assert study.recorder.record([A], wait=True) == {}
        assert capsys.readouterr().err == f"{WAITING}\n"
        theirs.lock()
    assert study.recorder.begin(C).decision == "run" and study.again().locked() == ["a"]


CUT = "schema: '2.0'\nstages:\n  a:\n    cmd: pfl stage a\n    deps:\n    - path: in\n      hash: md"  # of md5


@pytest.mark.parametrize("damage", ["", "stages: [", "schema: '2.0'\nstages: {a: 3}\n", CUT])
def test_files_that_a_kill_has_cut_are_made_anew(study, damage):
    study.make(A, "1")
    study.make(C, "1")
    study.again().write("dvc.lock", damage)
    study.write(".dvc/tmp/rwlock", '{"write": 3'[: 3 * len(damage)])
    assert study.again().recorder.stale([A, C]) == {A: "not made yet"}
    assert not (study.root / "dvc.lock").exists() and study.locked("other/dvc.lock") == ["c"]
    assert study.recorder.begin(A).decision == "cached"


def test_a_lock_file_with_a_conflict_stays(study):
    study.make(A, "1")
    lock = study.root / "dvc.lock"
    lock.write_text(text := "<<<<<<< HEAD\n" + lock.read_text())
    refuses(rf"^{lock}: git left a conflict in it; `git checkout --ours", study.again)
    assert lock.read_text() == text


def test_what_the_disk_refuses_is_one_line(study, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device", "a")

    study.recorder.begin(C)
    with monkeypatch.context() as patch:
        patch.setattr(type(study.recorder.repo.lock), "lock", fail)
        refuses(r"^DVC: a: No space left on device; what is recorded so far stays", study.recorder.begin, A)
        refuses(r"^DVC: a: No space", study.recorder.close)
    refuses(r"DVC: .*not.* inside of a DVC repository", Recorder, Path("/"), [])
