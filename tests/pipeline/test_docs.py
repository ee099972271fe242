"""README, docs and pages of papers: links lead somewhere, commands exist, what is shown is so; guides are followed.

In a copy of the project the guides' files are written and their commands typed as printed.
"""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import yaml
from dvc.cli.parser import get_main_parser
from PIL import Image
from support.markdown import PAGES, ROOT, Page
from support.pages import squeezed, with_keys
from support.project import VIT, Project, make_project, spec
from typer.main import get_command

import pipeline
from pflcore.options import describe_options
from pflcore.settings import Training
from pipeline.cli.commands import app
from pipeline.results.report import write_report
from pipeline.spec.catalog import load_catalog
from pipeline.spec.selection import select_specs
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

PFL = get_command(app)
SPECS = list(find_specs(ROOT / "specs"))
OURS = {name.partition("/")[0] for name in SPECS if "/" in name}
OWN = {f"docs/{name}.md" for name in ("ablations", "studies", "tutorial")}  # go by files and tests of their own

README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE, ANALYSES, DATASETS, FIGURES, LANGUAGE, PYTHON, TRAINING = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    for name in ("ablations", "analyses", "datasets", "figures", "language", "python", "training")
)
NOTEBOOK = json.loads((ROOT / "docs/results.ipynb").read_text("utf-8"))
SECTIONS = {section.partition(".")[0]: section for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]}
FILES = re.compile(r"```\w+\n# (\S+)\n(.*?)```", re.DOTALL)
COMMANDS = re.compile(r"^ {4}(pfl .+)$", re.MULTILINE)
QUICKSTART = (ROOT / "specs/quickstart.yaml").read_text(encoding="utf-8")
AXES = yaml.safe_load(QUICKSTART)["grid"]["axes"]
(ABLATION,) = re.findall(r"^ +partition:\n(?: {8}.*\n)+", README, re.MULTILINE)
POINTS = 3.0  # by which a cell may differ on another processor, as the README says


def command(words: list[str]):
    """The command that words name, of a group or not, and the words behind it."""
    found = PFL
    while words and (inner := getattr(found, "commands", {}).get(words[0])):
        found, words = inner, words[1:]
    return found, words


def test_pages_have_all_keys_of_specs_and_every_setting_beside_the_first_ones() -> None:
    assert with_keys(LANGUAGE, load_catalog(ROOT)) == LANGUAGE
    rows = [line for line in TRAINING.splitlines() if line.startswith("| `")]
    for option in (one for one in describe_options(Training) if one.later):
        row = next(line for line in rows if f"`{option.name}`" in line)
        assert all(f"`{choice}`" in row for choice in option.choices or ())


@pytest.mark.parametrize("page", [Page(path) for path in PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere_and_commands_exist(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    for link in page.links():
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file) if file else page.path
        assert target.exists() and (not anchor or anchor in Page(target).anchors()), link
    text = page.path.read_text(encoding="utf-8")
    files = [name for name, _ in FILES.findall(text) if name.endswith(".yaml")]
    assert re.findall(r"^# (\S+\.yaml)$", text, re.MULTILINE) == files  # each in a block of its own
    monkeypatch.chdir(ROOT)
    for program, *words in page.typed():
        if program == "pfl":
            found, rest = command(words)
            assert found is not PFL, words
            found.make_context(words[0], rest)
            if page.name not in OWN:
                select_specs([word for word in rest if word.partition("/")[0] in OURS], SPECS)
        elif program == "dvc":
            get_main_parser().parse_args(words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", Path("Makefile").read_text(), re.MULTILINE), words
        elif words[0] != "-m":
            source = Path(words[0]).read_text(encoding="utf-8")
            assert not [word for word in words if word.startswith("--") and f'"{word}"' not in source], words
    for _, *words in page.mentioned():
        found, rest = command(words)
        assert found is not PFL or words[0].startswith("--"), words
        known = {option for one in found.params for option in (*one.opts, *one.secondary_opts)}
        assert {word for word in rest if re.match(r"-\w$|--\w", word)} <= known, words


def test_every_promise_names_a_test_that_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    promises = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(promises) > 20 and all("::test_" in line for line in promises)
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text):
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), test
    traps = re.findall(r"`pytest (tests/[\w/.]+)[^`]* -k (\w+)`", (ROOT / "docs/traps.md").read_text("utf-8"))
    assert len(traps) > 6
    for place, part in traps:  # a part of a test's name, or of the id of a case
        files = [*(ROOT / place).glob("*.py"), *(ROOT / place).glob("*.yaml")] or [ROOT / place]
        assert any(part in one.read_text("utf-8") for one in files), part


@pytest.mark.matrix
def test_the_page_of_results_is_what_the_ledger_says(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml", "specs", "results", "docs"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    assert write_report(Workspace.find(tmp_path)) == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = ["-q", "-n", "-W", "--keep-going", "-c", "docs", "-d", tmp_path / "trees", ".", tmp_path / "site"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "site/README.html").read_text(encoding="utf-8")
    assert [page for page in PAGES if f'href="{Page(page).name[:-3]}.html"' not in first] == [ROOT / "README.md"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the project with the guides' files, and a folder of images."""
    made = Project(tmp_path_factory.mktemp("checkout"))
    for name in ("pflcore", "pipeline"):
        shutil.copytree(ROOT / name, made.root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("specs/quickstart.yaml", "pyproject.toml"):
        made.write(name, (ROOT / name).read_bytes())
    for name, content in FILES.findall(README + GUIDE + ANALYSES + FIGURES):
        made.write(name, content)
    for kind, shade in {"daisy": 200, "rose": 60}.items():
        for index in range(40):
            pixels = np.random.default_rng(index).integers(0, 50, (20, 20, 3)) + shade
            Image.fromarray(pixels.astype(np.uint8)).save(made.write(f"data/flowers/{kind}/{index}.png", ""))
    return made


def follow(project: Project, *commands: str) -> list[pd.DataFrame]:
    """Type commands; return the tables of those that run a spec."""
    tables = []
    for command in commands:
        project.succeed(*command.split(), PYTHONPATH=str(project.root))
        if command.startswith("pfl run"):
            (path,) = project.root.glob(f"**/reports/{command.split()[2]}/table.csv")
            tables.append(pd.read_csv(path))
            assert tables[-1]["obtained_mean"].notna().all()
    return tables


@pytest.mark.matrix
def test_every_example_goes_together(project: Project) -> None:
    shown = textwrap.indent(textwrap.dedent(ABLATION), "    ")
    ours, changed = re.subn(r"^    partition:\n(?: {6}.*\n)+", shown, QUICKSTART, flags=re.MULTILINE)
    assert changed == 1
    project.write("specs/readme.yaml", ours)
    done = project.call("pfl", "validate", PYTHONPATH=str(project.root))
    examples = 3 + sum(name.startswith("specs/") and "abstract:" not in text for name, text in FILES.findall(GUIDE))
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"{examples} specs are valid")
    said = project.call("pfl", "plan", "readme", PYTHONPATH=str(project.root)).stdout
    assert re.search(r"\b54 .*trials that tune them", " ".join(README.split())) and said.startswith("162 of 162 runs")


@pytest.mark.matrix
@pytest.mark.parametrize("section", ["README", *SECTIONS])
def test_each_example_works_as_printed(project: Project, section: str) -> None:
    commands = COMMANDS.findall(SECTIONS.get(section, "    pfl run first --profile smoke"))
    assert commands and FILES.findall(SECTIONS.get(section, README))
    tables = follow(project, *commands)
    if section == "4":  # a momentum of nothing is FedAvg, as the guide says
        found = tables[-1].set_index("method")["obtained_mean"]
        assert found["β = 0"].tolist() == found["FedAvg"].tolist() != found["β = 0.9"].tolist()


@pytest.mark.matrix
def test_the_examples_of_arrays_and_encoders_train(tmp_path: Path) -> None:
    made = make_project(tmp_path, dict(FILES.findall(DATASETS)), [])
    rng, person, label = np.random.default_rng(0), np.arange(240) % 4, np.arange(240) // 4 % 3
    drawn = rng.standard_normal((240, 5)) * [1, 100, 0.01, 3, 1] + label[:, None] * [1, 80, 0.01, 0, 0]
    sensors = pd.DataFrame(drawn, columns=list("abcde")).assign(activity=label, person=person, day="Monday")
    sensors.to_csv(made.write("data/sensors/sensors.csv", ""), index=False)
    embeddings = pd.DataFrame({"embedding": list(drawn[:, [0, 4]]), "topic": np.array(["x", "y", "z"])[label]})
    embeddings["split"] = np.where(np.arange(240) % 5, "train", "test")
    embeddings.to_parquet(made.write("data/embeddings/part.parquet", ""))
    assert "Activities from sensors" in made.succeed("pfl", "run", "sensors", "embeddings", "encoded")
    made.succeed("pfl", "run", "encoded", "texts", "--profile", "smoke")
    made.write("pyproject.toml", '[tool.pfl]\ndefault = ["encoded"]\n')
    made.compile()
    assert made.repro().ran == ["guard", "index"]
    pages = [path.read_text("utf-8") for path in made.root.glob("reports/partitions/*/index.md")]
    assert any("features (backbone convnet, " in page and "encoded by convnet" in page for page in pages)
    for spec_name, least in (("sensors", 55), ("embeddings", 40)):  # a third by chance
        table = pd.read_csv(tmp_path / f"reports/{spec_name}/table.csv").set_index("method")
        assert table.loc["FedAvg", "obtained_mean"] > least


@pytest.mark.matrix
def test_an_analysis_and_a_figure_are_a_file_each(project: Project) -> None:
    analysed = "curve_every: 1}\n    analyses: [{name: distance, order: 1.0}]"
    text = spec("[fedavg, local]", more="figures: [distance, evenness]\n").replace("curve_every: 1}", analysed)
    project.write("specs/a.yaml", text)
    follow(project, "pfl describe distance", "pfl run a")
    report = project.root / "reports/a"
    lines = squeezed((report / "report.md").read_text(encoding="utf-8"))
    assert "| fedavg | distance | 3 | 0 | 0 | 0 | 0 |" in lines[lines.index("## Distance from the mean model") :]
    data = pd.read_csv(report / "figures/distance.csv").set_index(["method", "client"])["value"]
    assert data["fedavg"].tolist() == [0.0] * 3 and (data["local"] > 0.1).all()
    assert "| method | worst | best |" in lines[lines.index("## Clients from the worst to the best") :]
    accuracy = pd.read_csv(report / "figures/evenness.csv").groupby("method")["accuracy"].apply(list)
    assert accuracy["local"] == sorted(accuracy["local"]) and len(accuracy["local"]) == 3
    assert (report / "figures/evenness.png").is_file()


def printed() -> dict[tuple[str, str], float]:
    """Method and partition → accuracy, as the README prints the quickstart's table."""
    lines = README.partition("<!-- quickstart table -->")[2].partition("<!-- end -->")[0].strip().splitlines()
    (_, *names), _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    numbers = {method: [float(re.findall(r"[\d.]+", cell)[0]) for cell in cells] for method, *cells in rows}
    return {(method, name): one for method, own in numbers.items() for name, one in zip(names, own, strict=True)}


def test_the_readme_shows_the_quickstart_and_specs_that_exist_and_methods_are_short() -> None:
    named = set(re.findall(r"`((?:fedtp|checks)/\w+)`", README))
    assert named and named <= set(SPECS)
    shown, axis = yaml.safe_load(ABLATION)["partition"], AXES["partition"]
    assert axis.items() <= shown.items() and len(shown) == len(axis) + 1
    assert printed().keys() == {(method, partition) for method in AXES["method"] for partition in axis}
    assert list(SECTIONS) == [str(number) for number in range(1, len(SECTIONS) + 1)]
    assert len(dict(FILES.findall(GUIDE))["pflcore/methods/fedavgm.py"].splitlines()) <= 60


def test_the_method_of_the_guide_passes_its_check(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pfl]\n")
    (tmp_path / "specs").mkdir()
    project = Project(tmp_path)
    project.write("methods/fedavgm.py", dict(FILES.findall(GUIDE))["pflcore/methods/fedavgm.py"])
    assert "all passed" in project.succeed("pfl", "check", "fedavgm")


@pytest.mark.matrix
def test_the_quickstart_gives_the_table_and_every_spec_is_valid(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for command in ("run", "validate"):
        Project(tmp_path).succeed("pfl", command)
    found = pd.read_csv(tmp_path / "reports/quickstart/table.csv").set_index(["method", "partition"])["obtained_mean"]
    assert {key: found[key] for key, shown in printed().items() if abs(found[key] - shown) > POINTS} == {}


SMALL = """\
    partition: {pathological: {name: pathological, classes_per_client: 2, validation_share: 0.2}}
    seed: [0, 1]
tune: {space: {training.lr: [0.05, 0.2]}, trial: {training: {rounds: 1}}}
table: {rows: [method], columns: [partition], average_over: [seed]}
"""


@pytest.mark.matrix
def test_the_page_on_python_and_the_notebook_run(tmp_path: Path, monkeypatch, capsys) -> None:
    methods = "{FedAvg: fedavg, FedTP: {name: fedtp, embedding: 4, hidden: 6, layers: 1}}"
    text = spec(methods, backbone=VIT, more=SMALL).replace("clients: 3", "clients: 10")
    made = make_project(tmp_path, {"specs/quickstart.yaml": text}, ["quickstart"])
    made.compile()
    done = made.repro(PFL_DEVICE="cpu")  # no weights are saved: models come from last checkpoints
    assert done.code == 0, done.output
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFL_DEVICE", "cpu")
    matplotlib.use("agg")
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", PYTHON, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), names)
    frame, study = names["frame"], pipeline.open()
    assert set(frame["method"]) == {"FedAvg", "FedTP"} and len(names["own"].results) == 50  # ten rounds of five clients
    measured = frame.query("method == 'FedTP' and seed == 0 and client == 7 and round == 2 and population == 'test'")
    assert f"tensor({measured['correct'].item()}) of {measured['total'].item()}\n" in capsys.readouterr().out
    runs = study.runs("quickstart")  # models of tuned runs have what was chosen
    assert [set(chosen) for chosen in runs["chosen"]] == [{"training.lr"}] * 4
    assert study.trained(runs["run"].iloc[0]).training.lr == runs["chosen"].iloc[0]["training.lr"]
    for cell in (cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"):
        assert not cell["outputs"] and not cell["execution_count"]
        exec(compile("".join(cell["source"]), "docs/results.ipynb", "exec"), names)
    assert names["last"]["accuracy"].between(0, 100).all() and len(names["last"]) == 4
    held = study.partition("quickstart").query("seed == 0 and client == 7 and split == 'test'")
    assert sorted(names["labels"].tolist()) == sorted(held["label"])
