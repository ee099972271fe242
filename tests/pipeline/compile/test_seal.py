"""What a stage makes sure of before and after its work, with stage files written by hand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pflcore.errors import UserError
from pipeline.compile.compiler import source_folder
from pipeline.compile.engine import ENGINE, TITLE
from pipeline.compile.fingerprint import Code
from pipeline.compile.seal import command, seal, sealed, text_hash

RECORD, CODE = Path("stages/a/run.yaml"), "stages/code/mine.txt"
OUTS = ["artifacts/out", "artifacts/file", "../outside"]


@dataclass
class Place:
    """A folder with one stage file; the stage reads two inputs and writes two outputs, and one that lies outside."""

    root: Path

    def write(self, name: str | Path, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def compile(self, code: str, file: str = CODE) -> str:
        """Write what a compilation would, with this for the code of the stage; the seal."""
        texts = {RECORD.as_posix(): "lr: 0.1\n", file: code}
        for name, text in texts.items():
            self.write(name, text)
        mark = seal({name: text_hash(text) for name, text in texts.items()})
        one = {
            "cmd": command("train", [RECORD.as_posix()], mark),
            "deps": [*texts, "artifacts/in", "artifacts/many"],
            "outs": OUTS,
        }
        other = {"cmd": command("train", ["stages/a/other.yaml"], mark), "deps": [], "outs": []}
        self.stages(other=other, one=one)
        return mark

    def stages(self, **stages: dict[str, Any]) -> None:
        self.write("stages/a/dvc.yaml", yaml.safe_dump({"stages": stages}, sort_keys=False))

    def work(self) -> None:
        """What the stage writes."""
        for name in ("artifacts/out/a", "artifacts/file", "../outside"):
            self.write(name, "made")

    @property
    def left(self) -> list[str]:
        return [out for out in OUTS if (self.root / out).exists()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path / "root")
    for name in ("artifacts/in", "artifacts/many/a", "artifacts/many/b/c"):
        made.write(name, "input")
    monkeypatch.chdir(made.root)
    return made


ERRORS = Code(source_folder()).fingerprint("pflcore.errors")


def test_a_stage_knows_what_it_was_compiled_from(place: Place) -> None:
    mark = place.compile(ERRORS)
    for given in (mark, None):  # by hand the seal in the stage file is gone by
        with sealed("train", [RECORD], given) as stage:
            place.work()
        assert stage.fingerprints == {CODE: ERRORS}
        assert stage.inputs == [Path("artifacts/in"), Path("artifacts/many")]
        assert stage.command == f"pfl stage train {RECORD} --seal {mark}"
        assert place.left == OUTS
    assert (place.root / ".pfl/fingerprints.json").is_file(), "the next process need not parse it"


def test_a_seal_stays_as_it_is() -> None:
    """Or all that is recorded would be stale."""
    assert seal({"b": text_hash("2"), "a": text_hash("1")}) == "ee5c1ded56b3"
    assert command("report", ["x.json", "y"], "abc") == "pfl stage report x.json y --seal abc"


def test_what_was_not_compiled_for_this_is_refused(place: Place) -> None:
    mark = place.compile(ERRORS)
    with (
        pytest.raises(UserError, match=r"^stages/b\.yaml: no such file; run"),
        sealed("train", [Path("stages/b.yaml")], mark),
    ):
        pass
    other = place.write("stages/a/third.yaml", "").relative_to(place.root)
    with (
        pytest.raises(UserError, match=r"^stages/a/third\.yaml: no stage of stages/a/dvc\.yaml"),
        sealed("train", [other], None),
    ):
        pass
    with pytest.raises(UserError, match=r"compiled anew after DVC had read it"), sealed("train", [RECORD], "0" * 12):
        pass
    place.write(RECORD, "lr: 0.2\n")
    with (
        pytest.raises(UserError, match=r"^stages/a/run\.yaml: edited by hand, or of another commit than"),
        sealed("train", [RECORD], mark),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "named"), [(ERRORS[:-3] + "00\n", "pflcore.sources"), (ERRORS + "pflcore.gone 00\n", "pflcore.gone")]
)
def test_other_code_is_refused_by_who_works_with_it(place: Place, code: str, named: str) -> None:
    mark = place.compile(code)
    told = rf"^{named} was edited after {CODE} had been compiled; undo the edit, or type the same command again"
    with pytest.raises(UserError, match=told), sealed("train", [RECORD], mark):
        pass


def test_another_engine_than_the_one_that_is_here(place: Place) -> None:
    mark = place.compile("engine version 99\n", ENGINE)
    with pytest.raises(UserError, match=f"^{ENGINE}: not the {TITLE} of"), sealed("train", [RECORD], mark):
        pass


def edit_the_record(place: Place) -> None:
    place.write(RECORD, "lr: 0.3\n")


def compile_anew(place: Place) -> None:
    text = (place.root / "stages/a/dvc.yaml").read_text("utf-8")
    place.write("stages/a/dvc.yaml", text.replace("--seal", "--seal x"))


def rewrite_an_input(place: Place) -> None:
    place.write("artifacts/in", "inputs")


def replace_an_input(place: Place) -> None:
    """By one of the same size and time."""
    path = place.root / "artifacts/many/a"
    stat, other = path.stat(), place.write("other", "INPUT")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (edit_the_record, r"^stages/a/run\.yaml: changed while this stage ran, so nothing is recorded"),
        (compile_anew, r"^stages/a/dvc\.yaml: changed while this stage ran"),
        (rewrite_an_input, r"^artifacts/in: replaced while this stage read it"),
        (replace_an_input, r"^artifacts/many/a: replaced while this stage read it"),
    ],
)
def test_what_is_changed_meanwhile_leaves_no_result(place: Place, change: Any, told: str) -> None:
    mark = place.compile(ERRORS)
    with pytest.raises(UserError, match=told), sealed("train", [RECORD], mark):
        place.work()
        place.write("artifacts/many/later", "input")  # which is nobody's
        change(place)
    assert place.left == ["../outside"], "nothing is removed that lies elsewhere"


@pytest.mark.parametrize("text", ["stages: [", "stages: {a: {}}", "stages: {a: {cmd: 1}}"])
def test_a_damaged_stage_file_is_one_line(place: Place, text: str) -> None:
    mark = place.compile(ERRORS)
    place.write("stages/a/dvc.yaml", text)
    with (
        pytest.raises(UserError, match=r"^stages/a/dvc\.yaml: not what `pfl compile` writes; run it$"),
        sealed("train", [RECORD], mark),
    ):
        pass
