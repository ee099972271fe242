"""``pfl compare``: two specs, or one at two commits, cell by cell: what differs beyond chance, and what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pflcore.errors import UserError
from pflcore.registry import did_you_mean
from pipeline.compile.compiler import compile_workspace
from pipeline.dvc.program import locked_stages
from pipeline.report.drawing.sections import NO_VALUE
from pipeline.report.pages.render import html
from pipeline.report.pages.study import put
from pipeline.report.pages.unlike import settings_of
from pipeline.report.table.apart import told_apart
from pipeline.report.table.cells import Cell
from pipeline.report.table.printed import format_value, signed
from pipeline.report.table.results import Results
from pipeline.results.revision import Revision, at_commit, code_of
from pipeline.spec.specs import find_specs
from pipeline.workspace import Workspace, shard_path

PAGE = "reports/compare.html"

SAME, DIFFERS, CHANCE = "the same", "differs", "within noise"
ONE_SEED, ONE_SIDE, NOT_RUN = "one seed", "on one side only", "not run"
_FACTS = {
    "dataset_hash": "other data",
    "partition_hash": "another partition",
    "torch": "another PyTorch",
    "device": "another device",
}


@dataclass(frozen=True)
class Compared:
    """A cell on both sides.

    Attributes:
        verdict: One of the words above; `DIFFERS` and `CHANCE` are by paired seeds, at 5 % over all cells.
        why: What was changed between its runs, in words; "" where nothing was.
    """

    cell: str
    first: str
    second: str
    difference: str
    verdict: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """Two sides with what they have in common."""

    first: Revision
    second: Revision
    cells: list[Compared]

    @property
    def words(self) -> str:
        """``12 cells: 8 the same, 3 within noise, 1 differs``."""
        counts = {verdict: sum(cell.verdict == verdict for cell in self.cells) for verdict in _VERDICTS}
        told = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
        return f"{len(self.cells)} cells: {told}"


_VERDICTS = (SAME, CHANCE, DIFFERS, ONE_SEED, ONE_SIDE, NOT_RUN)
_SHOWN = (DIFFERS, ONE_SEED, CHANCE, ONE_SIDE, SAME, NOT_RUN)  # what is of interest first


def compare(workspace: Workspace, one: str, other: str | None) -> Comparison:
    """Compare two sides, each a spec, or a spec as it was at a commit: ``quickstart@HEAD~3``.

    Args:
        other: None is the first side's spec as it is now.

    Raises:
        UserError: There is no such spec or commit, both sides are one, or they have no cells in common.
    """
    other = one.partition("@")[0] if other is None else other
    if one == other:
        raise UserError(f"{one}: both sides are the same; name another spec, or a commit as in {one}@HEAD~1")
    with TemporaryDirectory() as folder:
        first, second = (
            _side(workspace, word, Path(folder) / name) for word, name in ((one, "first"), (other, "second"))
        )
        comparison = Comparison(first, second, _cells(first, second))
        put(workspace.root / PAGE, html("compare.html.j2", comparison=comparison, verdicts=_SHOWN))
        return comparison


def _side(workspace: Workspace, word: str, scratch: Path) -> Revision:
    spec, _, commit = word.partition("@")
    if commit:
        return at_commit(workspace, spec, commit, scratch)
    known = list(find_specs(workspace.specs))
    if spec not in known:
        raise UserError(f"unknown spec {spec!r}{did_you_mean(spec, known)}")
    compilation = compile_workspace(workspace, [spec])
    table = compilation.table(spec)
    locked = locked_stages(workspace.root / shard_path(federation) for federation in set(table.runs.values()))
    code = {
        run: code_of(
            {name.partition(":")[2]: stage for name, stage in locked.items() if name.startswith(f"{federation}:")}, run
        )
        for run, federation in table.runs.items()
    }
    return Revision(spec, Results.read(table, compilation.every_run, workspace.root), code)


def _cells(first: Revision, second: Revision) -> list[Compared]:
    axes = [axis for axis in first.results.table.axes if axis in second.results.table.axes]
    left, right = (_by_labels(side, axes) for side in (first, second))
    if not left.keys() & right.keys():
        raise UserError(f"{first.name} and {second.name} have no cell in common")
    both = [key for key in left if key in right]
    apart = dict(zip(both, told_apart([(left[key].by_seed, right[key].by_seed) for key in both]), strict=True))
    decimals = first.results.table.decimals
    compared = []
    for key in dict.fromkeys([*left, *right]):
        one, other = left.get(key), right.get(key)
        if one is None or other is None:
            compared.append(Compared(", ".join(key), _shown(one, decimals), _shown(other, decimals), "", ONE_SIDE, ""))
            continue
        compared.append(_compared(", ".join(key), one, other, apart[key], _why(one, other, first, second), decimals))
    return compared


def _by_labels(side: Revision, axes: list[str]) -> dict[tuple[str, ...], Cell]:
    """The cells by their labels on the axes that both sides have; of other axes there has to be one label."""
    found: dict[tuple[str, ...], Cell] = {}
    for cell in side.results.cells:
        key = tuple(cell.labels[axis] for axis in axes)
        if key in found:
            others = [axis for axis in cell.labels if axis not in axes]
            raise UserError(
                f"{side.name}: several cells for {', '.join(key)}; the other side has no axis {', '.join(others)}"
            )
        found[key] = cell
    return found


def _compared(name: str, one: Cell, other: Cell, apart: bool | None, why: str, decimals: int) -> Compared:
    before, after = (_shown(cell, decimals) for cell in (one, other))
    if not one.obtained or not other.obtained:
        return Compared(name, before, after, "", ONE_SIDE if one.obtained or other.obtained else NOT_RUN, why)
    if one.by_seed == other.by_seed and one.obtained == other.obtained:
        verdict = SAME
    elif apart is None:
        verdict = ONE_SEED
    else:
        verdict = DIFFERS if apart else CHANCE
    return Compared(name, before, after, signed(other.obtained.mean - one.obtained.mean, decimals), verdict, why)


def _shown(cell: Cell | None, decimals: int) -> str:
    return format_value(cell.obtained, decimals) if cell and cell.obtained else NO_VALUE


def _why(one: Cell, other: Cell, first: Revision, second: Revision) -> str:
    """What was changed between the runs of a cell, seed by seed."""
    pairs = _pairs(one, other, first.results, second.results)
    reasons: dict[str, None] = {}
    for mine, theirs in pairs:
        a, b = first.results.runs[mine], second.results.runs[theirs]
        before, after = settings_of(a.resolved), settings_of(b.resolved)
        for setting in dict.fromkeys([*before, *after]):
            if before.get(setting) != after.get(setting):
                reasons[f"{setting}: {before.get(setting, 'its default')} → {after.get(setting, 'its default')}"] = None
        changed = {
            name
            for name in {*first.code.get(mine, {}), *second.code.get(theirs, {})}
            if first.code.get(mine, {}).get(name) != second.code.get(theirs, {}).get(name)
        }
        if changed and first.code.get(mine) and second.code.get(theirs):
            reasons[f"other code: {', '.join(sorted(changed))}"] = None
        if a.facts and b.facts:
            reasons |= {words: None for fact, words in _FACTS.items() if a.facts.get(fact) != b.facts.get(fact)}
    return "; ".join(reasons)


def _pairs(one: Cell, other: Cell, first: Results, second: Results) -> list[tuple[str, str]]:
    """The runs of a cell on both sides that have the same seed."""
    theirs: Mapping[int, str] = {second.runs[run].resolved.seed: run for run in other.runs}
    return [(run, theirs[seed]) for run in one.runs if (seed := first.runs[run].resolved.seed) in theirs]
