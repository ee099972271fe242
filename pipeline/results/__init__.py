"""``pfl keep``, ``pfl ledger``, ``pfl verify`` and ``pfl compare``: keep, list, train again and compare results."""
