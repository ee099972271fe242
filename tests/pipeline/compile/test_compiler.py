"""From specs to stage files: the same bytes everywhere, only what differs is written, nothing after a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import CONVNET, VIT, Project, make_project, several, spec, tree

from pflcore.errors import UserError
from pipeline.compile import generated
from pipeline.compile.generated import Changes, compare, write


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Several specs, compiled; not to be changed."""
    made = make_project(tmp_path_factory.mktemp("several"), several(), default=["tiny", "hostile"])
    made.compile()
    return made


@pytest.fixture
def tiny(tmp_path: Path) -> Project:
    made = make_project(tmp_path)
    made.compile()
    return made


def test_the_same_bytes_whatever_the_folder_the_locale_and_the_order_of_files(project: Project, tmp_path: Path) -> None:
    other = make_project(tmp_path / "other folder", dict(reversed(several().items())), default=["tiny", "hostile"])
    done = other.call("pfl", "compile", cwd="specs/paper", PYTHONHASHSEED="1", LC_ALL="C", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert other.generated() == project.generated()


def test_a_shared_run_is_one_stage(project: Project) -> None:
    compilation = project.compiled()
    table = {name: set(compilation.tables[name].runs) for name in ("tiny", "paper/table2.v1")}
    (shared,) = table["tiny"] & table["paper/table2.v1"]
    assert compilation.slots == sum(len(table.runs) for table in compilation.tables.values())
    assert compilation.slots > len(compilation.runs)
    assert len(compilation.runs) == len(set().union(*(table.runs for table in compilation.tables.values())))
    assert len([name for name in project.stages() if f":train-{shared}" in name]) == 1


def test_an_added_value_adds_its_run_only(tiny: Project) -> None:
    tiny.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Local: local}"))
    changes = tiny.compile()
    assert [Path(name).name.rpartition("-")[0] for name in changes.added if "federations" in name] == [
        "local-convnet-digits"
    ]
    assert [name for name in changes.added if "federations" not in name] == ["stages/code/method.local.txt"]
    assert [Path(name).name for name in changes.changed] == ["dvc.yaml"] * 3 + ["tiny.json"]
    assert changes.removed == []


def test_a_removed_spec_takes_its_files_and_locks_along_but_for_shared_runs(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one", several(), default=["tiny", "hostile"])
    project.compile()
    shards = [project.root / "dvc.yaml", *project.root.glob("stages/**/dvc.yaml")]
    locks = [
        project.write(str(path.with_name("dvc.lock").relative_to(project.root)), "stages: {}\n") for path in shards
    ]
    mine = [project.write(name, "mine") for name in ("notes.txt", "reports/README.md", "stages/.keep")]
    tables = project.compiled().tables
    shared = set(tables["tiny"].runs) & set(tables["paper/table2.v1"].runs)
    (project.root / "specs/paper/table2.v1.yaml").unlink()
    changes = project.compile()
    assert changes.removed and not changes.added and not {Path(name).stem for name in changes.removed} & shared
    gone = [lock for lock in locks if not lock.exists()]
    assert any("-dirichlet-" in lock.parent.name for lock in gone)
    assert not any(lock.with_name("dvc.yaml").exists() for lock in gone)
    assert all(path.read_text(encoding="utf-8") == "mine" for path in mine)
    for lock in (lock for lock in locks if lock.exists()):
        lock.unlink()
    mine[-1].unlink()
    rest = {name: text for name, text in several().items() if name != "specs/paper/table2.v1.yaml"}
    other = make_project(tmp_path / "other", rest, default=["tiny", "hostile"])
    other.compile()
    assert project.generated() == other.generated()


INVALID: list[tuple[dict[str, str | bytes], str]] = [
    ({"specs/z.yaml": "grid: {base: {method: fedpt}}\n"}, "specs/z.yaml:1: .*did you mean 'fedtp'"),
    ({"specs/code/a.yaml": spec()}, "specs/code/a.yaml: a folder of specs cannot be called 'code'"),
    ({"specs/dvc.yaml": spec()}, "specs/dvc.yaml: DVC takes"),
    ({"specs/paper/dvc.yaml": "abstract: true\n"}, "specs/paper/dvc.yaml: DVC takes"),
    ({"specs/tiny/a/b.yaml": spec("[local]")}, "specs/tiny/a/b.yaml: its report would lie inside"),
    ({"pyproject.toml": '[tool.pfl]\ndefault = ["tinny"]\n'}, ".*did you mean 'tiny'"),
    ({"pyproject.toml": '[tool.pfl]\ndefault = "tiny"\n'}, ".*default = 'tiny' must be a list"),
    ({"pyproject.toml": "[tool]\npfl = 3\n"}, "pyproject.toml: pfl = 3 must be a table"),
    ({"pyproject.toml": b"\xff"}, "pyproject.toml: not readable as TOML"),
]


@pytest.mark.parametrize(("files", "message"), INVALID, ids=[message for _, message in INVALID])
def test_a_mistake_is_one_line_and_nothing_is_written(
    tiny: Project, files: dict[str, str | bytes], message: str
) -> None:
    tiny.write("specs/tiny.yaml", spec("[local]"))
    for name, text in files.items():
        tiny.write(name, text)
    before = tree(tiny.root)
    with pytest.raises(UserError, match=f"^{message}") as error:
        tiny.compile()
    assert "\n" not in str(error.value) and tree(tiny.root) == before


def test_names_of_stage_folders_are_free_for_files_and_the_first_spec_is_the_default(tmp_path: Path) -> None:
    backbones = spec(more=f"    backbone: {{A: {CONVNET}, B: {VIT}}}\n")
    files = {"specs/data.yaml": spec(), "specs/data/base.yaml": "abstract: true\n", "specs/z.yaml": backbones}
    project = make_project(tmp_path, files)
    project.compile()
    assert (tmp_path / "stages/tables/data.json").is_file() and len(project.compiled().runs) == 4
    assert project.stages()["dvc.yaml:index"]["cmd"].startswith("pfl stage index stages/tables/data.json --seal ")


# --- what is written ------------------------------------------------------------------------------------------------


def test_only_what_differs_is_written(tiny: Project) -> None:
    def looks() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tiny.root.rglob("stages/**/*")}

    before, right = looks(), tiny.generated()
    assert not tiny.compile() and looks() == before
    tiny.write("stages/tables/tiny.json", "edited by hand")
    (tiny.root / "stages/code/evaluate.txt").unlink()
    tiny.write("stages/left/over.yaml", "x: 1\n")
    expected = Changes(["stages/code/evaluate.txt"], ["stages/tables/tiny.json"], ["stages/left/over.yaml"])
    compilation = tiny.compiled()
    assert compare(tiny.workspace(), compilation) == expected
    assert (tiny.root / "stages/left/over.yaml").exists()
    assert write(tiny.workspace(), compilation) == expected
    assert tiny.generated() == right and not (tiny.root / "stages/left").exists()


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
        (Changes([RUN.format(1), RUN.format(2), "stages/tables/a.json"], [], []), "2 runs and 1 report added"),
        (
            Changes(["stages/code/train.a.b.txt"], ["stages/tables/a.json", "stages/tables/b/c.json"], [RUN.format(1)]),
            "1 code fingerprint added, 2 reports changed, 1 run removed",
        ),
        (Changes([], ["stages/federations/f/federation.yaml", "stages/dvc.yaml"], []), "2 stage files changed"),
    ],
)
def test_changes_in_words(changes: Changes, words: str) -> None:
    assert changes.summary() == words
    assert bool(changes) == (words != "nothing changed")
