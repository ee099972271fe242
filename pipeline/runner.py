"""``pfl run``: compile, then let DVC bring the wanted reports up to date."""

from __future__ import annotations

import os

from pipeline.compiler import compile_workspace
from pipeline.dvc import dvc, initialise
from pipeline.generated import write
from pipeline.specs import find_specs
from pipeline.workspace import Workspace, raw_data_folder


def run_specs(workspace: Workspace, specs: list[str] | None) -> int:
    """Bring the reports of `specs` (default: the default ones) up to date; returns DVC's exit code.

    A profile's own workspace holds just what has been asked of it: the stages of the specs named here.
    """
    own = workspace.root != workspace.home
    names = specs or workspace.default_specs(list(find_specs(workspace.specs)))
    compilation = compile_workspace(workspace, names if own else None)
    initialise(workspace.root)
    write(workspace, compilation.files)
    if own:  # the raw data of the project, not of the profile's workspace
        os.environ.setdefault("PFL_DATA", str(raw_data_folder(workspace.home)))
    targets = [target(name) for name in names if name in compilation.tables]
    return dvc(workspace.root, "--wait-for-lock", "repro", *targets, *([] if specs else ["index"]))


def target(spec_id: str) -> str:
    """The DVC address of a spec's report stage."""
    shard, _, stage = f"stages/{spec_id}".rpartition("/")
    return f"{shard}/dvc.yaml:{stage}"
