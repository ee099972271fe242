"""Variants of a spec: a file that extends it, with settings of other values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pflcore.errors import UserError
from pflcore.files import write_text
from pflcore.registry import did_you_mean
from pipeline.compile.compiler import compile_workspace
from pipeline.compile.fingerprint import text_hash
from pipeline.compile.generated import to_yaml
from pipeline.spec.catalog import Catalog, load_catalog
from pipeline.spec.grid import labelled_values
from pipeline.spec.run import COMPONENTS
from pipeline.spec.selection import VARIANTS
from pipeline.spec.specs import Spec, find_specs, load_spec
from pipeline.spec.yamlfile import parse_setting
from pipeline.workspace import Workspace

MAX_NAME = 100


def write_variant(workspace: Workspace, base: str, words: Sequence[str]) -> str:
    """Write the spec that extends `base` with settings such as ``training.rounds=20``; return its name.

    Raises :class:`UserError` for an invalid setting; nothing is written then.
    """
    catalog = load_catalog(workspace.home)
    spec = load_spec(find_specs(workspace.specs, {})[base], workspace.specs, catalog)
    overrides = [_override(spec, catalog, word) for word in words]
    title = f"{spec.title}; {', '.join(words)}"
    body = {"extends": f"../{base}.yaml", "title": title, "grid": {"overrides+": overrides}}
    name = f"{VARIANTS}/{_name(base, words)}"
    path, label = workspace.specs / f"{name}.yaml", f"specs/{name}.yaml"
    old_text = path.read_text(encoding="utf-8") if path.is_file() else None
    if old_text is not None and not _digest_matches(old_text):
        raise UserError(f"{label}: has been edited; type `pfl run {name}`, or remove the file")
    write_text(path, _with_digest(base, to_yaml(body)))
    try:
        paper = Workspace.find(workspace.home)  # another profile may shrink what is set
        compilation = compile_workspace(paper, [base, name], [base, name])
        if compilation.table(base).runs == compilation.table(name).runs:
            raise UserError(f"--set {' '.join(words)}: changes no run of {base}")
    except BaseException as error:
        if old_text is None:
            path.unlink()
        else:
            write_text(path, old_text)
        if not isinstance(error, UserError):
            raise
        address = rf"^{re.escape(label)}:\d+: grid\.overrides\[\d+\]\.set\."
        raise UserError(re.sub(address, "--set ", str(error))) from None
    return name


def _with_digest(base: str, body: str) -> str:
    """Return a spec file whose first line has a hash of the rest, which shows whether it was edited later."""
    return f"# {text_hash(body)[:8]}: written by `pfl run {base} --set …`; it can be edited.\n{body}"


def _digest_matches(text: str) -> bool:
    head, _, body = text.partition("\n")
    return head.startswith(f"# {text_hash(body)[:8]}: ")


def _override(spec: Spec, catalog: Catalog, word: str) -> dict[str, Any]:
    """Return a setting as an override of all runs, or of those that have such an option."""
    key, value = parse_setting(word, "SETTING=VALUE, such as training.rounds=20")
    tune = spec.body.tune
    if tune and any(key in space for space in (tune.space, *(override.space for override in tune.also))):
        raise UserError(f"--set {key}: {spec.id} tunes it, so the tuned value would replace this one")
    part, dot, option = key.partition(".")
    if not dot:
        return {"when": {}, "set": {part: value}}
    return {"when": _when(spec, catalog, part, option), "set": {part: {option: value}}}


def _when(spec: Spec, catalog: Catalog, part: str, option: str) -> dict[str, list[str]]:
    """Return the labels whose entries have an option, if the part is an axis and other entries lack it; else {}."""
    grid, options = spec.body.grid, dict[str, list[str]]()
    if part not in COMPONENTS or part not in grid.axes:
        return {}
    for label, value, _ in labelled_values(grid.axes[part], ("grid", "axes", part), spec.document):
        updates = isinstance(value, dict) and "name" not in value
        entry = grid.base.get(part) if updates else value
        name = entry["name"] if isinstance(entry, dict) else entry
        if label in grid.only.get(part, [label]) and name in catalog.names(part):
            options[label] = [info.name for info in catalog.options(part, name)]
    with_option = [label for label, names in options.items() if option in names]
    if not with_option:
        hint = did_you_mean(option, sorted(set().union(*options.values())))
        raise UserError(f"--set {part}.{option}: no {part} of {spec.id} has this option{hint}")
    return {part: with_option} if len(with_option) < len(options) else {}


def _name(base: str, words: Sequence[str]) -> str:
    """Return a readable and unique name for the file of a variant."""
    text = "-".join([base, *words])
    name = re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-.")
    if len(name) > MAX_NAME or name != re.sub("[/= ]", "-", text):
        name = f"{name[:MAX_NAME]}-{text_hash(text)[:8]}"
    return name
