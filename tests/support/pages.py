"""What the tests of reports look at pages with."""

import re
from html.parser import HTMLParser

from pipeline.browse.language import keys_of

HOSTILE = "<script>alert(1)</script> & a_b 5% a|b $x$ {c} \\d ~e ^f *g* [h] `i` #1 \"q\" 'r'"
"""A label that is markup in every format."""


def squeezed(markdown):
    """Lines with runs of blanks as one blank."""
    return [re.sub(" +", " ", line) for line in markdown.splitlines()]


class Document(HTMLParser):
    """Checks that tags nest, and collects the elements and the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "br") else [tag]

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += "" if {"script", "style"} & set(self.open) else data


def with_keys(text, catalog):
    """A Markdown page with a table of keys between each `<!-- keys: PART -->` and `<!-- end -->`."""

    def table(place):
        lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
        for name, takes, stated, meaning in keys_of(place[1], catalog):
            default = f"`{stated}`" if stated not in ("", "required") else stated
            lines.append(f"| `{name}` | {takes} | {default} | {meaning} |".replace("  ", " "))
        return "\n".join([f"<!-- keys: {place[1]} -->", *lines, "<!-- end -->"])

    return re.sub(r"<!-- keys: (\S+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)
