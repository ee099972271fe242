"""The project's pages as a reader has them: links, headings, what is to be typed, what is named in passing."""

import re
import shlex
from collections import Counter
from functools import cached_property
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "specs").glob("*/README.md"))
PROGRAMS = ("pfl", "dvc", "make", "python")


class Page:
    """One Markdown file."""

    def __init__(self, path):
        self.path, self.name = path, path.relative_to(ROOT).as_posix()

    @cached_property
    def tokens(self):
        tokens = MarkdownIt().enable("table").parse(self.path.read_text(encoding="utf-8"))
        return [inner for token in tokens for inner in (token, *(token.children or ()))]

    def links(self):
        """What the page refers to within the repository."""
        targets = [token.attrGet("href") or token.attrGet("src") for token in self.tokens]
        return [target for target in targets if target and "://" not in target]

    def anchors(self):
        """What a link can name behind `#`, as code hosts make it of headings."""
        seen = Counter()
        for index, token in enumerate(self.tokens):
            if token.type == "heading_open":
                text = "".join(part.content for part in self.tokens[index + 1].children)
                slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
                seen[f"{slug}-{seen[slug]}" if seen[slug] else slug] += 1
        return set(seen)

    def blocks(self):
        """What is set as code without a language, or as that of a shell."""
        shell = {"code_block": ("",), "fence": ("", "console", "sh", "bash")}
        return [token.content for token in self.tokens if token.info in shell.get(token.type, ())]

    def typed(self):
        """Complete commands, as words: lines of code blocks that begin with one of our programs."""
        for line in "\n".join(self.blocks()).splitlines():
            line = re.sub(r"\s#\s.*|^\s*\$ |(?<![\w.])\w+=\S+ |^time |\.venv/bin/", "", line)
            parts = line.split(" && ")
            if parts[0].split(" ")[0] in PROGRAMS:
                yield from (words for part in parts if (words := shlex.split(part))[0] in PROGRAMS)

    def mentioned(self):
        """Whatever else looks like a command of ours: in a line of text, a comment, a longer command."""
        texts = [token.content for token in self.tokens if token.type == "code_inline"]
        for text in (*texts, *self.blocks()):
            for found in re.findall(r"(?<![\w./-])pfl (?=[a-z-])([^`\n]*)", text):
                yield ["pfl", *re.split(r"[\s`'\";,]+", found)]
