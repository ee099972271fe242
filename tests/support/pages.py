"""What the tests of reports look at pages with."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from pipeline.browse.language import keys_of
from pipeline.spec.catalog import Catalog

HOSTILE = "<script>alert(1)</script> & a_b 5% a|b $x$ {c} \\d ~e ^f *g* [h] `i` #1 \"q\" 'r'"
"""A label that is markup in every format."""


def squeezed(markdown: str) -> list[str]:
    """Lines with runs of blanks as one blank."""
    return [re.sub(" +", " ", line) for line in markdown.splitlines()]


class Document(HTMLParser):
    """Checks that tags nest, and collects the elements and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.text = list[str](), list[str](), ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "br") else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += "" if {"script", "style"} & set(self.open) else data


def with_keys(text: str, catalog: Catalog) -> str:
    """A Markdown page with a table of keys between each `<!-- keys: PART -->` and `<!-- end -->`."""

    def table(place: re.Match[str]) -> str:
        lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
        for key in keys_of(place[1], catalog):
            default = f"`{key.default}`" if key.default not in ("", "required") else key.default
            lines.append(f"| `{key.name}` | {key.takes} | {default} | {key.meaning} |".replace("  ", " "))
        return "\n".join([f"<!-- keys: {place[1]} -->", *lines, "<!-- end -->"])

    return re.sub(r"<!-- keys: (\S+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)
