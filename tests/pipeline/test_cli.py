"""The command line: what each command prints and exits with, and that mistakes end in one line."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest
from support.command import Pfl
from support.command import pfl as pfl
from support.project import BIN, Project, make_project, spec, tree
from typer.main import get_command

from pflcore.methods import METHODS
from pflcore.registry import KINDS, registry_of
from pflcore.settings import Evaluation, Training
from pipeline import cli
from pipeline.cli.commands import COMMANDS, LEDGER, app
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import write

VALID = "1 spec is valid: 2 runs, 2 if specs shared none\n"


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
    assert project.generated()["dvc.yaml"] == before["dvc.yaml"]
    assert refused(pfl(project.root, "add", "paper/base")).startswith("paper/base: abstract; add a spec")
    assert pfl(project.root, "drop", "specs/paper/two.yaml")[1].startswith("2 specs, 3 runs: ")
    assert refused(pfl(project.root, "drop", "paper/two")).startswith("paper/two: it has not been added here")
    project.write("specs/paper/one.yaml", "gird: {}\n")
    assert refused(pfl(project.root, "add", "paper/two")).startswith("specs/paper/one.yaml:1: gird")
    compilation = compile_workspace(project.workspace(), wanted=["tiny"])  # others may be broken, and stay as they were
    assert (list(compilation.skipped), list(compilation.tables)) == (["paper/one"], ["tiny"])
    write(project.workspace(), compilation)
    assert "stages/tables/paper/one.json" in project.generated()
    assert pfl(project.root, "drop", "--all")[1].startswith("1 spec, 2 runs: ") and project.generated() == before


FEW = ("digits", "dirichlet", "tiny_vit", "fedavg", "rollout")


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
        "drop --help": ["All added specs."],
        "run --help": ["After a failure, continue with everything that does not"],
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
    "run ../tiny": "unknown spec '../tiny'; did you mean 'tiny'?",
    "run base": "specs/base.yaml: abstract; name a spec that extends it",
    "drop tiny": "tiny: pyproject.toml names it; there is nothing to drop",
    "run --profile smok": "unknown profile 'smok'; did you mean 'smoke'?",
    "list methds": "cannot list 'methds'; did you mean 'methods'?",
    "describe fedpt": "nothing is called 'fedpt'; did you mean 'fedtp'?",
    "describe dirichlet --set alfa=1": "dirichlet.alfa: unknown option; did you mean 'alpha'?",
    "describe dirichlet --set alpha=-1": "dirichlet.alpha: -1 must be greater than 0",
    "describe dirichlet --set alpha=[1": "--set 'alpha=[1': the value is not YAML",
    "describe dirichlet --dataset cifar": "unknown dataset 'cifar'; did you mean 'cifar10'?",
    "describe digits5 --set source=1": "digits5.source = 1 must be str",
    "fetch domanet": "unknown dataset 'domanet'; did you mean 'domainnet'?",
    "describe pathological --clients 7": "pathological: 7 clients with 2 classes each make 14 places",
    "describe fedtp --clients 7": "--dataset, --clients and --set are for partitions, and 'fedtp' is none",
    "describe methd fedtp": "describe takes a name, or a kind (dataset, partition, backbone, method, condition, ",
    "check fedtp fedper": "check takes a name, or a kind (method, backbone) and a name; got 'fedtp fedper'",
    "check method fedtp tiny": "check takes a name, or a kind (method, backbone) and a name; got 'method fedtp tiny'",
    "stage guard a": "pfl stage guard: takes no name",
    "stage report": "pfl stage report: of what? A name is missing",
    "stage train a b": "pfl stage train: takes one name, not 2: a b",
    "stage train nothing": "stages/records.json: no such file; run `pfl compile`",
    "stage index nothing": "stages/tables/nothing.json: no such file; run `pfl compile`",
}


def test_wrong_usage_is_one_line_and_changes_nothing(project: Project, pfl: Pfl, monkeypatch) -> None:
    project.write("specs/base.yaml", "abstract: true\n")
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
    for words in ("compile", "validate", "run bad", "add bad", "plan bad"):
        assert refused(pfl(project.root, *words.split())).startswith("specs/bad.yaml:")
    assert tree(project.root) == before


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
    reading = ["list datasets", "plan", *(f"stage {kind} tiny" for kind in ("evaluate", "report", "index"))]
    for commands, modules in (
        ([*quick, "describe fedtp"], {"torch", "matplotlib", "pandas", "pyarrow", "numpy"}),
        ([*reading, "describe iid", "describe partition tiny"], {"torch"}),
    ):
        reproduced.succeed(sys.executable, "-c", WITHOUT.format(commands=commands, modules=modules))
    reproduced.succeed("bash", "-c", "rm -rf reports; pfl run >&- 2> >(exit)")
    assert "up to date" in reproduced.call("dvc", "status").stdout
