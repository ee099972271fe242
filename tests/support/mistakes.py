"""What mistakes of users end in."""

import re

import pytest

from pflcore.errors import UserError


def line_of(call, *given, **named):
    """Return the message of the :class:`UserError` that a call raises; it is one line."""
    with pytest.raises(UserError) as error:
        call(*given, **named)
    assert "\n" not in str(error.value)
    return str(error.value)


def refuses(pattern, call, *given, **named):
    """Make sure that a call raises a :class:`UserError` whose only line has a pattern in it."""
    line = line_of(call, *given, **named)
    assert re.search(pattern, line), line
