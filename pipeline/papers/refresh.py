"""The pages of papers after a ``pfl run``. What renders them is imported when there is something to render."""

from __future__ import annotations

import os
from collections.abc import Iterable

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.workspace import INDEX, PAPERS, Workspace

_MOST_SHOWN = 3


def refresh(workspace: Workspace, compilation: Compilation, specs: Iterable[str], *, idle: bool = False) -> str:
    """Bring the pages of the papers that some specs belong to up to date; return lines that say where they are, or what
    went wrong.

    Args:
        idle: Nothing has been run, so that pages that exist are taken as they are.
    """
    names = list(dict.fromkeys(spec.split("/")[0] for spec in specs))
    pages = [workspace.root / PAPERS / f"{name}.html" for name in names]
    if not (idle and all(page.is_file() for page in pages)):
        from pipeline.papers.pages import Papers

        try:
            try:
                papers = Papers.compiled(workspace, names)
            except UserError:  # in a spec that nobody asked for
                papers = Papers.of(workspace, compilation)
            papers.partial = True
            papers.write(names)
        except UserError as error:
            return f"pages of papers: {error}"
    listed = [os.path.relpath(page) for page in pages[:_MOST_SHOWN]]
    more = f" and {len(pages) - _MOST_SHOWN} more" if len(pages) > _MOST_SHOWN else ""
    return f"By paper: {', '.join(listed)}{more}; all papers: {os.path.relpath(workspace.root / INDEX)}"
