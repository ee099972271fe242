"""The docs as a site: `make docs`. Its pages are the Markdown files as they lie in the repository."""

from __future__ import annotations

from sphinx.application import Sphinx

# In the order in which somebody new wants them.
CONTENTS = {
    "Begin": [
        "docs/tutorial",
        "docs/studies",
        "docs/ablations",
        "docs/language",
        "docs/datasets",
        "docs/conditions",
        "docs/training",
        "docs/dvc",
    ],
    "Results": [
        "docs/measuring",
        "docs/reports",
        "docs/figures",
        "docs/analyses",
        "docs/python",
        "docs/ledger",
        "docs/results",
    ],
    "Methods": ["docs/methods", "docs/methods/sources", "docs/oracles"],
    "Papers": [
        "specs/fedtp/README",
        "specs/fedperfix/README",
        "specs/pfedla/README",
        "specs/fedofa/README",
        "specs/checks/README",
        "docs/traps",
    ],
    "Large runs": ["docs/scaling", "docs/performance"],
    "Inside": ["docs/architecture", "CONTRIBUTING", "SECURITY", "CHANGELOG"],
}

project = "pfl-pipeline"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/*.md", "docs/methods/*.md", "specs/*/README.md"]
exclude_patterns = [".*", "artifacts", "build", "data", "exports", "reports", "stages", "tests"]
root_doc = "README"
myst_heading_anchors = 4
highlight_language = "text"
html_theme = "furo"
html_title = project
html_show_copyright = False
html_copy_source = False


def _with_contents(_: Sphinx, page: str, source: list[str]) -> None:
    """The first page leads to all others; that is said here, so that README.md has no directives of Sphinx."""
    if page == root_doc:
        for caption, pages in CONTENTS.items():
            listed = "\n".join(f"/{name}" for name in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n{listed}\n```\n"


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("source-read", _with_contents)
