"""Runs and tables become DVC's stage files, and what a stage makes sure of before and after its work."""
