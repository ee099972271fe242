"""No condition."""

from __future__ import annotations

from pflcore.conditions import CONDITIONS, Condition


@CONDITIONS.register
class Nothing(Condition):
    """All clients that are sampled train as they should, on the data that they hold."""

    citation = "what runs are trained under by default"
