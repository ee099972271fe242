"""From specs to stage files: the same bytes everywhere, only what differs is written, nothing after a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.project import Project, make_project, several, spec, tree

from pflcore.errors import UserError
from pipeline.compile import generated
from pipeline.compile.generated import Changes, compare, write
from pipeline.workspace import CODE, RECORDS


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
    (shared,) = set(compilation.tables["tiny"].runs) & set(compilation.tables["paper/table2.v1"].runs)
    assert compilation.slots == sum(len(table.runs) for table in compilation.tables.values()) > len(compilation.runs)
    assert len([name for name in project.stages() if name.endswith(f":train@{shared}")]) == 1


def test_an_added_value_adds_a_line_to_each_of_three_files_and_renames_nothing(tiny: Project) -> None:
    def lines() -> list[str]:
        return [line for text in tiny.generated().values() for line in text.decode().splitlines()]

    before, stages = set(lines()), set(tiny.stages())
    tiny.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Local: local}"))
    changes = tiny.compile()
    assert [name for name in changes.written if "federations" not in name] == [
        *("stages/code.yaml", "stages/dvc.yaml", "stages/records.json", "stages/tables/tiny.json")
    ]
    (run,) = [name.partition("@")[2] for name in set(tiny.stages()) - stages if "train" in name]
    assert stages < set(tiny.stages()) and run.startswith("local-convnet-digits-")
    added = [line.split(":")[0].strip(' "') for line in lines() if line not in before and "labels" not in line]
    assert added.count(run) == 3 and added.count("local") == 1  # stage, record and the table's; the method's digest
    assert changes.summary == "1 run and 1 code digest added, 1 report changed" and not changes.left


def test_a_removed_spec_takes_its_files_and_locks_along_but_for_shared_runs(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one", several(), default=["tiny", "hostile"])
    project.compile()
    stage_files = [project.root / "dvc.yaml", *project.root.glob("stages/**/dvc.yaml")]
    locks = [path.with_name("dvc.lock") for path in stage_files]
    mine = [project.write(name, "mine") for name in ("notes.txt", "reports/README.md", "stages/.keep")]
    for lock in locks:
        lock.write_text("stages: {}\n", encoding="utf-8")
    (project.root / "specs/paper/table2.v1.yaml").unlink()
    assert project.compile().summary == "7 runs and 1 report and 2 code digests removed"
    gone = [lock for lock in locks if not lock.exists()]
    assert any("-dirichlet-" in lock.parent.name for lock in gone)
    assert not any(lock.with_name("dvc.yaml").exists() for lock in gone) and all(path.exists() for path in mine)
    for path in (*(lock for lock in locks if lock.exists()), mine[-1]):
        path.unlink()
    rest = {name: text for name, text in several().items() if name != "specs/paper/table2.v1.yaml"}
    other = make_project(tmp_path / "other", rest, default=["tiny", "hostile"])
    other.compile()
    assert project.generated() == other.generated()


INVALID: list[tuple[dict[str, str | bytes], str]] = [
    ({"specs/z.yaml": "grid: {base: {method: fedpt}}\n"}, "specs/z.yaml:1: .*did you mean 'fedtp'"),
    ({"specs/data/a.yaml": spec()}, "specs/data/a.yaml: a folder of specs cannot be called 'data'"),
    ({"specs/dvc.yaml": spec()}, "specs/dvc.yaml: DVC takes"),
    ({"specs/tiny/a/b.yaml": spec("[local]")}, "specs/tiny/a/b.yaml: its report would lie inside"),
    ({"pyproject.toml": b"\xff"}, "pyproject.toml: not readable as TOML"),
]


@pytest.mark.parametrize(("files", "message"), INVALID, ids=[message for _, message in INVALID])
def test_a_mistake_is_one_line_and_nothing_is_written(
    tiny: Project, files: dict[str, str | bytes], message: str
) -> None:
    for name, text in {"specs/tiny.yaml": spec("[local]"), **files}.items():
        tiny.write(name, text)
    before = tree(tiny.root)
    with pytest.raises(UserError, match=f"^{message}") as error:
        tiny.compile()
    assert "\n" not in str(error.value) and tree(tiny.root) == before


def test_names_of_stage_folders_are_free_for_files_and_the_first_spec_is_the_default(tmp_path: Path) -> None:
    files = {"specs/data.yaml": spec(), "specs/data/base.yaml": "abstract: true\n", "specs/z.yaml": spec("[local]")}
    project = make_project(tmp_path, files)
    project.compile()
    assert (tmp_path / "stages/tables/data.json").is_file()
    assert project.stages()["dvc.yaml:index"]["cmd"].startswith("pfl stage index data --seal ")


def test_only_what_differs_is_written(tiny: Project) -> None:
    def stats() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tiny.root.rglob("stages/**/*")}

    before, right = stats(), tiny.generated()
    assert not tiny.compile() and stats() == before
    records = json.loads(right[RECORDS])
    run = next(id_ for id_, record in records.items() if "method" in record)
    tiny.write("stages/tables/tiny.json", "edited by hand")
    tiny.write(RECORDS, json.dumps(records | {run: records[run] | {"seed": 7}, "gone": records[run]}))
    tiny.write("stages/left/over.yaml", "x: 1\n")
    summary = "1 run and 1 report changed, 1 run removed"
    changes = Changes([RECORDS, "stages/tables/tiny.json"], ["stages/left/over.yaml"], summary)
    assert compare(tiny.workspace(), tiny.compiled()) == changes and (tiny.root / "stages/left/over.yaml").exists()
    assert write(tiny.workspace(), tiny.compiled()) == changes
    assert tiny.generated() == right and not (tiny.root / "stages/left").exists()
    (tiny.root / CODE).unlink()
    tiny.write("dvc.yaml", "stages: {}\n")
    assert tiny.compile().summary == "10 code digests added"
    tiny.write("dvc.yaml", "stages: {}\n")
    assert tiny.compile().summary == "1 stage file changed"


def test_an_interrupted_compilation_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, original = make_project(tmp_path), generated.write_text

    def stop_at_the_root_file(path: Path, text: str) -> None:
        if path == tmp_path / "dvc.yaml":
            raise KeyboardInterrupt
        original(path, text)

    monkeypatch.setattr(generated, "write_text", stop_at_the_root_file)
    with pytest.raises(KeyboardInterrupt):
        project.compile()
    monkeypatch.undo()
    assert project.compile().written == ["dvc.yaml"] and not list(tmp_path.rglob("*.part"))  # which is the last
