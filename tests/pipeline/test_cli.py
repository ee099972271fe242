"""The command line: what each command prints and exits with, and that mistakes end in one line."""

import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock
from support.command import Pfl
from support.command import pfl as pfl
from support.project import BIN, Project, make_project, spec, tree
from typer.main import get_command

from pflcore.methods import METHODS
from pflcore.partitions import PARTITIONS
from pflcore.registry import KINDS, registry_of
from pflcore.settings import Evaluation, Training
from pipeline import cli
from pipeline.cli.commands import COMMANDS, LEDGER, app
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import write
from pipeline.study.variant import write_variant

VALID = "1 spec is valid: 2 runs, 2 if specs shared none\n"
NAME = "variants/two-training.rounds-3-method.mu-0.25"
SET = ["two", "--set", "training.rounds=3", "--set", "method.mu=0.25"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, default=["tiny"])


def refused(outcome: tuple[int, str, str]) -> str:
    """The one line that a mistake ends in."""
    code, out, err = outcome
    (line,) = err.splitlines()
    assert (code, out) == (2, "") and line.startswith("pfl: ")
    return line.removeprefix("pfl: ")


def test_help_has_all_commands_in_four_groups_each_with_an_example(tmp_path: Path, pfl: Pfl) -> None:
    code, out, _ = pfl(tmp_path, "--help")
    panels = re.findall(r"^╭─ (\w+) ", out, re.MULTILINE)
    assert (code, panels) == (0, ["Options", *COMMANDS]) and " stage " not in out
    for example in (*[one for commands in COMMANDS.values() for one in commands], *LEDGER):
        found, words = get_command(app), re.findall(r"'[^']*'|\S+", example)[1:]
        while words and (inner := getattr(found, "commands", {}).get(words[0])):
            found, words = inner, words[1:]
        found.make_context(example, [word.strip("'") for word in words])
        assert found.epilog == f"Example: {example}"


def test_validate_and_compile(project: Project, pfl: Pfl) -> None:
    before = tree(project.root)
    for words in ([], ["tiny"], ["specs/tiny.yaml"]):
        assert pfl(project.root, "validate", *words) == (0, VALID, "")
    after = tree(project.root)
    assert after.pop(".pfl/fit.json") and after == before  # a cache, which it can do without
    shutil.rmtree(project.root / ".pfl")
    (project.root / ".pfl").touch()
    assert pfl(project.root / "specs", "validate") == (0, VALID, "")
    (project.root / ".pfl").unlink()
    added = "2 runs and 1 report and 10 code digests added"
    assert pfl(project.root, "compile", "--check") == (1, "", f"stages are stale ({added}); run `pfl compile`\n")
    assert project.generated() == {}
    assert pfl(project.root, "compile")[1] == f"2 runs: {added}\n"
    assert pfl(project.root, "compile", "--check") == (0, "2 runs: stages are up to date\n", "")
    (project.root / "dvc.yaml").unlink()
    (project.root / "dvc.yaml").mkdir()
    assert refused(pfl(project.root, "compile")) == f"{project.root / 'dvc.yaml'}: Is a directory"


def test_adding_and_dropping(project: Project, pfl: Pfl) -> None:
    project.write("pyproject.toml", "[tool.pfl]\ndefault = ['tiny']\ncompile = []\n")
    project.write("specs/paper/base.yaml", "abstract: true\n")
    for name, method in {"one": "local", "two": "ditto"}.items():
        project.write(f"specs/paper/{name}.yaml", spec(f"[{method}]"))
    pfl(project.root, "compile")
    before = project.generated()
    assert pfl(project.root, "add", "paper")[1].startswith("3 specs, 4 runs: 2 runs and 2 reports")
    assert pfl(project.root, "add", "paper/two", "tiny")[1].startswith("3 specs, 4 runs: ")
    assert project.generated()["dvc.yaml"] == before["dvc.yaml"]
    assert refused(pfl(project.root, "add", "paper/base")).startswith("paper/base: abstract; add a spec")
    assert pfl(project.root, "drop", "specs/paper/two.yaml")[1].startswith("2 specs, 3 runs: ")
    assert refused(pfl(project.root, "drop", "paper/two")).startswith("paper/two: it has not been added here")
    project.write("specs/paper/one.yaml", "gird: {}\n")
    assert refused(pfl(project.root, "add", "paper/two")).startswith("specs/paper/one.yaml:1: gird")
    compilation = compile_workspace(
        project.workspace(), required=["tiny"]
    )  # others may be broken, and stay as they were
    assert (list(compilation.skipped), list(compilation.tables)) == (["paper/one"], ["tiny"])
    assert write(project.workspace(), compilation) and "stages/tables/paper/one.json" in project.generated()
    assert pfl(project.root, "drop", "--all")[1].startswith("1 spec, 2 runs: ") and project.generated() == before


FEW = ("digits", "tiny_vit", "fedavg", "rollout", *PARTITIONS.names())


@pytest.mark.parametrize("names", [FEW, pytest.param(None, marks=pytest.mark.matrix)], ids=["few", "all"])
def test_all_that_specs_can_name_is_listed_and_described(project: Project, pfl: Pfl, names) -> None:
    for kind, (package, _) in KINDS.items():
        rows = pfl(project.root, "list", package.removeprefix("pflcore."))[1].partition("\n\n")[0].splitlines()
        assert max(map(len, rows)) > 160  # as wide as the terminal is said to be
        assert [row.split()[0] for row in rows] == ["name", *sorted(registry_of(kind).names())]
        for name in (one for one in registry_of(kind).names() if not names or one in names):
            code, out, err = pfl(project.root, "describe", kind, name)
            entry = registry_of(kind).get(name)
            assert (code, err) == (0, "") and out.startswith(f"{name} · {kind} · ")
            assert (entry.__doc__ or "").splitlines()[0] in out and all(one.name in out for one in fields(entry))
            assert ("Drawn with generated labels" in out and "over clients" in out) == (kind == "partition")
            assert out in pfl(project.root, "describe", name)[1]


def test_settings_keys_and_specs_are_described_and_listed(project: Project, pfl: Pfl) -> None:
    project.write("specs/odd.yaml", spec(title='"[/] [bold]brackets[/bold] [a]"'))
    shown = {f"describe {cls.__name__.lower()}": [one.name for one in fields(cls)] for cls in (Training, Evaluation)}
    shown |= {
        "list metrics": ["last_ten", "step_flops"],
        "list figures": ["resources", "rollout"],
        "list specs": ["odd   [/] [bold]brackets[/bold] [a]", "tiny  Tiny"],
        "describe grid": ["overrides", "list of labels per axis"],
        "describe run": ["clients", "whole number, at least 1"],
        "describe table": ["keys of `quantity`"],
        "describe quantity": ["quantity · a part of specs\n", "percent_of", "quantity · partition · "],
    }
    for words, expected in shown.items():
        code, out, err = pfl(project.root, *words.split())
        assert (code, err) == (0, "") and all(text in out for text in expected), words
    schema = json.loads(pfl(project.root, "schema")[1])
    assert {"grid", "table", "title"} <= set(schema["properties"])
    assert set(METHODS.names()) <= {name.removeprefix("method_") for name in schema["$defs"]}
    assert pfl(project.root, "--version") == (0, f"pfl {version('pfl-pipeline')}\n", "")


WRONG = {
    "validate tinny": "unknown spec 'tinny'; did you mean 'tiny'?",
    "run base": "specs/base.yaml: abstract; name a spec that extends it",
    "drop tiny": "tiny: pyproject.toml names it; there is nothing to drop",
    "run --profile smok": "unknown profile 'smok'; did you mean 'smoke'?",
    "list methds": "cannot list 'methds'; did you mean 'methods'?",
    "describe fedpt": "nothing is called 'fedpt'; did you mean 'fedtp'?",
    "describe dirichlet --set alfa=1": "dirichlet.alfa: unknown option; did you mean 'alpha'?",
    "describe dirichlet --set alpha=-1": "dirichlet.alpha: -1 must be greater than 0",
    "describe dirichlet --set alpha=[1": "--set 'alpha=[1': the value is not YAML",
    "describe digits5 --set source=1": "digits5.source = 1 must be str",
    "fetch domanet": "unknown dataset 'domanet'; did you mean 'domainnet'?",
    "describe pathological --clients 7": "pathological: 7 clients with 2 classes each make 14 places",
    "describe fedtp --clients 7": "--dataset, --clients and --set are for partitions (--set also for datasets)",
    "describe methd fedtp": "describe takes a name, or a kind (dataset, partition, backbone, method, condition, ",
    "check fedtp fedper": "check takes a name, or a kind (method, backbone) and a name; got 'fedtp fedper'",
    "stage guard a": "pfl stage guard: takes no name",
    "stage train a b": "pfl stage train: takes one name",
    "stage train nothing": "stages/records.json: no such file; run `pfl compile`",
    "run --sed 1": "no such option: --sed; did you mean '--seed'?",
    "rnu": "no such command 'rnu'; did you mean 'run'?",
    "run --seed x": "invalid value for '--seed': Input should be a valid integer",
    "list": "missing argument 'what': specs, datasets, ",
    "run two --set training.rouds=3": "--set training.rouds: unknown option; did you mean 'rounds'?",
    "run two --set method.muu=3": "--set method.muu: no method of two has this option; did you mean 'mu'?",
    "run two --set traning.rounds=3": "--set traning: unknown run field; did you mean 'training'?",
    "run two --set method.mu=-1": "--set method.mu: -1 must be at least 0",
    "run two --set clients": "--set 'clients': must be SETTING=VALUE, such as training.rounds=20",
    "run two --set seed=0": "--set seed=0: changes no run of two",
    "run two --set clients=4 --dry-run": "--set writes a spec, and --dry-run writes nothing",
    "run two tiny --set clients=4": "--set makes a variant of one spec; name it",
    f"run {' '.join(SET)}": f"specs/{NAME}.yaml: has been edited; type `pfl run {NAME}`, or remove the file",
}


@pytest.fixture
def variant(project: Project) -> Path:
    """The file of a variant, beside the spec `two` that it extends."""
    project.write("specs/two.yaml", spec("{FedAvg: fedavg, Prox: {name: fedprox, mu: 0.5}}", title="Two"))
    assert write_variant(project.workspace(), "two", SET[2::2]) == NAME
    return project.root / f"specs/{NAME}.yaml"


def test_variants_extend_a_spec(project: Project, variant: Path) -> None:
    for title in ("Two", "Two again"):  # the same words are the same variant
        project.write("specs/two.yaml", (project.root / "specs/two.yaml").read_text().replace("Two", title))
        assert write_variant(project.workspace(), "two", SET[2::2]) == NAME
        stated = f"extends: ../two.yaml\ntitle: {title}; training.rounds=3, method.mu=0.25\n"
        assert stated in variant.read_text("utf-8")
    assert NAME not in project.compiled().tables  # before it is run
    compilation = compile_workspace(project.workspace(), [NAME])
    runs = [run.record for run in compilation.runs.values() if run.training.rounds == 3]
    assert [(one["method"]["name"], one["method"].get("mu")) for one in runs] == [("fedavg", None), ("fedprox", 0.25)]


def test_wrong_usage_is_one_line_and_changes_nothing(project: Project, variant: Path, pfl: Pfl, monkeypatch) -> None:
    project.write("specs/base.yaml", "abstract: true\n")
    variant.write_text(variant.read_text("utf-8").replace("0.25", "0.125"), "utf-8")
    before = tree(project.root)
    for words, message in WRONG.items():
        assert refused(pfl(project.root, *words.split())).startswith(message), words
    assert tree(project.root) == before
    project.compile()
    run = next(iter(project.compiled().runs))
    monkeypatch.setenv("PFL_CHECKPOINT_SECONDS", "soon")
    line = refused(pfl(project.root, "stage", "train", run))
    assert line == "PFL_CHECKPOINT_SECONDS = 'soon' must be a number of seconds, 0 or more"
    project.write("specs/tiny.yaml", spec("[local]"))
    project.write("specs/bad.yaml", b"title: caf\xe9\n")
    before = tree(project.root)
    for words in ("compile", "add bad", "plan bad"):
        assert refused(pfl(project.root, *words.split())).startswith("specs/bad.yaml:")
    assert tree(project.root) == before
    code, out, _ = pfl(project.root)
    assert code == 2 and "Usage: pfl" in out


def test_a_broken_spec_stops_no_command_that_does_not_need_it(project: Project, pfl: Pfl) -> None:
    bad, misnamed = "specs/bad.yaml:1: gird: unknown key; did you mean 'grid'?", "specs/Copy of tiny.yaml: the name"
    project.write("specs/bad.yaml", "gird: {}\n")
    copy = project.write("specs/Copy of tiny.yaml", "")
    both = [f"pfl: skipped: {misnamed}", f"pfl: skipped: {bad}"]
    shown = dict.fromkeys(("run tiny --dry-run", "list specs", "report", "ledger list"), both)
    for words, expected in {**shown, "plan tiny": both[:1], "describe partition tiny": []}.items():
        code, _, err = pfl(project.root, *words.split())
        lines = err.splitlines()
        assert (code, len(lines)) == (0, len(expected)) and all(map(str.startswith, lines, expected)), words
    for message in (misnamed, bad):
        for words in ("compile", "validate", "stage guard", "clean --yes"):
            assert refused(pfl(project.root, *words.split())).startswith(message), words
        copy.unlink(missing_ok=True)
    assert refused(pfl(project.root, "run", "bad")) == bad
    assert "Tiny" in pfl(project.root, "list", "specs")[1]


def test_outside_of_a_project_without_specs_and_where_git_has_gone(tmp_path: Path, pfl: Pfl) -> None:
    for words in ("validate", "compile", "plan", "add a", "drop --all", "list specs", "schema", "run", "setup"):
        assert refused(pfl(tmp_path, *words.split())).endswith("go to a study, or make one with `pfl init NAME`")
    assert tree(tmp_path) == {}
    (tmp_path / "specs").mkdir()
    assert refused(pfl(tmp_path, "run")) == "nothing to run: there are no specs"
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert pfl(tmp_path, "setup") == (0, "", "")
    shutil.rmtree(tmp_path / ".git")  # as in an archive of the tree
    assert pfl(tmp_path, "setup") == (0, "", "") and Project(tmp_path).call("dvc", "status").returncode == 0
    assert "/.pfl/" in (tmp_path / ".dvcignore").read_text(encoding="utf-8").splitlines()


def test_an_interruption_and_a_broken_database_are_one_line(project: Project, pfl: Pfl, monkeypatch) -> None:
    def fail(error: BaseException) -> None:
        raise error

    monkeypatch.setattr("pipeline.cli.run.compile_workspace", lambda *_: fail(KeyboardInterrupt()))
    line = "pfl: interrupted; the same command continues from the last checkpoint\n"
    assert pfl(project.root, "validate") == (130, "", line)
    monkeypatch.setattr(cli.commands, "app", lambda **_: fail(sqlite3.OperationalError("disk I/O error")))
    assert refused(pfl(project.root)) == "DVC's own database of files: disk I/O error; is the disk full?"


def test_stdout_closed_full_or_ascii(project: Project) -> None:
    """Once as users call it: from a folder inside, by its path, with an environment that is not activated."""
    words = [BIN / "pfl", "validate", "tinny"]
    done = subprocess.run(words, cwd=project.root / "specs", capture_output=True, text=True, check=False)
    line = "pfl: unknown spec 'tinny'; did you mean 'tiny'?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)

    def shell(command: str, **variables: str) -> tuple[int, str, str]:
        done = project.call("bash", "-c", command, **variables)
        return done.returncode, done.stdout, done.stderr

    completing = {"_PFL_COMPLETE": "complete_bash", "COMP_WORDS": "pfl va", "COMP_CWORD": "1"}
    assert [one.strip() for one in shell("pfl", **completing)[1:]] == ["validate", ""]
    assert shell("pfl describe fedtp | true; exit ${PIPESTATUS[0]}") == (0, "", "")
    assert shell("pfl list methods >&-; pfl list nonsense >&- 2>&-") == (2, "", "")
    code, shown, _ = shell("pfl describe fedtp", PYTHONIOENCODING="ascii")
    assert code == 0 and shown.isascii() and "server_momentum" in shown
    if Path("/dev/full").exists():
        assert shell("pfl list methods > /dev/full") == (2, "", "pfl: standard output: No space left on device\n")


def test_cleaning_removes_what_no_spec_asks_for(project: Project, pfl: Pfl, monkeypatch) -> None:
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


WITHOUT = """
import sys
from pipeline.cli import main
for command in {commands}:
    sys.argv = ["pfl", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
assert not {modules} & sys.modules.keys()
"""


@pytest.mark.matrix
def test_commands_import_what_they_need_and_a_run_needs_no_output(reproduced: Project) -> None:
    reproduced.succeed("pfl", "validate")  # which builds a model once and remembers that it could
    quick = ["--version", "compile", "validate", "stage guard", "schema", "status", "list specs", "list methods"]
    stages = (one for one in reproduced.compiled().stages if one.kind in ("data", "evaluate", "report", "index"))
    reading = ["list datasets", "plan", *(one.command.removeprefix("pfl ") for one in stages)]
    for commands, modules in (
        ([*quick, "describe fedtp"], {"torch", "matplotlib", "pandas", "pyarrow", "numpy"}),
        ([*reading, "describe iid", "describe partition tiny"], {"torch"}),
    ):
        reproduced.succeed(sys.executable, "-c", WITHOUT.format(commands=commands, modules=modules))
    reproduced.succeed("bash", "-c", "rm -rf reports; pfl run >&- 2> >(exit)")
    assert "up to date" in reproduced.call("dvc", "status").stdout
