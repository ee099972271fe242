"""Tables and pages about specs and registered entries on the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from pflcore.errors import UserError
from pflcore.registry import KINDS, did_you_mean, module_of
from pipeline.browse import language, plain_table
from pipeline.progress import warn
from pipeline.spec.catalog import Catalog, EntryInfo
from pipeline.spec.specs import find_specs, load_spec
from pipeline.workspace import Workspace

PLURALS = {package.rpartition(".")[2]: kind for kind, (package, _) in KINDS.items()}


def list_kind(plural: str, workspace: Workspace, catalog: Catalog, console: Console) -> None:
    """Print all specs, metrics, figures, or entries of a kind (in the plural). Raises :class:`UserError` for others."""
    kind = PLURALS.get(plural, "")
    warn(f"skipped: {problem}" for problem in catalog.broken.get(kind, {}).values())
    if kind == "dataset":
        from pipeline.browse.dataset_view import list_datasets

        return list_datasets(workspace, catalog, console)
    if plural in ("metrics", "figures"):
        table = plain_table("name", "what it is")
        for row in language.metrics() if plural == "metrics" else language.figures(catalog):
            table.add_row(*map(escape, row))
    elif plural == "specs":
        table = plain_table("spec", "title", "paper")
        skipped: dict[str, str] = {}
        for name, path in find_specs(workspace.specs, skipped).items():
            try:
                spec = load_spec(path, workspace.specs, catalog)
            except UserError as error:
                skipped[name] = str(error)
                continue
            paper = spec.body.paper
            source = ", ".join(filter(None, (paper.name, paper.table))) if paper else ""
            title = "(to be extended)" if spec.body.abstract else escape(spec.title)
            table.add_row(f"[cyan]{name}[/]", title, escape(source))
        warn(f"skipped: {problem}" for problem in skipped.values())
    elif kind:
        heading = {"method": "parts", "backbone": "groups"}.get(kind, "options")
        table = plain_table("name", "what it is", heading, "source")
        for name in catalog.names(kind):
            entry = catalog.entry(kind, name)
            facts, details = _facts(kind, entry), ", ".join(option.name for option in entry.options) or "none"
            if kind == "method":
                details = "; ".join(f"{fact}: {text}" for fact, text in facts.items() if text) or "shares all"
            details = facts.get("groups", details)
            table.add_row(name, *map(escape, (entry.summary, details, _source(entry))))
    else:
        raise UserError(f"cannot list {plural!r}{did_you_mean(plural, ['specs', 'metrics', 'figures', *PLURALS])}")
    console.print(table)


def describe(
    name: str, workspace: Workspace, catalog: Catalog, console: Console, kind: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Print a page about a registered entry, a group of settings or a part of specs. `options` are those of a dataset,
    which may then need other files. Raises :class:`UserError` for an unknown name or wrong options."""
    if not kind and name in catalog.settings:
        console.print(f"[bold cyan]{name}[/] · settings\n\n{escape(catalog.settings[name].summary)}", highlight=False)
        return _print_options(catalog, name, name, console)
    if not kind and name in ("metric", "figure"):
        return list_kind(f"{name}s", workspace, catalog, console)
    possible = [kind] if kind else list(KINDS)
    catalog.check_part(name, possible)
    kinds = [entry_kind for entry_kind in possible if name in catalog.names(entry_kind)]
    parts = () if kind else language.PARTS
    if not kinds and name not in parts:
        names = {name for entry_kind in possible for name in catalog.names(entry_kind)}
        raise UserError(f"nothing is called {name!r}{did_you_mean(name, sorted({*names, *parts}))}")
    if options is not None:
        from pflcore.datasets import DATASETS

        DATASETS.create(name, **options)  # raises an error before anything is printed
    if name in parts:
        table = plain_table("name", "takes", "default", "meaning")
        for key in language.keys_of(name, catalog):
            table.add_row(*map(escape, key))
        console.print(f"[bold cyan]{name}[/] · a part of specs\n", highlight=False)
        console.print(table)
        if kinds:  # an entry has the same name
            console.print()
    for entry_kind in kinds:
        entry = catalog.entry(entry_kind, name)
        console.print(f"[bold cyan]{name}[/] · {entry_kind} · {escape(_source(entry))}\n", highlight=False)
        console.print(_unwrap(entry.doc) + "\n", markup=False, highlight=False)
        code = entry.origin or module_of(entry_kind, name).replace(".", "/") + ".py"
        for fact, text in {"code": code, **_facts(entry_kind, entry)}.items():
            console.print(f"{fact}: {text or 'nothing'}", markup=False, highlight=False)
        if entry_kind == "dataset":
            from pipeline.browse.dataset_view import show_facts

            show_facts(name, workspace.home, console, options)
        _print_options(catalog, entry_kind, name, console)


def _print_options(catalog: Catalog, kind: str, name: str, console: Console) -> None:
    table = plain_table("option", "type", "default", "meaning")
    for option in catalog.options(kind, name):
        type_ = ("list of " if option.many else "") + option.type + (" or null" if option.optional else "")
        choices = f" One of {', '.join(map(str, option.choices))}." if option.choices else ""
        default = "required" if option.required else "null" if option.default is None else str(option.default)
        table.add_row(*map(escape, (option.name, type_, default, option.help + choices)))
    if table.row_count:
        console.print("", table)


def _source(entry: EntryInfo) -> str:
    """Return the source of an entry: a publication, a file of the study or a package, or both."""
    origin_kind = "own" if entry.origin.endswith(".py") else "package"
    return " · ".join(filter(None, (entry.origin and f"{origin_kind}: {entry.origin}", entry.citation)))


def _facts(kind: str, entry: EntryInfo) -> dict[str, str]:
    """Return facts about a method or a backbone that its docstring and its options do not have."""
    facts = entry.facts
    if kind == "backbone":
        return {"groups": ", ".join(facts["groups"]), "takes": str(facts["takes"])}
    if kind != "method":
        return {}
    kept_groups = [*facts.get("personal", []), *facts.get("keeps", [])]
    groups_of = {"stays on the client": kept_groups, "generated by the server": facts.get("generated")}
    groups_of["also exchanged"] = facts.get("exchanges")
    return {fact: ", ".join(map(str, groups or [])) for fact, groups in groups_of.items()}


def _unwrap(doc: str) -> str:
    """Return a docstring with each paragraph and item (``- …``) on one line; other indented lines stay as they are."""
    parts = (re.sub(r"\n(?!- ) *", " ", part) if part.startswith("- ") else part for part in doc.split("\n\n"))
    return re.sub(r"(?<=\S)\n(?!- )(?=\S)", " ", "\n\n".join(parts))
