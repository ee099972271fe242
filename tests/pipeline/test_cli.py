"""The command line: what each command prints and exits with, and that mistakes end in one line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from support.project import BIN, VIT, Project, make_project, spec, tree
from support.report_demo import write_run

from pflcore.methods import METHODS
from pflcore.registry import KINDS, registry_of
from pflcore.settings import Evaluation, Training
from pipeline import cli
from pipeline.compile import compiler
from pipeline.compile.compiler import compile_workspace


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Pfl = Callable[..., Outcome]


@pytest.fixture
def pfl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Pfl:
    """Calls `pfl` in this process, in a folder below `tmp_path`."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / ".dvc/tmp/site"))

    def call(*arguments: str, cwd: str = ".") -> Outcome:
        monkeypatch.chdir(tmp_path / cwd)
        monkeypatch.setattr(sys, "argv", ["pfl", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capfd.readouterr()
        return Outcome(int(end.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, default=["tiny"])


def refused(outcome: Outcome) -> str:
    """The one line that a mistake ends in."""
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith("pfl: ")
    return line.removeprefix("pfl: ")


def test_validate(project: Project, pfl: Pfl) -> None:
    before = tree(project.root)
    for arguments in ([], ["tiny"], ["specs/tiny.yaml"]):
        assert pfl("validate", *arguments) == Outcome(0, "1 spec is valid: 2 run slots, 2 runs\n", "")
    assert pfl("validate", cwd="specs").code == 0
    after = tree(project.root)
    assert after.pop(".pfl/fit.json") and after == before  # what this machine has found to go together


def test_caches_that_cannot_be_kept_are_done_without(project: Project, pfl: Pfl) -> None:
    shutil.rmtree(project.root / ".pfl")
    (project.root / ".pfl").touch()
    assert pfl("validate") == Outcome(0, "1 spec is valid: 2 run slots, 2 runs\n", "")


def test_a_file_that_cannot_be_written_is_one_line(project: Project, pfl: Pfl) -> None:
    (project.root / "dvc.yaml").mkdir()
    done = pfl("compile")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"pfl: {project.root / 'dvc.yaml'}: Is a directory\n"


def test_compile_and_check(project: Project, pfl: Pfl) -> None:
    stale = pfl("compile", "--check")
    assert (stale.code, stale.out) == (1, "")
    assert stale.err == ("stages are stale (2 runs and 1 report and 10 code digests added); run `pfl compile`\n")
    assert project.generated() == {}
    assert pfl("compile").out == "2 runs: 2 runs and 1 report and 10 code digests added\n"
    assert pfl("compile", "--check") == Outcome(0, "2 runs: stages are up to date\n", "")
    assert pfl("compile").out == "2 runs: nothing changed\n"
    project.write("specs/tiny.yaml", spec("[fedavg]"))
    assert pfl("compile", "--check").code == 1


def test_plan(project: Project, pfl: Pfl) -> None:
    project.write("specs/more.yaml", spec("[fedavg, local]"))
    lines = pfl("plan", "--all").out.splitlines()
    assert re.match(r"3 of 3 runs are new \(time unknown\); \d+ kB of artifacts$", lines[0])
    rows = [re.split(r"  +", line)[:4] for line in lines[2:6]]
    assert [row[0] for row in rows] == ["spec", "more", "tiny", "all, each run once"]
    assert [row[1:] for row in rows[1:]] == [["2", "2", "unknown"], ["2", "2", "unknown"], ["3", "3", "unknown"]]
    # guard, index, data, partition and its page; train and evaluate of three runs; two reports
    assert lines[7].startswith("12 stages; 4 runs if specs shared none; ")
    assert pfl("plan", "more", "--profile", "smoke").out.startswith("2 of 2 runs are new ")
    assert not (project.root / "build").exists() and project.generated() == {}


@pytest.mark.parametrize("kind", KINDS)
def test_list_entries(project: Project, pfl: Pfl, kind: str) -> None:
    listed = pfl("list", KINDS[kind][0].removeprefix("pflcore."))
    assert (listed.code, listed.err) == (0, "")
    rows = listed.out.partition("\n\n")[0].splitlines()
    assert [row.split()[0] for row in rows] == ["name", *sorted(registry_of(kind).names())]  # a line each
    assert max(map(len, rows)) > 160  # as wide as the terminal is said to be


def test_adding_and_dropping(project: Project, pfl: Pfl) -> None:
    project.write("pyproject.toml", "[tool.pfl]\ndefault = ['tiny']\ncompile = []\n")
    project.write("specs/paper/base.yaml", "abstract: true\n")
    for name, method in {"one": "local", "two": "ditto"}.items():
        project.write(f"specs/paper/{name}.yaml", spec(f"[{method}]"))
    pfl("compile")
    before = project.generated()
    assert pfl("add", "paper").out.startswith("3 specs, 4 runs: 2 runs and 2 reports")
    assert refused(pfl("add", "paper/base")) == "paper/base: only to be extended; add a spec that extends it"
    assert pfl("drop", "specs/paper/two.yaml").out.startswith("2 specs, 3 runs: ")
    assert refused(pfl("drop", "paper/two")) == "paper/two: it has not been added here; there is nothing to drop"
    # What is broken can be dropped, and nothing can be added beside it.
    project.write("specs/paper/one.yaml", "gird: {}\n")
    added = tree(project.root)
    assert refused(pfl("add", "paper/two")).startswith("specs/paper/one.yaml:1: gird")
    assert tree(project.root) == added
    assert pfl("drop", "--all").code == 0
    assert project.generated() == before


def test_list_specs(project: Project, pfl: Pfl) -> None:
    project.write("specs/paper/base.yaml", "abstract: true\n")
    project.write("specs/odd.yaml", spec(title='"[/] [bold]brackets[/bold] [a]"'))
    heading, *lines = pfl("list", "specs").out.splitlines()
    assert heading.split() == ["spec", "title", "paper"]
    assert [re.split("  +", line.strip()) for line in lines] == [
        ["odd", "[/] [bold]brackets[/bold] [a]"],
        ["paper/base", "(to be extended)"],
        ["tiny", "Tiny"],
    ]


DESCRIBED = [(kind, name) for kind in KINDS for name in registry_of(kind).names()]
FEW = ("digits", "dirichlet", "tiny_vit", "fedavg", "ditto", "rollout")


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*one, marks=() if one[1] in FEW else pytest.mark.matrix) for one in DESCRIBED],
)
def test_describe(project: Project, pfl: Pfl, kind: str, name: str) -> None:
    described = pfl("describe", kind, name)
    assert (described.code, described.err) == (0, "")
    assert described.out.startswith(f"{name} · {kind} · ")
    entry = registry_of(kind).get(name)
    assert (entry.__doc__ or "").splitlines()[0] in described.out
    assert all(field.name in described.out for field in fields(entry))
    assert described.out in pfl("describe", name).out


@pytest.mark.parametrize("cls", [Training, Evaluation])
def test_describe_settings(project: Project, pfl: Pfl, cls: type) -> None:
    described = pfl("describe", cls.__name__.lower())
    assert (described.code, described.err) == (0, "")
    assert all(field.name in described.out for field in fields(cls))


def test_schema(project: Project, pfl: Pfl) -> None:
    schema = json.loads(pfl("schema").out)
    assert {"grid", "table", "title"} <= set(schema["properties"])
    assert set(METHODS.names()) <= {name.removeprefix("method_") for name in schema["$defs"]}


def test_version(tmp_path: Path, pfl: Pfl) -> None:
    installed = tomllib.loads((Path(cli.__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert pfl("--version") == Outcome(0, f"pfl {installed['project']['version']}\n", "")


def test_a_shell_completes_commands(project: Project) -> None:
    done = project.call("pfl", _PFL_COMPLETE="complete_bash", COMP_WORDS="pfl va", COMP_CWORD="1")
    assert (done.stdout.split(), done.stderr) == (["validate"], "")


@pytest.mark.matrix
def test_run(project: Project, pfl: Pfl) -> None:
    project.write("specs/tiny.yaml", spec("[fedavg]"))
    done = pfl("run", cwd="specs")
    assert done.code == 0, done.err
    report = (project.root / "reports/tiny/report.md").read_text(encoding="utf-8")
    assert report.partition("\n## ")[0].strip() in done.out
    assert (project.root / "reports/index.md").is_file()
    again = pfl("run", "tiny")
    assert again.code == 0 and "Running stage" not in again.out
    assert pfl("plan").out.startswith("0 of 1 runs are new; ")


@pytest.mark.matrix
def test_run_smoke_leaves_the_rest_alone(project: Project, pfl: Pfl) -> None:
    project.write("specs/tiny.yaml", spec("[fedavg]"))
    project.write("specs/broken.yaml", "grid: {}\n")
    before = {name: text for name, text in tree(project.root).items() if not name.startswith(".pfl/")}
    done = pfl("run", "--profile", "smoke", "tiny")
    assert done.code == 0, done.err
    assert "SMOKE PROFILE" in done.out and "build/smoke/reports/tiny/report.md" in done.out
    after = tree(project.root)
    assert {name: after[name] for name in before} == before
    new = {name for name in after if name not in before and not name.startswith((".pfl/", ".dvc/tmp/"))}
    assert all(name.startswith("build/smoke/") for name in new)


def test_setup_without_git(tmp_path: Path, pfl: Pfl) -> None:
    (tmp_path / "specs").mkdir()
    for _ in range(2):
        assert pfl("setup") == Outcome(0, "", "")
    assert "no_scm = True" in (tmp_path / ".dvc/config").read_text(encoding="utf-8")
    assert "/.pfl/" in (tmp_path / ".dvcignore").read_text(encoding="utf-8").splitlines()
    assert Project(tmp_path).call("dvc", "status").returncode == 0


@pytest.mark.matrix
def test_setup_with_git_and_then_without(tmp_path: Path, pfl: Pfl) -> None:
    if not shutil.which("git"):
        pytest.skip("no git here")
    (tmp_path / "specs").mkdir()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert pfl("setup").code == 0
    assert "no_scm" not in (tmp_path / ".dvc/config").read_text(encoding="utf-8")
    assert Project(tmp_path).call("dvc", "status").returncode == 0
    shutil.rmtree(tmp_path / ".git")  # as in an archive of the tree
    assert Project(tmp_path).call("dvc", "status").returncode != 0
    assert pfl("setup").code == 0
    assert Project(tmp_path).call("dvc", "status").returncode == 0


WRONG: list[tuple[list[str], str]] = [
    (["validate", "tinny"], "unknown spec 'tinny'; did you mean 'tiny'?"),
    (["run", "../tiny"], "unknown spec '../tiny'; did you mean 'tiny'?"),
    (["run", "base"], "specs/base.yaml: abstract; name a spec that extends it"),
    (["add", "base"], "base: only to be extended; add a spec that extends it"),
    (["drop", "tiny"], "tiny: pyproject.toml names it; there is nothing to drop"),
    (["run", "--profile", "smok"], "unknown profile 'smok'; did you mean 'smoke'?"),
    (["list", "methds"], "cannot list 'methds'; did you mean 'methods'?"),
    (["describe", "fedpt"], "nothing is called 'fedpt'; did you mean 'fedtp'?"),
    (["describe", "dirichlet", "--set", "alfa=1"], "dirichlet.alfa: unknown option; did you mean 'alpha'?"),
    (["describe", "dirichlet", "--set", "alpha=-1"], "dirichlet.alpha: -1 must be greater than 0"),
    (["describe", "dirichlet", "--set", "alpha=[1"], "--set 'alpha=[1': the value is not YAML"),
    (["describe", "dirichlet", "--dataset", "cifar"], "unknown dataset 'cifar'; did you mean 'cifar10'?"),
    (["describe", "digits5", "--set", "source=1"], "digits5.source = 1 must be str"),
    (["fetch", "domanet"], "unknown dataset 'domanet'; did you mean 'domainnet'?"),
    (["describe", "pathological", "--clients", "7"], "pathological: 7 clients with 2 classes each make 14 places"),
    (["describe", "fedtp", "--clients", "7"], "--dataset, --clients and --set draw a partition; 'fedtp' is none"),
    (
        ["describe", "methd", "fedtp"],
        "describe takes a name, or a kind (dataset, partition, backbone, method, analysis) and a",
    ),
    (["stage", "train", "nothing"], "stages/records.json: no such file; run `pfl compile`"),
    (["stage", "index", "nothing"], "stages/tables/nothing.json: no such file; run `pfl compile`"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_usage_is_one_line(project: Project, pfl: Pfl, arguments: list[str], message: str) -> None:
    project.write("specs/base.yaml", "abstract: true\n")
    before = tree(project.root)
    assert refused(pfl(*arguments)).startswith(message)
    assert tree(project.root) == before


def test_outside_of_a_project(tmp_path: Path, pfl: Pfl) -> None:
    for words in ("validate", "compile", "plan", "add a", "drop --all", "list specs", "schema", "run", "setup"):
        assert refused(pfl(*words.split())).endswith("go to a study, or make one with `pfl init NAME`")
    assert tree(tmp_path) == {}


def test_nothing_to_run(tmp_path: Path, pfl: Pfl) -> None:
    (tmp_path / "specs").mkdir()
    assert refused(pfl("run")) == "nothing to run: there are no specs"


@pytest.mark.parametrize("wanted", ["soon", "-1", "nan"])
def test_variables_that_are_no_numbers(
    project: Project, pfl: Pfl, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    project.compile()
    run = next(run for run in project.compiled().runs if run.startswith("fedavg-"))
    monkeypatch.setenv("PFL_CHECKPOINT_SECONDS", wanted)
    message = refused(pfl("stage", "train", run))
    assert message == f"PFL_CHECKPOINT_SECONDS = {wanted!r} must be a number of seconds, 0 or more"


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["list"], ["stage", "train"], ["run", "--profil", "smoke"]])
def test_typos_in_commands_exit_with_2(project: Project, pfl: Pfl, arguments: list[str]) -> None:
    outcome = pfl(*arguments)
    assert outcome.code == 2
    assert "Traceback" not in outcome.out + outcome.err


MALFORMED: dict[str, tuple[str | bytes, str]] = {
    "not YAML": ("title: [a\n", "not valid YAML"),
    "not UTF-8": (b"title: caf\xe9\n", "byte 0xe9 is not UTF-8"),
    "code in YAML": ("title: !!python/object/apply:os.system ['true']\n", "is not allowed; specs are plain data"),
    "misspelt method": (spec("[fedpt]"), "unknown method 'fedpt'; did you mean 'fedtp'?"),
    "all excluded": (spec(more="  exclude: [{method: [FedAvg, FedPer]}]\n"), "excludes every run of the grid"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_spec_is_one_line_and_changes_nothing(project: Project, pfl: Pfl, name: str) -> None:
    content, message = MALFORMED[name]
    project.compile()
    for shard in [project.root, *project.root.glob("stages/**/")]:
        (shard / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n", encoding="utf-8")
    project.write("specs/tiny.yaml", spec("[local]"))
    project.write("specs/bad.yaml", content)
    before = tree(project.root)
    for command in ("compile", "validate", "run bad", "add bad", "plan bad"):
        line = refused(pfl(*command.split()))
        assert line.startswith("specs/bad.yaml:") and message in line
    assert tree(project.root) == before


def test_an_interruption_is_one_line(project: Project, pfl: Pfl, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "compile_workspace", interrupt)
    assert pfl("validate") == Outcome(130, "", "pfl: interrupted; the same command goes on from the last checkpoint\n")
    monkeypatch.setattr(compiler, "compile_workspace", compile_workspace)
    assert pfl("validate").code == 0


def test_the_program_itself(project: Project) -> None:
    """Once as users call it: from a folder inside, by its path, with an environment that is not activated."""
    done = subprocess.run(
        [BIN / "pfl", "validate", "tinny"], cwd=project.root / "specs", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pfl: unknown spec 'tinny'; did you mean 'tiny'?\n"


WITHOUT = """
import sys
from pipeline.cli import main
for line in sys.stdin.read().splitlines():
    command, _, modules = line.partition(": ")
    sys.argv = ["pfl", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
    loaded = [module for module in modules.split() if module in sys.modules]
    assert not loaded, (command, loaded)
    print("without", modules, "->", command)
"""


@pytest.mark.matrix
def test_commands_import_what_they_need(project: Project) -> None:
    text = spec("[fedavg]", rounds=100, backbone=VIT)  # measured as report_demo writes it
    text = text.replace("every: 1, window: 1, curve_every: 1", "every: 5, window: 20, curve_every: 10")
    project.write("specs/tiny.yaml", text)
    project.compile()
    (run,) = project.compiled().runs.values()
    write_run(project.root, run.id, 80.0, clients=3)
    assert project.call("pfl", "validate").returncode == 0  # which builds a model once and remembers that it could
    quick = ["--version", "compile", "compile --check", "validate", "stage guard", "schema", "status"]
    browsing = [f"list {kind}" for kind in ("specs", "partitions", "backbones", "methods", "analyses")]
    drawing = ["list datasets", "plan", "plan --profile smoke"]
    reading = [f"stage {kind} tiny" for kind in ("evaluate", "report", "index")]
    reading += ["describe iid", "describe partition tiny"]
    absent = dict.fromkeys([*quick, *browsing, "describe fedtp"], "torch matplotlib pandas pyarrow numpy")
    absent |= dict.fromkeys(drawing, "torch matplotlib pandas") | dict.fromkeys(reading, "torch")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input="\n".join(f"{command}: {modules}" for command, modules in absent.items()),
        cwd=project.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("without ")] == [
        f"without {modules} -> {command}" for command, modules in absent.items()
    ]
