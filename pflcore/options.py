"""Options of registered entries: dataclass fields that carry a sentence of help and their bounds.

The same metadata checks a value in Python, becomes the spec's schema, and is printed by ``pfl describe``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pflcore.errors import UserError

_BOUNDS: dict[str, tuple[Callable[[Any, float], bool], str]] = {
    "ge": (lambda value, bound: value >= bound, "at least"),
    "gt": (lambda value, bound: value > bound, "greater than"),
    "le": (lambda value, bound: value <= bound, "at most"),
    "lt": (lambda value, bound: value < bound, "less than"),
}


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[Any, ...] | None = None,
    later: bool = False,
) -> Any:
    """A dataclass field. Types: bool, int, float, str, ``X | None`` and ``tuple[X, ...]`` of those.

    Args:
        default: Left out, the option is required.
        help: One sentence: what it is, its unit, what its edge values mean.
        ge, gt, le, lt: Bounds of a number, or of each number in a tuple.
        choices: The only values allowed.
        later: It was added when there were results already: at its default, which changes nothing, it is left out of a
            run's record, so that their ids stay.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    metadata = {"help": help, "choices": choices, "bounds": bounds, "later": later}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptionInfo:
    """One option as data: what the schema, the listing and the checks need to know."""

    name: str
    type: str  # "int", "float", "str", "bool"
    many: bool  # a tuple of them
    optional: bool  # null is allowed
    required: bool
    default: Any
    help: str
    choices: tuple[Any, ...] | None
    bounds: dict[str, float]
    later: bool = False  # left out of records at its default


def describe_options(cls: type) -> tuple[OptionInfo, ...]:
    """The options of a dataclass in the order of their definition, its own before those of its bases."""
    return _options_of(cls)


@functools.cache  # Python compiles the texts that type hints are each time it is asked for them
def _options_of(cls: type) -> tuple[OptionInfo, ...]:
    hints = typing.get_type_hints(cls)
    own = inspect.get_annotations(cls)
    infos = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name not in own):
        base, many, optional = _parse(hints[field.name], f"{cls.__qualname__}.{field.name}")
        required = field.default is dataclasses.MISSING
        infos.append(
            OptionInfo(
                name=field.name,
                type=base.__name__,
                many=many,
                optional=optional,
                required=required,
                default=None if required else field.default,
                help=field.metadata["help"],
                choices=field.metadata["choices"],
                bounds={key: bound for key, bound in field.metadata["bounds"].items() if bound is not None},
                later=field.metadata["later"],
            )
        )
    return tuple(infos)


def check_options(instance: Any) -> None:
    """Check every option of a dataclass instance. Raises :class:`UserError` that names the option and the bound."""
    for info in describe_options(type(instance)):
        value = getattr(instance, info.name)
        where = f"{getattr(instance, 'name', type(instance).__name__)}.{info.name}"
        if value is None and info.optional:
            continue
        if info.many and not isinstance(value, tuple):
            raise UserError(f"{where} = {value!r} must be a tuple of {info.type}")
        for item in value if info.many else (value,):
            _check_one(where, item, info)


def _check_one(where: str, value: Any, info: OptionInfo) -> None:
    accepted: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "str": (str,), "bool": (bool,)}
    is_bool = isinstance(value, bool) and info.type != "bool"
    if is_bool or not isinstance(value, accepted[info.type]):
        raise UserError(f"{where} = {value!r} must be {info.type}")
    if info.choices is not None and value not in info.choices:
        raise UserError(f"{where} = {value!r} must be one of {', '.join(map(repr, info.choices))}")
    for key, bound in info.bounds.items():
        holds, words = _BOUNDS[key]
        if not holds(value, bound):  # false for NaN as well
            raise UserError(f"{where} = {value!r} must be {words} {bound:g}")


def _parse(hint: Any, where: str) -> tuple[type, bool, bool]:
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        optional = len(arms) < len(typing.get_args(hint))
        hint = arms[0] if len(arms) == 1 else None
    many = typing.get_origin(hint) is tuple
    base = typing.get_args(hint)[0] if many else hint
    if base not in (bool, int, float, str):
        raise TypeError(f"{where}: an option is bool, int, float or str, optional, or a tuple of them")
    return base, many, optional
