"""What is there to choose from, as tables and pages on the terminal: specs, and everything registered."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pflcore.datasets import DATASETS, Dataset
from pflcore.datasets._base import DOWNLOAD
from pflcore.errors import UserError
from pflcore.registry import KINDS, did_you_mean
from pipeline.spec.catalog import Catalog, EntryInfo
from pipeline.spec.specs import find_specs, load_spec
from pipeline.workspace import Workspace, raw_data_folder

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
        return _list_datasets(workspace, catalog, console)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("what it is")
    table.add_column({"method": "parts", "backbone": "groups"}.get(kind, "options"))
    table.add_column("source", overflow="fold")
    for name in catalog.names(kind):
        entry = catalog.entry(kind, name)
        cells = (name, _first_line(entry), _third(kind, entry), entry.citation)
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
        console.print(f"[bold cyan]{name}[/] · {one} · {escape(entry.citation)}\n", highlight=False)
        console.print(_flowing(entry.doc) + "\n", markup=False, highlight=False)
        for fact, text in _facts(one, entry).items():
            console.print(f"{fact}: {text}", markup=False, highlight=False)
        if one == "dataset":
            _describe_dataset(name, workspace.home, console)
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


def _list_datasets(workspace: Workspace, catalog: Catalog, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "what it is", "state", "size", "licence", "source"):
        table.add_column(column, overflow="fold", style="cyan" if column == "name" else "", no_wrap=column == "name")
    for name in catalog.names("dataset"):
        dataset, entry = DATASETS.create(name), catalog.entry("dataset", name)
        cells = (_first_line(entry), _state(dataset, workspace.home), _size(dataset), dataset.licence, entry.citation)
        table.add_row(name, *map(escape, cells))
    console.print(table)
    console.print(f"\n[dim]Data is looked for in {escape(str(raw_data_folder(workspace.home)))}/<name>/.[/]")


def _describe_dataset(name: str, home: Path, console: Console) -> None:
    dataset = DATASETS.create(name)
    folder = raw_data_folder(home) / name
    kind = "images" if len(dataset.shape) == 3 else "texts"
    shape = "×".join(map(str, dataset.shape))
    facts = {
        "state": _state(dataset, home),
        "samples": f"{_size(dataset)}; {kind} of {shape}, {dataset.classes or 'its own'} classes",
        "attributes": _names(list(dataset.attributes)),
        "licence": dataset.licence,
        "from": dataset.homepage or dataset.download_size,
        "looked for": "; ".join(str(folder / pattern) for pattern in dataset.files) or "comes with a library",
    }
    for key, text in facts.items():
        console.print(f"{key}: {escape(text)}", highlight=False)


def _state(dataset: Dataset, home: Path) -> str:
    if dataset.found(raw_data_folder(home) / dataset.name):
        return "ready"
    return f"needs {'download' if dataset.access == DOWNLOAD else 'folder'}"


def _size(dataset: Dataset) -> str:
    counts = dataset.expected
    samples = "" if counts is None else f"{counts[0]:,}" + (f" + {counts[1]:,}" if counts[1] else "")
    return " · ".join(filter(None, [samples, dataset.download_size.partition(":")[0]]))


def _third(kind: str, entry: EntryInfo) -> str:
    """What is told of an entry in a list, beside its name, its purpose and its source."""
    if kind == "method":
        words = {"stays on the client": "keeps", "generated by the server": "is given", "also exchanged": "also sends"}
        told = [f"{words[fact]} {text}" for fact, text in _facts(kind, entry).items() if text != NOTHING]
        return "; ".join(told) or "shares all"
    if kind == "backbone":
        return _facts(kind, entry)["groups"]
    return ", ".join(option.name for option in entry.options) or "none"


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
    """A docstring whose paragraphs are one line each, for the terminal to break; indented lines stay as they are."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", doc)


def _first_line(entry: EntryInfo) -> str:
    return entry.doc.strip().splitlines()[0]


def _names(groups: object) -> str:
    return ", ".join(map(str, groups)) if isinstance(groups, list | tuple) and groups else NOTHING
