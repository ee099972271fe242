"""The default condition, which changes nothing."""

from pflcore.conditions import CONDITIONS, Condition


@CONDITIONS.register
class Nothing(Condition):
    """No condition: all sampled clients train, on their own data, and send what they trained."""

    citation = "what runs are trained under by default"
