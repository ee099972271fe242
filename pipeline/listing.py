"""What is there to choose from, as tables and pages on the terminal: specs, and everything registered."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pflcore.errors import UserError
from pflcore.registry import KINDS, did_you_mean
from pipeline.catalog import Catalog, EntryInfo
from pipeline.specs import find_specs, load_spec
from pipeline.workspace import Workspace, raw_data_folder

PLURALS = {f"{kind}s": kind for kind in KINDS}


def list_kind(what: str, workspace: Workspace, catalog: Catalog, console: Console) -> None:
    """Print the specs, or all entries of a kind (in the plural). Raises :class:`UserError` for anything else."""
    if what == "specs":
        return _list_specs(workspace, catalog, console)
    if what not in PLURALS:
        raise UserError(f"cannot list {what!r}{did_you_mean(what, ['specs', *PLURALS])}")
    kind = PLURALS[what]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("what it is")
    table.add_column({"dataset": "state", "method": "personal · generated"}.get(kind, "options"))
    table.add_column("source" if kind != "dataset" else "licence", overflow="fold")
    for name in catalog.names(kind):
        entry = catalog.entry(kind, name)
        cells = (name, _first_line(entry), _third(kind, entry, workspace.home), _source(kind, entry))
        table.add_row(*map(escape, cells))
    console.print(table)


def describe(name: str, workspace: Workspace, catalog: Catalog, console: Console, kind: str | None = None) -> None:
    """Print all that is known of a registered name. Raises :class:`UserError` for an unknown one."""
    kinds = [kind] if kind else list(KINDS)
    found = [(one, name) for one in kinds if name in catalog.names(one)]
    if not found:
        known = sorted({known for one in kinds for known in catalog.names(one)})
        raise UserError(f"nothing is called {name!r}{did_you_mean(name, known)}")
    for one, _ in found:
        entry = catalog.entry(one, name)
        console.print(f"[bold cyan]{name}[/] · {one} · {_source(one, entry)}\n", highlight=False)
        console.print(entry.doc, markup=False, highlight=False)
        for fact in ("personal", "generated"):
            if one == "method":
                console.print(f"{fact}: {_names(entry.facts.get(fact))}", highlight=False)
        if one == "backbone":
            console.print(f"groups: {_names(list(entry.facts.get('groups', {})))}", highlight=False)
        if one == "dataset":
            console.print(_third(one, entry, workspace.home), highlight=False)
        _print_options(catalog, one, name, console)


def _print_options(catalog: Catalog, kind: str, name: str, console: Console) -> None:
    options = catalog.options(kind, name)
    if not options:
        return
    table = Table(box=None, pad_edge=False, header_style="bold", title="\noptions", title_justify="left")
    for column in ("name", "type", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for option in options:
        type_ = f"list of {option.type}" if option.many else option.type
        choices = f" One of {', '.join(map(str, option.choices))}." if option.choices else ""
        default = "required" if option.required else "null" if option.default is None else str(option.default)
        cells = (option.name, type_ + (" or null" if option.optional else ""), default, option.help + choices)
        table.add_row(*map(escape, cells))
    console.print(table)


def _list_specs(workspace: Workspace, catalog: Catalog, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("spec", "title", "paper"):
        table.add_column(column)
    for name, path in find_specs(workspace.specs).items():
        spec = load_spec(path, workspace.specs, catalog)
        paper = spec.body.paper
        where = ", ".join(filter(None, (paper.name, paper.table))) if paper else ""
        title = "(to be extended)" if spec.abstract else escape(spec.title)
        table.add_row(f"[cyan]{name}[/]", title, escape(where))
    console.print(table)


def _third(kind: str, entry: EntryInfo, home: Path) -> str:
    if kind == "dataset":
        return _state(entry, home)
    if kind == "method":
        return f"{_names(entry.facts.get('personal'))} · {_names(entry.facts.get('generated'))}"
    return ", ".join(option.name for option in entry.options) or "none"


def _state(entry: EntryInfo, home: Path) -> str:
    size = str(entry.facts.get("download_size", ""))
    if size.startswith("none"):
        return "ready"
    folder = raw_data_folder(home) / entry.name
    has_data = folder.is_dir() and any(folder.iterdir())
    return f"found in {folder.name}/" if has_data else f"needs download ({size})"


def _source(kind: str, entry: EntryInfo) -> str:
    return str(entry.facts.get("licence", "")) if kind == "dataset" else entry.citation


def _first_line(entry: EntryInfo) -> str:
    return entry.doc.strip().splitlines()[0]


def _names(groups: object) -> str:
    return ", ".join(map(str, groups)) if isinstance(groups, list | tuple) and groups else "nothing"
