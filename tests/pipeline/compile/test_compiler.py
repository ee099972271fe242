"""From specs to stage files: the same bytes everywhere, as DVC reads them; only what differs is written."""

import json
import re
from pathlib import Path

import pytest
import yaml
from ruamel.yaml import YAML
from support.mistakes import line_of, refuses
from support.project import make_project, several, spec, tree
from support.report_demo import KEPT

from pipeline.compile import generated
from pipeline.compile.compilation import Graph
from pipeline.compile.compiler import GUARD, compile_workspace
from pipeline.compile.generated import Line, compare, to_yaml, write
from pipeline.ledger import Entry, Ledger
from pipeline.spec.run import read_record, read_records
from pipeline.spec.table import read_resolved, read_runs
from pipeline.workspace import CODE, RECORDS, run_path, selection_path

KINDS = "data|partition|describe|train|evaluate|report|index"
COMMAND = re.compile(rf"pfl stage (guard|({KINDS})( [a-z0-9_./-]+)+ --seal [0-9a-f-]+)")
THREE = "{FedAvg: fedavg, FedPer: fedper, Local: local}"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Several specs, compiled; not to be changed."""
    study = make_project(tmp_path_factory.mktemp("several"), several(), default=["tiny", "hostile"])
    study.compile()
    return study


def test_dvc_reads_stages_that_come_after_what_they_read_and_name_nothing_of_this_machine(project):
    stages, compilation = project.stages(), project.compiled()
    assert stages == {
        item.address: {"cmd": item.command, "deps": [*item.deps], "outs": [*item.outs], "always_changed": item.always}
        for item in compilation.stages
    }
    assert {stage.kind for stage in compilation.stages} == {"guard", *KINDS.split("|")}
    assert {stage.subject for stage in compilation.stages if stage.kind == "train"} == {*compilation.runs}
    for name, stage in stages.items():
        assert COMMAND.fullmatch(stage["cmd"]) and re.fullmatch(r"[a-z0-9_.-]+(@[a-z0-9_.-]+)?", name.partition(":")[2])
        assert all(re.fullmatch(r"(?!\.\.)[a-z0-9_.-][a-z0-9_./-]+", path) for path in (*stage["deps"], *stage["outs"]))
    assert str(project.root).encode() not in b"".join(project.generated().values())
    producer = {out: name for name, stage in stages.items() for out in stage["outs"]}
    assert len(producer) == sum(len(stage["outs"]) for stage in stages.values())
    assert all(dep in producer or (project.root / dep).exists() for stage in stages.values() for dep in stage["deps"])
    assert Graph(compilation.stages).dependents("dvc.yaml:guard") == stages.keys() - {"dvc.yaml:guard"}
    for name, table in compilation.tables.items():
        folder, _, stage = f"stages/{name}".rpartition("/")
        evaluate, report = stages[f"{folder}/dvc.yaml:evaluate-{stage}"], stages[f"{folder}/dvc.yaml:{stage}"]
        assert set(evaluate["deps"]) == {run_path(run, "rounds.parquet") for run in table.runs}
        assert [dep for dep in report["deps"] if dep.startswith("artifacts/")] == evaluate["outs"]
        assert read_resolved(project.root / f"stages/tables/{name}.json") == table
        assert read_runs(table, project.root) == {run: compilation.runs[run] for run in table.runs}
    (shared,) = set(compilation.tables["tiny"].runs) & set(compilation.tables["paper/table2.v1"].runs)
    assert compilation.slots == sum(len(table.runs) for table in compilation.tables.values()) > len(compilation.runs)
    assert len([name for name in stages if name.endswith(f":train@{shared}")]) == 1  # a shared run is one stage


def test_records_are_known_by_their_hashes(project, tmp_path):
    path, edited = project.root / RECORDS, tmp_path / "records.json"
    for run in project.compiled().runs.values():
        assert read_record(path, run.id) == run.record
        assert read_record(path, run.federation_id) == run.federation and read_record(path, run.data_id) == run.data
    edited.write_text(path.read_text(encoding="utf-8").replace('"lr": 0.1', '"lr": 0.2'), encoding="utf-8")
    assert read_records(edited, [run.id])[run.id]["training"]["lr"] == 0.2
    assert f"{run.id}: edited by hand" in line_of(read_record, edited, run.id)
    edited.write_text(f'"{run.id}": {{"a": ')
    assert "records.json: edited by hand" in line_of(read_record, edited, run.id)
    for file, message in ((path, "nothing of gone-0"), (tmp_path / "none.json", "no such file; run `pfl compile`")):
        refuses(message, read_record, file, "gone-0")


def test_stage_groups_for_weights_and_tuning(tmp_path):
    tune = "{space: {training.lr: [0.001, 0.3]}, where: {method: FedAvg}, seeds: [7], trial: {training: {rounds: 3}}}"
    text = spec(training=", save_weights: true", partition="{name: iid, validation_share: 0.3}", more=f"tune: {tune}\n")
    project = make_project(tmp_path, {"specs/a.yaml": text})
    project.compile()
    stages = {name.partition(":")[2].partition("@")[0]: stage for name, stage in project.stages().items()}
    assert {name for name in stages if "train" in name} == {"train-saved", "train-tuned-saved"}
    plain, tuned = stages["train-saved"], stages["train-tuned-saved"]
    for stage in (plain, tuned):
        assert [Path(out).name for out in stage["outs"]] == ["rounds.parquet", "weights.safetensors"]
    (select,) = [stage for stage in stages.values() if stage["cmd"].startswith("pfl stage select ")]
    id_ = select["cmd"].split()[3]
    assert select["outs"] == [selection_path(id_)] == tuned["deps"][-1:] and len(select["deps"]) == 2
    assert selection_path(id_) in stages["evaluate-a"]["deps"] and selection_path(id_) not in plain["deps"]
    assert read_record(tmp_path / RECORDS, id_)["rounds"] == 6


def test_the_root_file(project, tmp_path):
    root = yaml.safe_load((project.root / "dvc.yaml").read_text(encoding="utf-8"))
    deps = ["specs", "pyproject.toml", "stages/tables", "stages/code.yaml"]
    assert root["stages"]["guard"] == {"cmd": "pfl stage guard", "deps": deps, "outs": [GUARD]}
    assert root["stages"]["index"]["cmd"].startswith("pfl stage index tiny hostile --seal ")
    forms = {"params": "specs/{}.yaml", "metrics": "reports/{}/metrics", "plots": "reports/{}/figures/curves.png"}
    for key, form in forms.items():
        assert root[key] == [form.format(name) for name in ("tiny", "hostile")]
    smoke = project.compiled("smoke")  # in a workspace of its own, without a guard
    assert set(yaml.safe_load(smoke.files["dvc.yaml"])["stages"]) == {"index"}
    other = make_project(tmp_path, {})  # without specs, with code that lies in the workspace
    (tmp_path / "pflcore").mkdir()
    other.compile()
    assert {name: stage["deps"] for name, stage in other.stages().items()} == {"dvc.yaml:guard": ["specs", "pflcore"]}
    other.write("pyproject.toml", "[tool.pfl]\nwatch_upgrades = true\n")  # of code elsewhere, at every `dvc repro`
    other.compile()
    assert other.stages()["dvc.yaml:guard"]["always_changed"]
    for name in ("12e45678", "00000008", "0e123456", "-.5E+3", "0o17", "0123abcd"):  # DVC reads YAML 1.2, others 1.1
        text = to_yaml({name: Line({"a": name})})
        assert YAML(typ="safe", pure=True).load(text) == yaml.safe_load(text) == {name: {"a": name}}


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_same_bytes_whatever_the_folder_the_locale_and_the_order_of_files(project, tmp_path):
    other = make_project(tmp_path / "other folder", dict(reversed(several().items())), default=["tiny", "hostile"])
    done = other.call("pfl", "compile", cwd="specs/paper", PYTHONHASHSEED="1", LC_ALL="C", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert other.generated() == project.generated()


def test_an_added_value_renames_nothing_and_a_caption_changes_a_report(tiny):
    before = tiny.stages()
    tiny.write("specs/tiny.yaml", spec(THREE))
    changes = tiny.compile()
    assert changes.summary == "1 run and 1 code digest added, 1 report changed" and not changes.stale
    stages = tiny.stages()
    (added,) = stages.keys() - before.keys()
    assert "train@local-" in added and before.keys() < stages.keys()
    code = (tiny.root / CODE).read_text(encoding="utf-8")
    digest = next(line for line in code.splitlines() if "fedper" in line)
    tiny.write(CODE, code.replace(digest, "  fedper: '012345678901'"))  # an edited method
    (changed,) = [name for name, stage in tiny.stages().items() if stage != stages[name]]
    assert "train@fedper-" in changed
    tiny.write("specs/tiny.yaml", spec(THREE, title="Other"))
    tiny.compile()
    assert [name for name, stage in tiny.stages().items() if stage != stages[name]] == ["stages/dvc.yaml:tiny"]


def test_a_removed_spec_takes_its_files_and_locks_along_but_for_shared_runs(project, tmp_path):
    copy = make_project(tmp_path, {**several(), "specs/more.yaml": spec("[fedavg, local]", partition="dirichlet")})
    copy.write("pyproject.toml", (project.root / "pyproject.toml").read_bytes())
    copy.compile()
    locks = [path.with_name("dvc.lock") for path in (copy.root / "dvc.yaml", *copy.root.glob("stages/**/dvc.yaml"))]
    user_files = [copy.write(name, "mine") for name in ("reports/README.md", "stages/.keep")]
    for lock in locks:
        lock.write_text("stages: {}\n", encoding="utf-8")
    (copy.root / "specs/more.yaml").unlink()
    assert copy.compile().summary == "1 report removed"
    assert all(lock.exists() == lock.with_name("dvc.yaml").exists() for lock in locks)
    assert all(map(Path.exists, user_files))
    for path in (*(lock for lock in locks if lock.exists()), user_files[-1]):
        path.unlink()
    assert copy.generated() == project.generated()


def test_a_run_is_made_by_one_stage_also_while_another_spec_is_broken(tmp_path):
    project = make_project(tmp_path, {"specs/tiny.yaml": spec(), "specs/more.yaml": spec(partition="dirichlet")})
    project.compile()
    project.write("specs/more.yaml", "gird: {}\n")
    workspace, ledger = project.workspace(), Ledger(project.root)
    compilation = compile_workspace(workspace, required=())
    runs = compilation.runs.values()
    ledger.write("tiny", [Entry(run, compilation.made_by[run.id], "2026-11-22", None, KEPT, {}) for run in runs], {})
    for kind in ("recall", "train"):
        write(workspace, compile_workspace(workspace, required=()))
        outs = [(out, stage["cmd"]) for stage in project.stages().values() for out in stage["outs"]]
        for run in compilation.runs:
            ((_, command),) = [pair for pair in outs if pair[0] == run_path(run, "rounds.parquet")]
            assert command.split()[2] == kind
        ledger.drop(compilation.runs)
    assert sum("/runs/" in out for out, _ in outs) == 4, "those of the broken spec stay"


def test_a_name_that_dvc_or_a_report_would_trip_over_is_one_line_and_nothing_is_written(tmp_path):
    for name, message in {
        "data/a": "a folder of specs cannot be called 'data'",
        "dvc": "DVC would read this file as its own",
        "tiny/a/b": "its report would lie inside that of specs/tiny.yaml",
    }.items():
        project = make_project(tmp_path / name, {"specs/tiny.yaml": spec(), f"specs/{name}.yaml": spec("[local]")})
        before = tree(project.root)
        assert line_of(project.compile).startswith(f"specs/{name}.yaml: {message}") and tree(project.root) == before


def test_only_what_differs_is_written(tiny, monkeypatch):
    def stats():
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tiny.root.rglob("stages/**/*")}

    before, right = stats(), tiny.generated()
    assert not tiny.compile() and stats() == before
    records = json.loads(right[RECORDS])
    run = next(id_ for id_, record in records.items() if "method" in record)
    tiny.write("stages/tables/tiny.json", "edited by hand")
    tiny.write(RECORDS, json.dumps(records | {run: records[run] | {"seed": 7}, "gone": records[run]}))
    tiny.write("stages/left/over.yaml", "x: 1\n")
    summary = "1 run and 1 report changed, 1 run removed"
    changes = compare(tiny.workspace(), tiny.compiled())
    assert list(changes.written) == [RECORDS, "stages/tables/tiny.json"] and changes.summary == summary
    assert changes.stale == ["stages/left/over.yaml"] and (tiny.root / "stages/left/over.yaml").exists()
    assert write(tiny.workspace(), tiny.compiled()) == changes
    assert tiny.generated() == right and not (tiny.root / "stages/left").exists()
    original = generated.write_text

    def stop_at_the_root_file(path, text):
        if path == tiny.root / "dvc.yaml":
            raise KeyboardInterrupt
        original(path, text)

    tiny.write("dvc.yaml", "stages: {}\n")
    (tiny.root / CODE).unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(generated, "write_text", stop_at_the_root_file)
        tiny.compile()
    done = tiny.compile()  # the root file is the last
    assert (list(done.written), done.summary) == (["dvc.yaml"], "1 stage file changed")
