"""What a user of ``pfl`` meets beside the commands' own work: wrong usage, variants, broken specs, cleaning."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from filelock import FileLock
from support.command import Pfl
from support.command import pfl as pfl
from support.project import make_project, spec, tree

from pipeline.compile.compiler import compile_workspace
from pipeline.study.variant import write_variant

NAME = "variants/two-training.rounds-3-method.mu-0.25"
SET = ["two", "--set", "training.rounds=3", "--set", "method.mu=0.25"]
BAD, MISNAMED = "specs/bad.yaml:1: gird: unknown key; did you mean 'grid'?", "specs/Copy of tiny.yaml: the name"
REFUSED = {
    "run --sed 1": "no such option: --sed; did you mean '--seed'?",
    "rnu": "no such command 'rnu'; did you mean 'run'?",
    "run --seed x": "invalid value for '--seed': Input should be a valid integer",
    "list": "missing argument 'what': specs, datasets, ",
    "run two --set training.rouds=3": "--set training.rouds: unknown option; did you mean 'rounds'?",
    "run two --set method.muu=3": "--set method.muu: no method of two has this option; did you mean 'mu'?",
    "run two --set traning.rounds=3": "--set traning: unknown run field; did you mean 'training'?",
    "run two --set method.mu=-1": "--set method.mu: -1 must be at least 0",
    "run two --set =3": "--set '=3': must be SETTING=VALUE",
    "run two.yml": "two.yml: specs end in .yaml; rename it",
    "run two --set clients": "--set 'clients': must be SETTING=VALUE, such as training.rounds=20",
    "run two --set seed=0": "--set seed=0: changes no run of two",
    "run two --set clients=4 --dry-run": "--set writes a spec, and --dry-run writes nothing",
    "run two tiny --set clients=4": "--set makes a variant of one spec; name it",
    f"run {' '.join(SET)}": f"specs/{NAME}.yaml: has been edited; type `pfl run {NAME}`, or remove the file",
}


def test_variants_extend_a_spec_and_wrong_usage_is_one_line(tmp_path: Path, pfl: Pfl) -> None:
    project = make_project(tmp_path, default=["tiny"])
    project.write("specs/two.yaml", spec("{FedAvg: fedavg, Prox: {name: fedprox, mu: 0.5}}", title="Two"))
    path = project.root / f"specs/{NAME}.yaml"
    for _ in range(2):  # the same words are the same variant
        assert write_variant(project.workspace(), "two", SET[2::2]) == NAME
        assert "extends: ../two.yaml\ntitle: Two; training.rounds=3, method.mu=0.25\n" in path.read_text("utf-8")
    project.write("specs/two.yaml", path.parents[1].joinpath("two.yaml").read_text().replace("Two", "Two again"))
    assert write_variant(project.workspace(), "two", SET[2::2]) == NAME and "Two again;" in path.read_text("utf-8")
    assert NAME not in project.compiled().tables  # before it is run
    compilation = compile_workspace(project.workspace(), [NAME])
    runs = [run.record for run in compilation.runs.values() if run.training.rounds == 3]
    assert [(one["method"]["name"], one["method"].get("mu")) for one in runs] == [("fedavg", None), ("fedprox", 0.25)]
    path.write_text(path.read_text("utf-8").replace("0.25", "0.125"), "utf-8")
    for words, message in REFUSED.items():
        code, out, err = pfl(project.root, *words.split())
        assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"pfl: {message}"), words
    assert [*path.parent.iterdir()] == [path]
    code, out, _ = pfl(project.root)
    assert code == 2 and "Usage: pfl" in out


def test_a_broken_spec_stops_no_command_that_does_not_need_it(tmp_path: Path, pfl: Pfl) -> None:
    project = make_project(tmp_path, default=["tiny"])
    project.write("specs/bad.yaml", "gird: {}\n")
    misnamed = project.write("specs/Copy of tiny.yaml", "")
    both = [f"pfl: skipped: {MISNAMED}", f"pfl: skipped: {BAD}"]
    shown = dict.fromkeys(("run tiny --dry-run", "list specs", "report", "ledger list"), both)
    for words, expected in {**shown, "plan tiny": both[:1], "describe partition tiny": []}.items():
        code, _, err = pfl(project.root, *words.split())
        lines = err.splitlines()
        assert (code, len(lines)) == (0, len(expected)) and all(map(str.startswith, lines, expected)), words
    for message in (MISNAMED, BAD):
        for words in ("compile", "validate", "stage guard", "clean --yes"):
            code, out, err = pfl(project.root, *words.split())
            assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"pfl: {message}"), words
        misnamed.unlink(missing_ok=True)
    assert pfl(project.root, "run", "bad")[2] == f"pfl: {BAD}\n"
    assert "Tiny" in pfl(project.root, "list", "specs")[1]


def test_cleaning_removes_what_no_spec_asks_for(tmp_path: Path, pfl: Pfl, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path, default=["tiny"])
    project.write("specs/gone.yaml", spec("[fedavg, local]"))
    assert project.call("pfl", "run", "--all").returncode == 0
    own = project.write("mine/copy", next((project.root / "artifacts/tables/gone").glob("*.parquet")).read_bytes())
    assert project.call("dvc", "add", str(own)).returncode == 0
    before = tree(project.root)
    assert pfl(project.root, "clean") == (0, "nothing to remove: specs ask for all that is here\n", "")
    run = next(run.id for run in project.compiled().runs.values() if run.method == "local")
    path, state = f"artifacts/runs/{run}/rounds.parquet", f".pfl/checkpoints/{run}-01234567"
    project.write(f"{state}/round-000001.safetensors", "x")
    project.write("artifacts/mine.txt", "mine")
    (project.root / "specs/gone.yaml").unlink()
    *lines, total = pfl(project.root, "clean", "--dry-run")[1].splitlines()
    assert [line.split()[-1] for line in lines] == [state, f"artifacts/runs/{run}", "artifacts/tables/gone"]
    assert lines[0].split()[:2] == ["1", "byte"] and total.endswith("in 3 places could be removed")
    for answer, end in {"": (130, "\npfl: interrupted\n"), "n\n": (0, "")}.items():
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert pfl(project.root, "clean")[::2] == end
    marks = {"read": {str(project.root / "artifacts/data"): [{"pid": os.getppid(), "cmd": "dvc repro"}]}, "write": {}}
    project.write(".dvc/tmp/rwlock", json.dumps(marks))
    code, _, err = pfl(project.root, "clean", "--yes")
    assert (code, err.count("\n")) == (2, 1) and "is busy" in err and "dvc repro" in err
    project.write(".dvc/tmp/rwlock", "{}")
    with FileLock(project.root / ".pfl/run.lock"):
        assert "another pfl run is at work here" in pfl(project.root, "clean", "--yes")[2]
    assert (project.root / path).is_file() and pfl(project.root, "clean", "--yes")[0] == 0
    after = tree(project.root)
    kept = {one for one in before if one[:8] in ("artifact", "reports/") and "tables/gone" not in one} - {path}
    assert kept < after.keys() and all(after[name] == before[name] for name in kept) and "artifacts/mine.txt" in after
    assert not [name for name in after if name.startswith((path, state, "artifacts/tables/gone"))]
    assert before[path] not in after.values(), "DVC's cache has no copy"
    own.unlink()
    assert project.call("dvc", "checkout", f"{own}.dvc").returncode == 0 and own.is_file()
