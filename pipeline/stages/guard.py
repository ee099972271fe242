"""The guard stage: edited specs or code never go unnoticed by a plain ``dvc repro``.

DVC reads all stage files before it runs anything, so new stages cannot join a reproduction under way. The guard, which
every other stage comes after, compiles; when that changes a stage file it stops DVC with one line that says what
changed, and the next ``dvc repro`` runs it. Its output never changes, so passing the guard invalidates nothing.
"""

from __future__ import annotations

from pflcore.artifacts import write_text
from pflcore.errors import UserError
from pipeline.compiler import GUARD, compile_workspace
from pipeline.generated import write
from pipeline.workspace import Workspace


def run(workspace: Workspace) -> str:
    """Compile. Raises :class:`UserError` when the stage files were not up to date; they are afterwards."""
    compilation = compile_workspace(workspace)
    changes = write(workspace, compilation.files)
    if changes:
        raise UserError(f"specs or code changed: {changes.summary()}. Compiled; type `dvc repro` again to run it")
    write_text(workspace.root / GUARD, "The stage files are what the specs compile to.\n")
    return f"{len(compilation.tables)} specs, {len(compilation.runs)} runs: stages are up to date"
