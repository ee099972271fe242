"""docs/tutorial.md, followed: its commands are typed, its files written, and what is printed is what it shows."""

import re

import pytest

from support.markdown import ROOT, Page
from support.project import Project

PAGE = Page(ROOT / "docs/tutorial.md")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]\d+)?")


def steps():
    """Commands with what they print, and files with what is in them, in the order of the page."""
    for token in PAGE.tokens:
        if token.type == "fence":
            name, _, text = token.content.partition("\n")
            yield name.removeprefix("# "), text
        elif token.type == "code_block":
            for block in token.content.split("$ ")[1:]:
                command, _, shown = block.partition("\n")
                yield command, shown


def masked(text):
    """Lines but for their numbers, which a machine may have of its own, and the blanks that align them."""
    lines = (re.sub(r"[ :-]+", " ", NUMBER.sub("#", line).replace("*", "")).strip() for line in text.splitlines())
    return {line for line in lines if line}


def follow(folder, **environment):
    """Do what the page says, from an empty folder on."""
    project = Project(folder)
    for command, text in steps():
        if not command.startswith("pfl "):
            project.write(command, text)
            continue
        first, _, then = command.partition(" && cd ")
        said = project.succeed(*first.split(), **environment)
        assert masked(text) <= masked(said), f"{command}\n{said}"
        project = Project(folder / then) if then else project
    return project


def check(study):
    """The table is that of the page, but for rounding on another processor; so are the differences in its text."""
    report, page = (path.read_text("utf-8") for path in (study.root / "reports/own/report.md", PAGE.path))
    table, _, claims = report.partition("\n## Claims\n")
    found, shown = (
        {
            method: [float(number) for number in NUMBER.findall(cells)]
            for method, cells in re.findall(r"^ *\| (\w[\w +]*?) +\| (.*±.*) \|$", text, re.MULTILINE)
        }
        for text in (table.partition("\n## ")[0], page)
    )
    assert shown.keys() == found.keys() == {"Local", "FedAvg", "FedAvg + FT", "FedPer", "CalmHead"}
    for method, values in shown.items():
        assert found[method] == pytest.approx(values, abs=2.5), method
    said = re.findall(r"\(([+−]\d+\.\d+)\)", page)[-2:]
    judged = re.findall(r"^\| \d+ +\| obtained .*?\| +([+−]\d+\.\d+) \|", claims, re.MULTILINE)
    signed = [[float(one.replace("−", "-")) for one in some] for some in (judged, said)]
    assert signed[0] == pytest.approx(signed[1], abs=2.5)
