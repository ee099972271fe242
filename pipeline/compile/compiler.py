"""The compiler: specs → resolved runs and tables → stage files, as text, deterministically.

Nothing here touches the disk except to read specs and code; :mod:`pipeline.compile.generated` writes the result.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath

from pflcore.errors import UserError
from pipeline.compile.compilation import Compilation
from pipeline.compile.emitter import Emitter
from pipeline.compile.fingerprint import Code
from pipeline.compile.stage_code import untested
from pipeline.ledger import Ledger
from pipeline.spec.catalog import Catalog, load_catalog
from pipeline.spec.resolve import resolve
from pipeline.spec.selection import read_selection
from pipeline.spec.specs import find_specs, load_spec
from pipeline.workspace import PARTITION_REPORTS, Workspace, report_path

# Folders below stages/ and reports/ that the compiler uses itself.
RESERVED = ("data", "federations", "kept", "papers", "partitions", "selections", "tables", "weights")


def compile_workspace(
    workspace: Workspace, only: list[str] | None = None, wanted: Collection[str] | None = None, *, ledger: bool = True
) -> Compilation:
    """Compile the specs that are selected in a workspace, or `only` some, selected or not.

    Specs that are not `wanted` may be invalid, and are skipped then; None wants all. Runs that the workspace's ledger
    holds are taken from there, unless it is not to be used. Raises :class:`UserError` for an invalid spec, and for a
    kept result that cannot be trusted.
    """
    catalog = load_catalog(workspace.home)
    specs = find_specs(workspace.specs)
    selection = read_selection(workspace, list(specs))
    compilation = Compilation()
    for name in selection.compiled if only is None else only:
        try:
            _add_spec(compilation, name, specs[name], workspace, catalog)
        except UserError as error:
            if wanted is None or name in wanted:
                raise
            compilation.skipped[name] = str(error)
    for name in compilation.tables:  # a report is a folder, and DVC allows no output inside of another
        for parent in map(str, PurePosixPath(name).parents):
            if parent in compilation.tables:
                message = f"its report would lie inside that of specs/{parent}.yaml; rename one of them"
                raise UserError(f"specs/{name}.yaml: {message}")
    defaults = [name for name in selection.default if name in compilation.tables]
    code = Code(source_folder(), known=workspace.home / ".pfl" / "fingerprints.json")
    results = Ledger(workspace.root) if ledger else None
    Emitter(compilation, code, catalog, workspace).emit(defaults, results, selection.watching)
    compilation.untested = untested(code)
    code.remember()
    return compilation


def source_folder() -> Path:
    """Return the folder that holds the packages this process runs."""
    return Path(__file__).parents[2]


def _add_spec(compilation: Compilation, name: str, path: Path, workspace: Workspace, catalog: Catalog) -> None:
    if name.rpartition("/")[2] == "dvc":
        raise UserError(f"specs/{name}.yaml: DVC takes every dvc.yaml for a file of its own; rename it")
    spec = load_spec(path, workspace.specs, catalog)
    if spec.abstract:
        return
    folder = name.split("/")[0]
    if folder in RESERVED and ("/" in name or report_path(name) == PARTITION_REPORTS):
        what = "folder of specs" if "/" in name else "spec"
        raise UserError(f"specs/{name}.yaml: a {what} cannot be called {folder!r}; rename it")
    resolved = resolve(spec, catalog, workspace.profile)
    assert resolved.table is not None  # only an abstract spec has none
    compilation.tables[name] = resolved.table
    if resolved.table.counted:
        compilation.counted |= {run.id: run for run in resolved.runs}
        return
    for run in resolved.runs:
        compilation.runs.setdefault(run.id, run)
        known = compilation.resources.get(run.id, spec.body.resources)
        compilation.resources[run.id] = known.at_least(spec.body.resources)
    compilation.selections |= resolved.selections
    compilation.weights = resolved.weights | compilation.weights
    compilation.slots += len(resolved.runs)
