"""Text of anybody within Markdown, for all that writes any."""

from __future__ import annotations

_MARKDOWN = str.maketrans(
    {**{char: f"\\{char}" for char in "\\`*_{}[]#|$~"}, "&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "}
)


def escape_markdown(text: object) -> str:
    """Return text in which nothing is Markdown, HTML or mathematics."""
    return str(text).translate(_MARKDOWN)
