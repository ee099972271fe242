"""What mistakes of users end in."""

import pytest

from pflcore.errors import UserError


def line_of(call, *given, **named):
    """Return the message of the :class:`UserError` that a call raises; it is one line."""
    with pytest.raises(UserError) as error:
        call(*given, **named)
    assert "\n" not in str(error.value)
    return str(error.value)
