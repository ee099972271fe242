"""The pages of papers after a ``pfl run``. Modules that render pages are imported only if there is a page to render."""

from __future__ import annotations

import os
from collections.abc import Iterable

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.workspace import INDEX, PAPERS, Workspace


def refresh(workspace: Workspace, compilation: Compilation, specs: Iterable[str], *, idle: bool = False) -> str:
    """Update the pages of the papers of some specs; return a line with their paths, or with the error. If `idle`,
    nothing has been run, so the pages are not updated if all of them exist."""
    names = list(dict.fromkeys(spec.split("/")[0] for spec in specs))
    pages = [workspace.root / PAPERS / f"{name}.html" for name in names]
    if not (idle and all(page.is_file() for page in pages)):
        from pipeline.papers.pages import Papers

        try:
            Papers.compiled(workspace, names, compilation).write(names)
        except UserError as error:
            return f"pages of papers: {error}"
    more = f" and {len(pages) - 3} more" if len(pages) > 3 else ""
    index = os.path.relpath(workspace.root / INDEX)
    return f"By paper: {', '.join(map(os.path.relpath, pages[:3]))}{more}; all papers: {index}"
