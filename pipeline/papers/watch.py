"""``pfl report --watch``: pages that follow the runs as they finish, and the specs as they are edited."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pflcore.errors import UserError
from pipeline.papers.pages import Papers, stamp
from pipeline.workspace import Workspace

PAUSE = 3.0
"""Seconds between two looks at what there is."""


def watch(workspace: Workspace, names: Sequence[str], say: Callable[[str], None], pause: float = PAUSE) -> None:
    """Keep the pages of some papers, or of all, up to date until an interruption; then write them a last time.

    A look without news is one `stat` per file. A damaged artifact or an invalid spec is told once, and the pages stay
    as they are until it has been corrected.

    Args:
        say: Gets a line for each thing that happened.

    Raises:
        UserError: At the first look: a spec is invalid, an artifact damaged, or there is no such paper.
    """
    seen, papers = _specs(workspace), Papers.compiled(workspace)
    complaint = ""
    say(_news(papers, papers.write(papers.chosen(names), live=True), "watching; Ctrl-C ends it"))
    try:
        while True:
            time.sleep(pause)
            try:
                if (now := _specs(workspace)) != seen:
                    seen, papers = now, Papers.compiled(workspace)
                changed = papers.write(papers.chosen(names), live=True)
            except (UserError, OSError) as error:  # an artifact may vanish as it is being looked at
                if str(error) != complaint:
                    say(f"pfl: {error}")
                complaint = str(error)
                continue
            complaint = ""
            if changed:
                say(_news(papers, changed))
    except KeyboardInterrupt:
        papers.write(papers.chosen(names))


def _news(papers: Papers, changed: list[str], more: str = "") -> str:
    written = [f"{name}.html" for name in changed]
    return "; ".join(filter(None, (f"{time.strftime('%H:%M:%S')} {', '.join(written) or 'up to date'}", more)))


def _specs(workspace: Workspace) -> dict[Path, str]:
    """What lies below specs/."""
    return {path: stamp(path) for path in workspace.specs.rglob("*")}
