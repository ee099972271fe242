"""``pfl results`` and ``pfl verify``: keeping what was obtained, looking at it, and training some of it again."""
