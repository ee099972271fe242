"""The base class of backbones, which build a module and name the groups of its entries; plain modules as backbones."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from pflcore.backbones._pretrained import copy_weights, read_weights
from pflcore.data.samples import ARRAYS, IMAGES, TEXT
from pflcore.errors import UserError
from pflcore.groups import Groups
from pflcore.options import option
from pflcore.registry import Entry, Registry, registry_of
from pflcore.seeds import torch_seed

Class = TypeVar("Class", bound=type)
Extend = Callable[[nn.Module], Mapping[str, str]]
_KINDS = {1: TEXT, 2: ARRAYS, 3: IMAGES}
_FACTS = ("citation", "smoke", "groups", "takes", "predicts")  # attributes that a plain module's class can state


@dataclass(frozen=True, kw_only=True)
class Backbone(Entry):
    """A model architecture. Subclasses define :meth:`build` and :attr:`groups`, and :attr:`takes` if not images."""

    groups: ClassVar[dict[str, str]] = {}  # group → pattern over state names
    # "images", floats (batch, channels, height, width); "text", character numbers (batch, length); "arrays", floats
    # (batch, channels, …); or several, such as "images or arrays".
    takes: ClassVar[str] = "images"
    predicts: ClassVar[str] = "classes"  # or "boxes" for a detector
    pretrained: str | None = option(
        None,
        later=True,
        help="File of weights to begin with: safetensors, or a state dict of torch.save, named as in the model; in a "
        "spec relative to the project. A classifier of other classes begins anew. null is from scratch.",
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a freshly initialised module that maps a batch of inputs to logits.

        `shape` is the shape of one input: (channels, height, width) of an image, (length,) of a text, (channels, …) of
        an array. Logits are (batch, classes). For text, whose classes are characters, they predict the next character
        at every position: (batch, length, classes). A detector's module has an attribute ``task``, a
        :class:`pflcore.detection.task.Detection`, and returns the predictions that this task expects.
        """
        raise TypeError(f"backbone {type(self).__name__} does not define build()")

    def create(
        self, shape: tuple[int, ...], classes: int, seed: int, extend: Extend | None = None, kind: str = ""
    ) -> tuple[nn.Module, Groups]:
        """Return a model, initialised from `seed` or from pretrained weights, and the groups of its entries.

        Notes on pretrained weights are the module's attribute ``notes``. `extend` adds modules to the model and returns
        the patterns of their groups; its own random stream leaves other initial weights unchanged. By default `kind` is
        text, arrays or images for one, two or three dimensions; :class:`UserError` if the backbone does not take it.
        """
        kind = kind or _KINDS[len(shape)]
        if kind not in self.takes:
            backbones = registry_of("backbone")
            *others, last = [name for name in backbones.names() if kind in backbones.get(name).takes]
            takes = f"backbone {getattr(self, 'name', type(self).__name__)} takes {self.takes}"
            dataset = "is text" if kind == TEXT else f"has {kind}"
            remedy = f"{', '.join(others)} or {last}" if others else last
            raise UserError(f"{takes}, the dataset {dataset}; use {remedy}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "init"))
            model = self.build(shape, classes)
            patterns = self.patterns(model)
            if self.pretrained:
                head = [name for name in model.state_dict() if "head" in patterns and re.match(patterns["head"], name)]
                where = f"backbone {self.name}: {self.pretrained}"
                note = copy_weights(model, read_weights(Path(self.pretrained)), head, where)
                setattr(model, "notes", (f"{self.pretrained}: {note}",) if note else ())  # noqa: B010 - as in _timm
            torch.manual_seed(torch_seed(seed, "extension"))
            added = extend(model) if extend else {}
        return model, Groups.assign(model, {**patterns, **added})

    def patterns(self, model: nn.Module) -> Mapping[str, str]:
        """Return group → pattern over state names, for a module from :meth:`build`."""
        return self.groups


class Backbones(Registry[Backbone]):
    """The registry of backbones, which also accepts plain modules."""

    def register(self, cls: Class) -> Class:
        """Register a :class:`Backbone`, or a module through :func:`backbone_of`; a module is returned unchanged."""
        if issubclass(cls, nn.Module):
            super().register(backbone_of(cls))
            return cls
        registered: Any = super().register(typing.cast("Any", cls))
        return typing.cast("Class", registered)


def backbone_of(module: type[nn.Module]) -> type[Backbone]:
    """Return a backbone that builds a module by ``Module(shape, classes, **options)``.

    The module's further arguments, each with its type, are the backbone's options; a default can be an
    :func:`pflcore.options.option`. The attribute ``groups`` of its class maps groups to patterns over state names.
    Without it, every direct part of the module is a group with its name.
    """
    arguments = list(inspect.signature(module).parameters.values())
    if [argument.name for argument in arguments[:2]] != ["shape", "classes"]:
        raise TypeError(f"{module.__qualname__}: the first arguments of a backbone's module are (shape, classes)")
    hints = typing.get_type_hints(module.__init__)
    options = [(argument.name, hints.get(argument.name), _option(argument, module)) for argument in arguments[2:]]
    for name, *_ in options:
        if hasattr(Backbone, name):
            raise TypeError(f"{module.__qualname__}: an option cannot be called {name!r}; every backbone has that")

    def build(self: Backbone, shape: tuple[int, ...], classes: int) -> nn.Module:
        return module(shape, classes, **{name: getattr(self, name) for name, *_ in options})

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
    required = argument.default is inspect.Parameter.empty
    return option(dataclasses.MISSING if required else argument.default, help=f"As {module.__name__}() takes it.")
