"""The guard stage, which lets a plain ``dvc repro`` notice edited specs and code.

DVC reads all stage files before it runs anything, so new stages cannot join a running reproduction. All other stages
depend on the guard. It compiles; if a stage file changes, it stops DVC with one line, and the next ``dvc repro`` runs
the new stages. Its output never changes, so the guard makes no stage stale.

If DVC's cache is lost, DVC would remove all outputs and make them again. But it runs the guard first, and the guard
puts the outputs in the workspace that are as recorded back into the cache.
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
    """Compile; return a line to show. Raises :class:`UserError` if stage files were not up to date and were written."""
    compilation = compile_workspace(workspace)
    compilation.check_tested()
    if changes := write(workspace, compilation):
        command = "dvc exp run` again, without -S," if "DVC_EXP_NAME" in os.environ else "dvc repro` again,"
        problem = f"specs or code changed: {changes.summary}"
        alternative = "or `pfl run SPEC` for a spec outside of dvc.yaml; `pfl plan` says what is new"
        raise UserError(f"{problem}. Compiled; type `{command} {alternative}")
    write_output(workspace)
    line = f"{len(compilation.tables)} specs, {len(compilation.runs)} runs: stages are up to date"
    locked = [stage for stage in compilation.stages if (workspace.root / stage.file).with_name("dvc.lock").is_file()]
    recorded = [stage for stage in locked if stage.kind != "guard"]  # DVC is executing the guard itself
    if in_cache(workspace.root, _TOKEN) or not recorded:
        return line
    from pipeline.dvc.recorder import Recorder  # imported late, since DVC's import takes a second

    with closing(Recorder(workspace.root, recorded)) as recorder:
        count = recorder.restore_cache()
    return f"{line}; {count} of them were lost from DVC's cache and are in it again" if count else line


def write_output(workspace: Workspace) -> None:
    """Write the guard's output, on which every other stage depends."""
    write_text(workspace.root / GUARD, _TOKEN)
