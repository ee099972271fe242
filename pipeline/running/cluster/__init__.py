"""Executing training on the nodes of a Ray cluster."""
