"""`pfl init`, `pfl new`, `pfl check`: a study is complete, its parts pass, mistakes are found; the pages on them."""

import errno
import fcntl
import json
import re
import subprocess
import textwrap
import tomllib

import pytest
import yaml
from support.command import pfl as pfl
from support.markdown import ROOT
from support.mistakes import line_of, refuses
from support.own_parts import BACKBONE, METHOD, SCALING, own_parts
from support.project import Project, make_project, tree
from support.tiers import few_of
from support.tiny import CLASSES, SHAPE
from support.tutorial import check, follow

from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.errors import UserError
from pflcore.partitions import PARTITIONS, partition
from pflcore.registry import registry_of, use_study
from pipeline.browse.listing import describe, list_kind
from pipeline.cli.common import console
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.generated import compare
from pipeline.spec.catalog import load_catalog
from pipeline.spec.editor_schema import json_schema
from pipeline.spec.resolve import resolve
from pipeline.spec.specs import find_specs, load_spec
from pipeline.study import begin as creating
from pipeline.study.begin import FIRST, SCHEMA, TEMPLATES, create_part, create_study, paper_files, paper_specs
from pipeline.study.check import TESTS, check_training
from pipeline.workspace import Workspace


@pytest.fixture(autouse=True)
def study(tmp_path, monkeypatch):
    project = Project(tmp_path)
    project.enter(monkeypatch)
    yield project
    use_study(tmp_path / "nowhere")


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_new_study_is_complete_and_git_takes_nothing_of_dvcs_own(study, tmp_path):
    git(tmp_path, "init", "-q")
    study.write(".gitignore", "*.yaml\n*.lock\n*.toml\ndata/\nstages\ndatasets/\n")  # which the study's own overrides
    folder = tmp_path / "studies/mine"
    assert create_study(folder) == ["first"]
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    assert settings["tool"]["pfl"] == {"default": ["first"], "compile": [], "watch_upgrades": True}
    workspace = Workspace.find(folder / "specs")
    assert workspace.home == folder and not compare(workspace, compile_workspace(workspace))
    assert "no_scm" not in (folder / ".dvc/config").read_text()
    checks = yaml.safe_load((folder / ".github/workflows/study.yml").read_text())
    assert {"run": "pfl run --profile smoke"}.items() <= checks["jobs"]["specs"]["steps"][-1].items()
    ignored = ".dvc/cache/files/md5/aa/b .dvc/tmp/lock .dvc/config.local artifacts/a reports/a data/x/1.png"
    for name in (*ignored.split(), "data/x.dvc", "datasets/x.py", "dvc.lock", "stages/dvc.lock"):
        study.write(f"studies/mine/{name}", "")
    added = {line.split("'")[1] for line in git(folder, "add", "-An", ".").splitlines()}
    added = {name.removeprefix("studies/mine/") for name in added}
    assert {"specs/first.yaml", "dvc.yaml", ".dvc/config", "pyproject.toml", "data/x.dvc"} <= added
    assert {"dvc.lock", "stages/dvc.lock", "stages/dvc.yaml", "datasets/x.py"} <= added and "data/x/1.png" not in added
    assert [name for name in added if name.startswith((".pfl", "artifacts", "reports", ".dvc/"))] == [".dvc/config"]


def test_a_papers_table_has_the_runs_and_published_values_of_the_paper(tmp_path):
    folder = tmp_path / "mine"
    assert create_study(folder, "fedtp/table2") == ["fedtp/table2"]
    assert not (folder / "specs/fedtp/table3.yaml").exists()
    compilation, catalog = compile_workspace(Workspace.find(folder)), load_catalog(folder)
    resolved = resolve(load_spec(find_specs(paper_specs())["fedtp/table2"], paper_specs(), catalog), catalog)
    assert {run.id for run in resolved.runs} == set(compilation.runs)
    published = [cell.published for cell in resolved.table.cells]
    assert [cell.published for cell in compilation.tables["fedtp/table2"].cells] == published and any(published)
    # Editors find the schema.
    ((schema, pattern),) = json.loads((folder / ".vscode/settings.json").read_text())["yaml.schemas"].items()
    assert "grid" in json.loads((folder / schema).read_text())["properties"]
    path = folder / "specs/fedtp/table2.yaml"
    first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / first).resolve() == (folder / schema).resolve() and path in folder.glob(pattern)


@pytest.mark.matrix
@pytest.mark.parametrize("paper", ["fedtp", "fedperfix", "pfedla", "fedofa"])
def test_all_of_a_paper_can_be_taken(paper, tmp_path):
    names, files = paper_files(paper)
    project = make_project(tmp_path, {f"specs/{name}": text for name, text in files.items()})
    assert sorted(project.compiled().tables) == names and len(names) > 5


def test_where_a_study_cannot_be_is_one_line_and_nothing_is_left(study, tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    for name in (".gitignore", "mine/notes", "file"):
        study.write(name, "ignored/\n")
    for folder, source, line in [
        ("ignored/mine", None, r"mine: git ignores this folder, by \S*\.gitignore:1:ignored/; take the rule"),
        ("data{v2}/mine", None, r"mine: DVC fails where a path has braces"),
        ("mine", None, "exists and is not an empty folder"),
        ("file", None, "exists and is not an empty folder"),
        ("new", "fedtp/table22", "unknown spec 'fedtp/table22'; did you mean 'fedtp/table2'"),
        ("new", "fedtp/base", "fedtp/base: abstract"),
    ]:
        refuses(line, create_study, tmp_path / folder, source)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/.git").write_text("gitdir: nowhere")
    assert "broken/new: not a git repository: " in line_of(create_study, tmp_path / "broken/new")  # git's own reason
    (tmp_path / "broken/.git").unlink()
    (tmp_path / "broken").rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")))
        with pytest.raises(OSError, match=r"No locks available: '.*/new/\.dvcignore'"):
            create_study(tmp_path / "new")
    monkeypatch.setattr(creating, "compile_workspace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        create_study(tmp_path / "new")
    left = [name for name in tree(tmp_path) if not name.startswith((".git/", ".dvc/"))]
    assert left == [".gitignore", "file", "mine/notes"]


def test_folders_that_are_called_specs_are_not_all_studies(tmp_path):
    deep = tmp_path / "below/deep"
    for folder in (deep, tmp_path / "specs"):
        folder.mkdir(parents=True)
    assert Workspace.find(tmp_path).root == tmp_path
    assert "neither here nor above" in line_of(Workspace.find, deep)
    (tmp_path / ".pfl").mkdir()
    assert Workspace.find(deep).root == tmp_path
    (tmp_path / "below/pyproject.toml").write_text("[tool.pfl]\n")
    assert Workspace.find(deep).root == tmp_path / "below"


def test_the_page_on_studies_shows_what_there_is(tmp_path):
    page = (ROOT / "docs/studies.md").read_text(encoding="utf-8")

    def indented(start):
        """The indented block of the page that begins so."""
        blocks = re.findall(r"(?:^ {4}.*\n|^\n)+", page, re.MULTILINE)
        (block,) = (text for text in blocks if text.strip().startswith(start))
        return textwrap.dedent(block).strip()

    study = make_project(tmp_path / "study", {"specs/first.yaml": FIRST})
    ((name, text),) = re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL)
    study.write(name, text)
    use_study(study.root)
    model, groups = BACKBONES.create("small", width=8).create(SHAPE, CLASSES, 0)
    assert groups.names() == ["body", "head"] and model.head.weight.shape == (CLASSES, 8)
    for kind, part in re.findall(r"^ {4}pfl new (\w+) (\w+)", page, re.MULTILINE):
        create_part(kind, part, study.root)
    study.write("specs/own.yaml", indented("extends: first.yaml") + "\n")
    compilation = study.compiled()
    rows = [line.split("|")[1].strip() for line in indented("| method ").splitlines()[2:]]
    table, own = compilation.tables["own"], ("evaluate-own", "own")
    assert table.labels["method"] == rows and len(table.runs) == 15
    stages = {stage.address for stage in compilation.stages if "stripes" in stage.address or stage.name in own}
    assert f"makes {len(stages) + 2} stages" in page  # with the guard and the index
    assert re.findall(r"^ {4}ok    (\w+(?: \w+)?)  ", page, re.MULTILINE) == list(TESTS)


@pytest.mark.matrix
def test_the_tutorial_does_what_it_says(tmp_path):
    check(follow(tmp_path))


@pytest.mark.parametrize("kind", TEMPLATES)
def test_what_is_begun_with_passes(kind, tmp_path):
    path = create_part(kind, "my_own", tmp_path)
    use_study(tmp_path)
    assert registry_of(kind).get("my_own").__name__ == "MyOwn" and path.read_text().startswith('"""MyOwn: ')
    assert "NAME" not in path.read_text()
    if kind == "dataset":
        assert len(DATASETS.create("my_own").load(tmp_path)) == 600
    elif kind == "partition":
        samples = DATASETS.create("digits").load(tmp_path)
        assert len(partition(PARTITIONS.create("my_own"), samples, 10, 0).train) == 10
        path.write_text(path.read_text().replace("    own: float", "    seed: float"))
        with pytest.raises(UserError, match=r"^partitions/my_own.py: every partition has an option 'seed'; call"):
            load_catalog(tmp_path).check_part("my_own", ["partition"])
    else:
        verdicts = list(check_training(kind, "my_own", {}))
        assert len(verdicts) == 10 and [one for one in verdicts if not one[1]] == []
    for words, line in {
        (kind, "my_own"): f"there is a {kind} 'my_own' already; pfl describe {kind} my_own",
        (kind, "My-own"): f"'My-own' cannot be the name of a {kind}",
        ("optimiser", "mine"): "pfl new optimiser: the first word must be one of method, backbone",
    }.items():
        refuses(line, create_part, *words, tmp_path)


PLAIN = METHOD.replace("from ._scaling import factor\n", "").replace("factor()", "1.0")
COUNT = "\nCOUNT = __import__('itertools').count(1)\n\n\n@METHODS"
SHAPED = """
    def update_server(self, server, roles, updates):
        server = super().update_server(server, roles, updates)
        server.shared['head.bias'] = server.shared['head.bias'].view(1, -1)
        return server

    def loss"""
BY_VALUE = "assert float(params['head.bias'].detach().sum()) < 99\n        return self"
MISTAKES = [  # the test that finds it, what to replace in the method, by what, and what the test says
    ("fits", "    scale: ", '    personal = ("heads",)\n    scale: ', "did you mean 'head'?"),
    ("trains", "\n    def loss", SHAPED, "update_server returned float32 [1, 10] as 'head.bias'; it was float32 [10]"),
    ("trains", "self.scale *", "-self.scale *", "diverged in round"),
    ("repeats", "self.scale *", "__import__('torch').rand(()) *", "rounds.parquet is another"),
    ("pooled", "self.scale *", "next(COUNT) *", "rounds.parquet is another"),
    ("stacked", "return self", BY_VALUE, "methods/faulty.py:14"),
    ("one sample", "* super", "/ (len(batch.labels) - 1) * super", "ZeroDivisionError: float division"),
]


def failing(kind, name):
    """The tests that an entry does not pass, and what they say."""
    return {test: message for test, passed, message in check_training(kind, name, {}) if not passed}


@pytest.mark.parametrize(("test", "old", "new", "words"), few_of(MISTAKES, MISTAKES[:2]))
def test_a_mistake_is_found(study, test, old, new, words):
    study.write("methods/faulty.py", PLAIN.replace(old, new).replace("\n\n@METHODS", COUNT, 1))
    study.write("backbones/faulty.py", BACKBONE.replace('"head": "head"', '"head": "heads"'))
    use_study(study.root)
    assert words in failing("method", "faulty")[test]
    if test == "fits":
        assert "state 'head.weight' matches no group" in failing("backbone", "faulty")[test]


PARTS = [(kind, name) for kind in ("method", "backbone") for name in registry_of(kind).names()]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_nothing_is_found_in_what_is_built_in(kind, name):
    detects = kind == "backbone" and BACKBONES.get(name).predicts == "boxes"
    assert failing(kind, name).keys() == ({"fits"} if detects else set())


@pytest.mark.matrix
def test_commands_of_a_study_keep_the_schema_up_to_date_and_give_verdicts(tmp_path, pfl):
    code, out, _ = pfl(tmp_path, "init", "mine")
    assert code == 0 and out.startswith("mine: a study with specs/first.yaml\ncd mine && pfl run")
    study, folder = Project(tmp_path / "mine"), tmp_path / "mine"
    assert "no_scm = True" in (folder / ".dvc/config").read_text()
    assert pfl(folder, "new", "method", "our_own")[0] == 0 and "our_own" in (folder / SCHEMA).read_text()
    (folder / "methods/our_own.py").unlink()
    study.write("methods/mine.py", PLAIN)
    assert pfl(folder, "validate")[0] == 0
    assert "our_own" not in (folder / SCHEMA).read_text() and "method_mine" in (folder / SCHEMA).read_text()
    code, out, _ = pfl(folder, "check", "mine", "--with", "tiny_vit", "--set", "scale=0.5")
    first, *lines, last = out.splitlines()
    assert (code, first) == (0, "mine · method · methods/mine.py") and last.startswith("all passed, in ")
    assert all(line.startswith("ok  ") for line in lines) and "mine on tiny_vit" in lines[1] and len(lines) == 10
    study.write("methods/mine.py", PLAIN.replace('    """FedAvg whose loss is scaled."""\n', ""))
    code, out, _ = pfl(folder, "check", "method", "mine")
    assert code == 1 and "FAIL  described   Mine has no docstring" in out and "\n1 failed, in " in out
    for words, said in (("min", "is called 'min'; did you mean 'mine'?"), ("backbone mine", "no backbone is called")):
        code, _, err = pfl(folder, "check", *words.split())
        assert code == 2 and said in err


@pytest.fixture
def own(tmp_path):
    return make_project(tmp_path / "study", own_parts(), default=["own"])


def test_own_parts_are_listed_described_and_completed(own, capsys):
    workspace = own.workspace()
    catalog = load_catalog(workspace.home)
    parts = {"methods": "mine", "backbones": "small", "datasets": "noise", "partitions": "turns", "analyses": "count"}
    for kind, name in parts.items():
        list_kind(kind, workspace, catalog, console())
        assert f"{kind}/{name}.py" in capsys.readouterr().out
    describe("mine", workspace, catalog, console())
    shown = capsys.readouterr().out
    assert "own: methods/mine.py" in shown and "What the loss is multiplied by." in shown
    assert "mine" in str(json_schema(catalog)) and catalog.entry("method", "fedavg").origin == ""


def test_an_edit_makes_exactly_its_runs_stale(own, tmp_path):
    def commands(project):
        """Stage → command, which changes with whatever the stage is made of."""
        return {stage.name.split("-small-")[0]: stage.command for stage in project.compiled().stages}

    parts, doubled = own_parts(), SCALING.replace("1.0", "2.0")
    mine, fedavg = "train-analysed@mine", "train-analysed@fedavg"
    first = after = commands(own)
    for name, text, expected in [
        ("methods/_scaling.py", doubled, {mine}),
        ("methods/_scaling.py", f"# a comment\n{doubled}", set()),
        ("methods/_other.py", "x = 1\n", set()),
        ("backbones/small.py", BACKBONE.replace("relu", "tanh"), {mine, fedavg}),
        ("figures/plain.py", parts["figures/plain.py"].replace("Drawn", "Made"), {"own"}),
    ]:
        own.write(name, text)
        before, after = after, commands(own)
        assert {stage for stage in before if before[stage] != after[stage]} == expected, name
    own.write("datasets/noise.py", parts["datasets/noise.py"].replace("default_rng(0)", "default_rng(1)"))
    assert [name[:11] for name, command in commands(own).items() if command != after[name]] == ["data@noise-"]
    (guard,) = (stage for stage in own.compiled().stages if stage.name == "guard")
    assert {"methods", "backbones", "datasets", "partitions", "analyses", "figures"} <= set(guard.deps)
    # Two studies never share a run, though its id is the same.
    other = commands(make_project(tmp_path / "other", parts | {"methods/_scaling.py": doubled}))
    assert first.keys() == other.keys() and first[mine] != other[mine] and first[fedavg] == other[fedavg]
