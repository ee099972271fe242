"""``pfl keep``, ``pfl ledger`` and ``pfl verify``: keeping results, looking at them, training some of them again."""
