"""README, docs and pages of papers: links lead somewhere, commands are ones with these options; what is shown is so."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.cli.parser import get_main_parser
from support.markdown import PAGES, ROOT, Page
from typer.main import get_command

from pflcore.options import describe_options
from pflcore.settings import Training
from pipeline.browse.language import page
from pipeline.cli.commands import app
from pipeline.results.report import write_report
from pipeline.spec.catalog import load_catalog
from pipeline.spec.selection import named
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace

PFL = get_command(app)
SPECS = list(find_specs(ROOT / "specs"))
OURS = {name.partition("/")[0] for name in SPECS if "/" in name}
OWN = {f"docs/{name}.md" for name in ("ablations", "studies", "tutorial")}  # go by files and tests of their own

pages = pytest.mark.parametrize("page", [Page(path) for path in PAGES], ids=lambda page: page.name)


def command(words: list[str]) -> tuple[object, list[str]]:
    """The command that words name, of a group or not, and the words behind it."""
    found = PFL
    while words and (inner := getattr(found, "commands", {}).get(words[0])):
        found, words = inner, words[1:]
    return found, words


def test_the_language_page_has_all_keys_of_specs() -> None:
    path = ROOT / "docs/language.md"
    assert path.read_text(encoding="utf-8") == page(path.read_text(encoding="utf-8"), load_catalog(ROOT))


@pages
def test_links_lead_somewhere_and_commands_exist(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    for link in page.links():
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file) if file else page.path
        assert target.exists() and (not anchor or anchor in Page(target).anchors()), link
    monkeypatch.chdir(ROOT)
    for program, *words in page.typed():
        if program == "pfl":
            found, rest = command(words)
            assert found is not PFL, words
            found.make_context(words[0], rest)  # type: ignore[attr-defined]
            if page.name not in OWN:
                named([word for word in rest if word.partition("/")[0] in OURS], SPECS)
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
        known = {option for one in found.params for option in (*one.opts, *one.secondary_opts)}  # type: ignore[attr-defined]
        assert {word for word in rest if re.match(r"-\w$|--\w", word)} <= known, words


def test_the_page_on_training_has_every_setting_beside_the_first_ones() -> None:
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for option in describe_options(Training):
        if option.later:
            row = next(line for line in rows if f"`{option.name}`" in line)
            assert all(f"`{choice}`" in row for choice in option.choices or ())


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
