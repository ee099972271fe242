"""Who owns which part of a model under a method, and what of it is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from pflcore.errors import UserError
from pflcore.groups import Groups, Roles
from pflcore.method import Method, name_of


def roles_of(method: Method, groups: Groups) -> Roles:
    """Return the method's roles, less what is fixed. Raises :class:`UserError` for a group that the backbone lacks."""
    with _naming_groups(method):
        return method.roles(groups).without(groups.fixed)


def groups_of(method: Method, groups: Groups) -> Groups:
    """Return the model's groups as the method trains them. Raises as :func:`roles_of`, and where it trains nothing."""
    wanted = method.trained()
    with _naming_groups(method):
        trained = groups.training(wanted) if wanted else groups
        resting = groups.select(method.untrained) if wanted else frozenset()
    if groups.parameters and not trained.parameters - resting:
        which = "parameters that its rounds train" if trained.parameters else "parameters"
        raise UserError(f"method {name_of(method)}: train_only: there are no {which} in {', '.join(wanted)}")
    return trained


@contextmanager
def _naming_groups(method: Method) -> Iterator[None]:
    """Say in an error which option or attribute of the method names the group."""
    try:
        yield
    except UserError as error:
        for name in ("personal", "generated", *(field_.name for field_ in fields(method))):
            value = getattr(method, name)
            if any(f"no parameter group {one!r}" in str(error) for one in (value if isinstance(value, tuple) else ())):
                raise UserError(f"method {name_of(method)}: {name}: {error}") from None
        raise
