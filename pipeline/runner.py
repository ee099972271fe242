"""``pfl run``: compile, then let DVC bring the wanted reports up to date."""

from __future__ import annotations

import os
from pathlib import Path

from pflcore.errors import UserError
from pipeline.compiler import compile_workspace
from pipeline.dvc import dvc, initialise
from pipeline.generated import write
from pipeline.report.provenance import timings_path
from pipeline.specs import find_specs
from pipeline.workspace import Workspace, raw_data_folder, report_path


def run_specs(workspace: Workspace, specs: list[str] | None) -> int:
    """Bring the reports of `specs` (default: the default ones) up to date and print them; returns DVC's exit code.

    A profile's own workspace holds just what has been asked of it: the stages of the specs named here.

    Raises:
        UserError: A spec is invalid, or one of these is only to be extended; nothing has been written then.
    """
    own = workspace.root != workspace.home
    names = specs or workspace.default_specs(list(find_specs(workspace.specs)))
    if not names:
        raise UserError("nothing to run: there are no specs")
    compilation = compile_workspace(workspace, names if own else None)
    for name in names:
        if name not in compilation.tables:
            raise UserError(f"specs/{name}.yaml: abstract; run a spec that extends it")
    initialise(workspace.root)
    write(workspace, compilation.files)
    if own:  # the raw data of the project, not of the profile's workspace
        os.environ.setdefault("PFL_DATA", str(raw_data_folder(workspace.home)))
    code = dvc(workspace.root, "--wait-for-lock", "repro", *map(target, names), *([] if specs else ["index"]))
    if code == 0:
        for name in names:
            print(f"\n{_summary(workspace.root, name)}")
    return code


def _summary(root: Path, name: str) -> str:
    """The first part of a report, down to its first section, and where the rest lies."""
    report = root / report_path(name) / "report.md"
    top, _, _ = report.read_text(encoding="utf-8").partition("\n## ")
    times = os.path.relpath(root / timings_path(name))
    return (
        f"{top.strip()}\n\nAll of it: {os.path.relpath(report)}; HTML, LaTeX and CSV beside it. Training times: {times}"
    )


def target(spec_id: str) -> str:
    """The DVC address of a spec's report stage."""
    shard, _, stage = f"stages/{spec_id}".rpartition("/")
    return f"{shard}/dvc.yaml:{stage}"
