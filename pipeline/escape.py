"""Escaping of foreign text in Markdown."""

from __future__ import annotations

_MARKDOWN = str.maketrans(
    {**{char: f"\\{char}" for char in "\\`*_{}[]#|$~"}, "&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "}
)


def escape_markdown(text: object) -> str:
    """Return the text escaped, so that no part of it is read as Markdown, HTML or mathematics."""
    return str(text).translate(_MARKDOWN)
