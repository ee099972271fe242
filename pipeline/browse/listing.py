"""What is there to choose from, as tables and pages on the terminal: specs, and everything registered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pflcore.errors import UserError
from pflcore.registry import KINDS, did_you_mean
from pipeline.spec.catalog import Catalog, EntryInfo
from pipeline.spec.specs import find_specs, load_spec
from pipeline.workspace import Workspace

NOTHING = "nothing"
PLURALS = {package.rpartition(".")[2]: kind for kind, (package, _) in KINDS.items()}


def list_kind(what: str, workspace: Workspace, catalog: Catalog, console: Console) -> None:
    """Print the specs, or all entries of a kind (in the plural). Raises :class:`UserError` for anything else."""
    if what == "specs":
        return _list_specs(workspace, catalog, console)
    if what not in PLURALS:
        raise UserError(f"cannot list {what!r}{did_you_mean(what, ['specs', *PLURALS])}")
    kind = PLURALS[what]
    if kind == "dataset":
        from pipeline.browse.dataset_view import list_datasets

        return list_datasets(workspace, catalog, console)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("what it is")
    table.add_column({"method": "parts", "backbone": "groups"}.get(kind, "options"))
    table.add_column("source", overflow="fold")
    for name in catalog.names(kind):
        entry = catalog.entry(kind, name)
        cells = (name, entry.summary, _third(kind, entry), _source(entry))
        table.add_row(*map(escape, cells))
    console.print(table)


def describe(
    name: str,
    workspace: Workspace,
    catalog: Catalog,
    console: Console,
    kind: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Print all that is known of a registered name or a group of settings. Raises :class:`UserError` for others.

    Args:
        options: Of a dataset, of which other options need other files.
    """
    if not kind and name in catalog.settings:
        console.print(f"[bold cyan]{name}[/] · settings\n\n{escape(catalog.settings[name].summary)}", highlight=False)
        return _print_options(catalog, name, name, console)
    possible = [kind] if kind else list(KINDS)
    kinds = [one for one in possible if name in catalog.names(one)]
    if not kinds:
        known = sorted({known for one in possible for known in catalog.names(one)})
        raise UserError(f"nothing is called {name!r}{did_you_mean(name, known)}")
    if options is not None:
        from pflcore.datasets import DATASETS

        DATASETS.create(name, **options)  # refused before anything is printed
    for one in kinds:
        entry = catalog.entry(one, name)
        console.print(f"[bold cyan]{name}[/] · {one} · {escape(_source(entry))}\n", highlight=False)
        console.print(_flowing(entry.doc) + "\n", markup=False, highlight=False)
        for fact, text in _facts(one, entry).items():
            console.print(f"{fact}: {text}", markup=False, highlight=False)
        if one == "dataset":
            from pipeline.browse.dataset_view import show_facts

            show_facts(name, workspace.home, console, options)
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


def _third(kind: str, entry: EntryInfo) -> str:
    """What is told of an entry in a list, beside its name, its purpose and its source."""
    if kind == "method":
        words = {"stays on the client": "keeps", "generated by the server": "is given", "also exchanged": "also sends"}
        parts = [f"{words[fact]} {text}" for fact, text in _facts(kind, entry).items() if text != NOTHING]
        return "; ".join(parts) or "shares all"
    if kind == "backbone":
        return _facts(kind, entry)["groups"]
    return ", ".join(option.name for option in entry.options) or "none"


def _source(entry: EntryInfo) -> str:
    """Where an entry is from: a publication; a file of the study or a package; or both."""
    whose = "own" if entry.origin.endswith(".py") else "package"
    return " · ".join(filter(None, (entry.origin and f"{whose}: {entry.origin}", entry.citation)))


def _facts(kind: str, entry: EntryInfo) -> dict[str, str]:
    """What is told of an entry on its page, beside its docstring and its options."""
    facts = entry.facts
    if kind == "method":
        kept = [*facts.get("personal", []), *facts.get("keeps", [])]
        return {
            "stays on the client": _names(kept),
            "generated by the server": _names(facts.get("generated")),
            "also exchanged": _names(facts.get("exchanges")),
        }
    if kind == "backbone":
        return {"groups": _names(list(facts.get("groups", {}))), "takes": str(facts["takes"])}
    return {}


def _flowing(doc: str) -> str:
    """A docstring whose paragraphs and items are one line each, for the terminal to break.

    An item begins with a hyphen, and its further lines are indented; other indented lines stay as they are.
    """
    parts = (re.sub(r"\n(?!- ) *", " ", part) if part.startswith("- ") else part for part in doc.split("\n\n"))
    return re.sub(r"(?<=\S)\n(?!- )(?=\S)", " ", "\n\n".join(parts))


def _names(groups: object) -> str:
    return ", ".join(map(str, groups)) if isinstance(groups, list | tuple) and groups else NOTHING
