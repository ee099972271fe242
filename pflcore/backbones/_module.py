"""Plain modules as backbones: an ``nn.Module`` whose first two arguments are the shape of an input and the classes."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from pflcore.backbones._base import Backbone
from pflcore.options import option
from pflcore.registry import Registry

Class = TypeVar("Class", bound=type)
_FACTS = ("citation", "smoke", "groups", "takes", "predicts")  # that the module may state as attributes of its class


class Backbones(Registry[Backbone]):
    """The registry of backbones, which also takes plain modules."""

    def register(self, cls: Class) -> Class:
        """Register a :class:`Backbone`, or a module as :func:`of_module` takes it, which stays a module."""
        if issubclass(cls, nn.Module):
            super().register(of_module(cls))
            return cls
        registered: Any = super().register(typing.cast("Any", cls))
        return typing.cast("Class", registered)


def of_module(module: type[nn.Module]) -> type[Backbone]:
    """Return a backbone that builds a module, by ``Module(shape, classes, **options)``.

    The module's further arguments, each with its type, are the backbone's options; a default may be an
    :func:`pflcore.options.option`. The attribute ``groups`` of its class says by patterns over state names what belongs
    together; without it every part that the module has directly is a group of its name.
    """
    arguments = list(inspect.signature(module).parameters.values())
    if [one.name for one in arguments[:2]] != ["shape", "classes"]:
        raise TypeError(f"{module.__qualname__}: the first arguments of a backbone's module are (shape, classes)")
    hints = typing.get_type_hints(module.__init__)
    options = [(one.name, hints.get(one.name), _option(one, module)) for one in arguments[2:]]
    if taken := next((name for name, *_ in options if hasattr(Backbone, name)), None):
        raise TypeError(f"{module.__qualname__}: an option cannot be called {taken!r}; every backbone has that")

    def build(self: Backbone, shape: tuple[int, ...], classes: int) -> nn.Module:
        made: nn.Module = module(shape, classes, **{name: getattr(self, name) for name, *_ in options})
        return made

    def patterns(self: Backbone, model: nn.Module) -> Mapping[str, str]:
        parts = dict.fromkeys(name.partition(".")[0] for name in model.state_dict())
        return self.groups or {part: rf"{re.escape(part)}(\.|$)" for part in parts}

    facts = {name: getattr(module, name) for name in _FACTS if hasattr(module, name)}
    named = {"__module__": module.__module__, "__qualname__": module.__qualname__, "__doc__": module.__doc__}
    namespace = {"build": build, "patterns": patterns, **facts, **named}
    return dataclasses.make_dataclass(
        module.__name__, options, bases=(Backbone,), namespace=namespace, frozen=True, kw_only=True
    )


def _option(argument: inspect.Parameter, module: type[nn.Module]) -> Any:
    if isinstance(argument.default, dataclasses.Field):
        return argument.default
    none = argument.default is inspect.Parameter.empty
    return option(dataclasses.MISSING if none else argument.default, help=f"As {module.__name__}() takes it.")
