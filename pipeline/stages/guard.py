"""The guard stage: edited specs or code never go unnoticed by a plain ``dvc repro``.

DVC reads all stage files before it runs anything, so new stages cannot join a reproduction under way. The guard, which
every other stage comes after, compiles; when that changes a stage file it stops DVC with one line, and the next ``dvc
repro`` runs it. Its output never changes, so passing the guard invalidates nothing.

When the cache has been lost, DVC would make everything anew, of which it removes the old version first. But then it
runs the guard before anything else, which puts back into the cache what lies in the workspace as it was recorded.
"""

from __future__ import annotations

import os
from contextlib import closing

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.compile.compiler import GUARD, compile_workspace
from pipeline.compile.generated import write
from pipeline.dvc.program import in_cache
from pipeline.workspace import Workspace

_TOKEN = "The stage files are what the specs compile to.\n"


def run(workspace: Workspace) -> str:
    """Compile; return a line to show. Raise :class:`UserError` when stage files were not up to date; now they are."""
    compilation = compile_workspace(workspace)
    compilation.check_tested()
    if changes := write(workspace, compilation):
        again = "dvc exp run` again, without -S," if "DVC_EXP_NAME" in os.environ else "dvc repro` again"
        changed = f"specs or code changed: {changes.summary}"
        raise UserError(f"{changed}. Compiled; type `{again} to run it; `pfl plan` says what that is")
    leave_output(workspace)
    line = f"{len(compilation.tables)} specs, {len(compilation.runs)} runs: stages are up to date"
    locked = [one for one in compilation.stages if (workspace.root / one.file).with_name("dvc.lock").is_file()]
    made = [stage for stage in locked if stage.kind != "guard"]  # which DVC has in hand
    if in_cache(workspace.root, _TOKEN) or not made:
        return line
    from pipeline.dvc.recorder import Recorder  # with DVC, which takes a second

    with closing(Recorder(workspace.root, made)) as recorder:
        count = recorder.keep()
    return f"{line}; {count} of them were lost from DVC's cache and are in it again" if count else line


def leave_output(workspace: Workspace) -> None:
    """Write what every other stage depends on."""
    write_text(workspace.root / GUARD, _TOKEN)
