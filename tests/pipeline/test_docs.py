"""README, docs and the pages of papers: each link leads somewhere, each command is one, with these options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.cli.parser import get_main_parser
from support.markdown import PAGES, ROOT, Page
from typer.main import get_command
from typer.testing import CliRunner

from pipeline.cli.commands import app
from pipeline.spec.selection import named
from pipeline.spec.specs import find_specs

PFL = get_command(app)
SPECS = list(find_specs(ROOT / "specs"))
OURS = {name.partition("/")[0] for name in SPECS if "/" in name}
# What answers at once, and changes nothing.
QUICK = re.compile(r"list|describe|plan")
TUTORIALS = {
    "docs/ablations.md",
    "docs/studies.md",
    "docs/tutorial.md",
}  # go by files of their own, and have tests of their own

pages = pytest.mark.parametrize("page", [Page(path) for path in PAGES], ids=lambda page: page.name)


def command(words: list[str]) -> tuple[object, list[str]]:
    """The command that words name, of a group or not, and the words behind it."""
    found = PFL
    while words and (inner := getattr(found, "commands", {}).get(words[0])):
        found, words = inner, words[1:]
    return found, words


@pages
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links():
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file) if file else page.path
        assert target.exists(), link
        assert not anchor or anchor in Page(target).anchors(), link


@pages
def test_what_is_to_be_typed_can_be(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for program, *words in page.typed():
        if program == "pfl":
            found, rest = command(words)
            assert found is not PFL, words
            found.make_context(words[0], rest)  # type: ignore[attr-defined]
            if page.name not in TUTORIALS:
                named([word for word in rest if word.partition("/")[0] in OURS], SPECS)
        elif program == "dvc":
            get_main_parser().parse_args(words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", Path("Makefile").read_text(), re.MULTILINE), words
        elif words[0] != "-m":
            source = Path(words[0]).read_text(encoding="utf-8")
            assert not [word for word in words if word.startswith("--") and f'"{word}"' not in source], words


@pages
def test_what_is_mentioned_exists(page: Page) -> None:
    for _, *words in page.mentioned():
        found, rest = command(words)
        assert found is not PFL or words[0].startswith("--"), words
        known = {option for one in found.params for option in (*one.opts, *one.secondary_opts)}  # type: ignore[attr-defined]
        assert {word for word in rest if re.match(r"-\w$|--\w", word)} <= known, words


@pytest.mark.parametrize(
    "words",
    sorted(
        {
            tuple(words[1:])
            for path in PAGES
            for words in Page(path).typed()
            if words[0] == "pfl" and QUICK.match(" ".join(words[1:])) and Page(path).name not in TUTORIALS
        }
    ),
    ids=" ".join,
)
def test_what_takes_no_time_answers(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0 and done.stdout, done.output


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = ["-q", "-n", "-W", "--keep-going", "-c", "docs", "-d", tmp_path / "trees", ".", tmp_path / "site"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "site/README.html").read_text(encoding="utf-8")
    assert [page for page in PAGES if f'href="{Page(page).name[:-3]}.html"' not in first] == [ROOT / "README.md"]
