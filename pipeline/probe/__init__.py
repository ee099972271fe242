"""Probes of the engine: small runs whose numbers are recorded, and tell whether an edit changes any result."""
