"""Named groups of model state: the one mechanism behind shared, personal and generated parts.

A backbone defines its groups (``patch_embed``, ``attention.qkv``, ``norm``, ``head``, …) by patterns over state names.
A method says which groups are personal or generated; everything else is shared. ``attention`` selects every group
below it (``attention.qkv``, ``attention.out``), and ``all`` the whole model. A name that is not a group can be a module
(``blocks.-1`` is the last block of a Transformer) or one entry (``conv1_norm.weight``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from pflcore.errors import UserError

Tensors = dict[str, Tensor]
ALL = "all"


@dataclass(frozen=True)
class Groups:
    """Every state entry of one model (parameters and buffers) assigned to exactly one group."""

    group_of: Mapping[str, str]  # state name → group name, in the model's order
    parameters: frozenset[str]  # entries that gradients train; the others are buffers, or fixed
    fixed: frozenset[str] = frozenset()  # parameters that are never trained; they have no role and never differ

    @classmethod
    def assign(cls, model: nn.Module, patterns: Mapping[str, str]) -> Groups:
        """Match each state name against `patterns` (group → regular expression, anchored at the start). Raises
        ``TypeError`` if a name matches no group or several, because the backbone's patterns are wrong then, or if two
        names are of one tensor, which could not belong to one group each."""
        group_of, where = {}, type(model).__name__
        for name in model.state_dict():
            matches = [group for group, pattern in patterns.items() if re.match(pattern, name)]
            if len(matches) != 1:
                raise TypeError(f"{where}: state {name!r} matches {matches or 'no group'}; need one group")
            group_of[name] = matches[0]
        parameters = frozenset(name for name, _ in model.named_parameters())
        for name, _ in model.named_parameters(remove_duplicate=False):
            if name not in parameters:
                raise TypeError(f"{where}: state {name!r} is tied to an earlier one; give it its own tensor")
        return cls(group_of, parameters)

    def training(self, names: Iterable[str]) -> Groups:
        """Return these groups with only the parameters in `names` trained. Raises like :meth:`select`."""
        trained = self.parameters & self.select(names)
        return replace(self, parameters=trained, fixed=self.fixed | (self.parameters - trained))

    def names(self) -> list[str]:
        """Return the names of the groups, in the model's order."""
        return list(dict.fromkeys(self.group_of.values()))

    def select(self, names: Iterable[str]) -> frozenset[str]:
        """Return the state names selected by `names`, which are names of groups, of modules, or of single entries.
        Raises :class:`UserError` for a name that selects nothing."""
        chosen: set[str] = set()
        for name in names:
            prefix = f"{name}."
            entries = {entry for entry, group in self.group_of.items() if name == ALL or f"{group}.".startswith(prefix)}
            if not entries:
                prefix = f"{self._positive_index(name)}."
                entries = {entry for entry in self.group_of if f"{entry}.".startswith(prefix)}
            if not entries:
                paths = [entry.split(".")[:-1] for entry in self.group_of]
                modules = [".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)]
                near = difflib.get_close_matches(name, dict.fromkeys([*self.names(), *modules]), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                groups = ", ".join(self.names())
                raise UserError(f"the backbone has no parameter group {name!r}{hint} (its groups: {groups})")
            chosen |= entries
        return frozenset(chosen)

    def _positive_index(self, name: str) -> str:
        """Return the name with a trailing negative index made non-negative (``blocks.-1``); other names unchanged."""
        parent, _, index = name.rpartition(".-")
        if not parent or not index.isdecimal():
            return name
        prefix = f"{parent}."
        numbers = {entry.removeprefix(prefix).split(".")[0] for entry in self.group_of if entry.startswith(prefix)}
        return f"{parent}.{sum(map(str.isdecimal, numbers)) - int(index)}"


@dataclass(frozen=True)
class Roles:
    """Owners of state entries: the federation (`shared`), one client (`personal`), a hypernetwork (`generated`)."""

    shared: frozenset[str]
    personal: frozenset[str]
    generated: frozenset[str]

    @classmethod
    def split(cls, groups: Groups, personal: Iterable[str], generated: Iterable[str] = ()) -> Roles:
        """Return roles by group names; a group that is both personal and generated is personal. Buffers in generated
        groups are shared, because a hypernetwork cannot learn entries without gradients."""
        personal = groups.select(personal)
        generated = (groups.select(generated) - personal) & groups.parameters
        return cls(frozenset(groups.group_of) - personal - generated, personal, generated)

    @property
    def all(self) -> frozenset[str]:
        """All entries that have an owner: all of the model but parameters that are never trained."""
        return self.shared | self.personal | self.generated

    def without(self, names: frozenset[str]) -> Roles:
        """Return the roles without these entries."""
        return Roles(self.shared - names, self.personal - names, self.generated - names)


def pick(tensors: Mapping[str, Tensor], names: Iterable[str]) -> Tensors:
    """Return the entries with the given names, in the order of `tensors`."""
    chosen = frozenset(names)
    return {name: tensor for name, tensor in tensors.items() if name in chosen}


def split(tensors: Mapping[str, Tensor], names: Collection[str]) -> tuple[Tensors, Tensors]:
    """Return two dicts: the entries with the given names (for example the trained ones), and all others."""
    return pick(tensors, names), {name: tensor for name, tensor in tensors.items() if name not in names}


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors with `prefix` before their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
