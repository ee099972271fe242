"""The axes of a grid: what varies, and what each of its values changes in a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pflcore.registry import did_you_mean
from pipeline.spec.draft import Patch, Patcher
from pipeline.spec.parts import label_text
from pipeline.spec.run import COMPONENTS, LISTS, RUN_FIELDS, SETTINGS
from pipeline.spec.yamlfile import Address, Document, show

_AXIS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = ("mean", "std", "quoted", "note", "misprint", "explained")  # columns of published values


@dataclass(frozen=True)
class Axis:
    """What varies: a patch per label.

    Attributes:
        settings: Per label what the value of a component's axis says of other parts of the run; applied after the
            patches of all axes that are not `dotted`.
        dotted: Whether it sets one option of a part, which is applied after all others.
    """

    name: str
    dotted: bool
    patches: dict[str, Patch] = field(default_factory=dict)
    settings: dict[str, Patch] = field(default_factory=dict)


def read_axes(axes: dict[str, Any], patcher: Patcher) -> list[Axis]:
    """Return the axes of a grid, as written.

    Raises:
        UserError: An axis or a label is not well formed or unknown, or two axes set the same thing where one of them
            does so in the settings of a label.
    """
    read = [_read_axis(name, values, patcher) for name, values in axes.items()]
    for axis in read:
        for patch in axis.settings.values():
            for other in read:
                if other is not axis:
                    _check_settings(patch, other, patcher)
    return read


def labelled(values: Any, address: Address, document: Document) -> Iterator[tuple[str, Any, Address]]:
    """Yield label, value and address of each value of an axis. Raises :class:`UserError` for one without a label."""
    for key, value in enumerate(values) if isinstance(values, list) else values.items():
        here = (*address, key)
        named = value["name"] if isinstance(value, dict) and "name" in value else value
        try:
            yield label_text(key if isinstance(values, dict) else named), value, here
        except ValueError:
            raise document.error(here, f"{show(value)} has no label; write `label: value` lines") from None


def check_option(part: str, option: str, address: Address, patcher: Patcher) -> None:
    """Raise :class:`UserError` when no entry of this part of a run has such an option."""
    kinds = [*COMPONENTS, *SETTINGS]
    error = patcher.document.error
    if part in LISTS:
        raise error(address, f"call the axis {part!r}; its values are `label: list` lines")
    if part not in kinds:
        raise error(address, f"unknown part {show(part)} of a run{did_you_mean(part, kinds)}")
    if option == "name":
        raise error(address, f"call the axis {part!r}; its values are names")
    known = patcher.fields.options(part)
    if option not in known:
        raise error(address, f"no {part} has an option {show(option)}{did_you_mean(option, known)}")


def _read_axis(name: str, values: Any, patcher: Patcher) -> Axis:
    address: Address = ("grid", "axes", name)
    part, dot, option = name.partition(".")
    _check_axis(name, values, address, patcher)
    beside = patcher.fields.beside(name) if name in COMPONENTS else []
    axis = Axis(name, bool(dot))
    for label, value, here in labelled(values, address, patcher.document):
        if label in axis.patches:
            raise patcher.document.error(here, f"a second value labelled {show(label)}; write `label: value` lines")
        if dot:
            axis.patches[label] = patcher.read_option(part, option, value, here)
        elif name not in RUN_FIELDS:
            axis.patches[label] = patcher.read(value, here)
        else:
            own, settings = _parted(name, value, beside, here, patcher)
            axis.patches[label] = patcher.read_field(name, own, here)
            axis.settings[label] = patcher.read(settings, here)
    return axis


def _check_axis(name: str, values: Any, address: Address, patcher: Patcher) -> None:
    error = patcher.document.error
    part, dot, option = name.partition(".")
    if not isinstance(values, list | dict) or not values:
        raise error(address, f"{show(values)} must be a list of values or `label: value` lines")
    if dot:
        check_option(part, option, address, patcher)
    elif name not in RUN_FIELDS:
        if not _AXIS_NAME.fullmatch(name) or name in _RESERVED:
            allowed = f"letters, digits, '_', '-', and a name that is none of {', '.join(_RESERVED)}"
            raise error(address, f"{show(name)} cannot name an axis; use {allowed}")
        if isinstance(values, list):
            hint = did_you_mean(name, list(RUN_FIELDS))
            raise error(address, f"no run field, so its values must be `label: patch of a run` lines{hint}")
    elif name in COMPONENTS and isinstance(values, dict) and "name" in values:
        hint = f"a list or `label: {name}` lines belong; write it as [{{name: …}}]"
        raise error((*address, "name"), f"a {name} where {hint}")


def _parted(kind: str, value: Any, beside: list[str], address: Address, patcher: Patcher) -> tuple[Any, dict[str, Any]]:
    """Return a value of a component's axis: the component, and what is stated beside it of the run."""
    if not beside or not isinstance(value, dict):
        return value, {}
    own = {key: item for key, item in value.items() if key not in beside}
    known = ["name", *patcher.fields.options(kind), *beside]
    for key in own:
        name, dot, option = key.partition(".")
        if dot and name in beside:
            raise patcher.document.error((*address, key), f"unknown option; write {name}: {{{option}: …}}")
        if any(near in beside for near in get_close_matches(key, known, n=1)):
            raise patcher.document.error((*address, key), f"unknown option{did_you_mean(key, beside)}")
    return own, {key: item for key, item in value.items() if key in beside}


def _check_settings(patch: Patch, other: Axis, patcher: Patcher) -> None:
    """Check that another axis sets nothing that a label sets beside its component: it would be lost without a word."""
    for theirs in (*other.patches.values(), *other.settings.values()):
        for name, part in patch.values.items():
            if name not in theirs.values:
                continue
            option = None
            if isinstance(part, dict):
                option = min(set(part) & set(theirs.values[name]) - {"name"}, default=None)
                if option is None and ("name" not in part or other.dotted):
                    continue
            address = patcher.place([patch], name, option)
            raise patcher.document.error(
                address, f"the axis {other.name!r} sets this too; leave it to one of them, or write an override"
            )
