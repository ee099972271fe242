"""Writing stage files: what is right is not touched, what is stale goes, an interruption does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project, make_project, spec, tree

from pipeline.compile import generated
from pipeline.compile.generated import Changes, compare, write


def write_locks(project: Project) -> list[str]:
    """A lock file beside every stage file; their paths."""
    shards = [project.root / "dvc.yaml", *project.root.glob("stages/**/dvc.yaml")]
    for shard in shards:
        shard.with_name("dvc.lock").write_text("schema: '2.0'\nstages: {}\n", encoding="utf-8")
    return [shard.with_name("dvc.lock").relative_to(project.root).as_posix() for shard in shards]


def test_a_second_time_touches_nothing(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    first = project.compile()
    assert first.added and not first.changed and not first.removed
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("stages/**/*")}
    assert not project.compile()
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("stages/**/*")} == before


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.compile()
    right = project.generated()
    project.write("stages/tables/tiny.json", "edited by hand")
    (tmp_path / "stages/code/evaluate.txt").unlink()
    project.write("stages/left/over.yaml", "x: 1\n")
    expected = Changes(["stages/code/evaluate.txt"], ["stages/tables/tiny.json"], ["stages/left/over.yaml"])
    compilation = project.compiled()
    assert compare(project.workspace(), compilation) == expected
    assert (tmp_path / "stages/left/over.yaml").exists()
    assert write(project.workspace(), compilation) == expected
    assert project.generated() == right
    assert not (tmp_path / "stages/left").exists()


def test_locks_go_with_their_shard_only(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"specs/a.yaml": spec(), "specs/b.yaml": spec(partition="dirichlet")})
    project.compile()
    locks = write_locks(project)
    project.write("stages/.keep", "")
    shard = next(name for name in locks if "-dirichlet-" in name)
    (tmp_path / "specs/b.yaml").unlink()
    changes = project.compile()
    assert "stages/tables/b.json" in changes.removed and shard.replace("lock", "yaml") in changes.removed
    assert not (tmp_path / shard).parent.exists()
    assert [name for name in locks if not (tmp_path / name).exists()] == [shard]
    assert (tmp_path / "stages/.keep").exists()
    assert "-dirichlet-" not in "".join(tree(tmp_path / "stages"))


def test_files_of_the_reader_outside_of_stages_stay(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    mine = [project.write(name, "mine") for name in ("notes.txt", "artifacts/x.parquet", "reports/README.md")]
    project.compile()
    assert all(path.read_text(encoding="utf-8") == "mine" for path in mine)


def test_an_interrupted_compilation_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path)
    files, written = project.compiled().files, []
    original = generated.write_text

    def stop_at_the_last(path: Path, text: str) -> None:
        if len(written) == len(files) - 1:
            raise KeyboardInterrupt
        written.append(path)
        original(path, text)

    monkeypatch.setattr(generated, "write_text", stop_at_the_last)
    with pytest.raises(KeyboardInterrupt):
        project.compile()
    assert not (tmp_path / "dvc.yaml").exists()  # the root file is the last
    monkeypatch.undo()
    assert project.compile() == Changes(["dvc.yaml"], [], [])
    assert not list(tmp_path.rglob("*.part"))


RUN = "stages/federations/f/r{}.yaml"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (Changes([], [], []), "nothing changed"),
        (Changes([RUN.format(1)], [], []), "1 run added"),
        (Changes([RUN.format(1), RUN.format(2), "stages/tables/a.json"], [], []), "2 runs and 1 report added"),
        (
            Changes(["stages/code/train.a.b.txt"], ["stages/tables/a.json", "stages/tables/b/c.json"], [RUN.format(1)]),
            "1 code fingerprint added, 2 reports changed, 1 run removed",
        ),
        (Changes([], ["dvc.yaml"], []), "1 stage file changed"),
        (Changes([], ["stages/federations/f/federation.yaml", "stages/dvc.yaml"], []), "2 stage files changed"),
    ],
)
def test_changes_in_words(changes: Changes, words: str) -> None:
    assert changes.summary() == words
    assert bool(changes) == (words != "nothing changed")
