"""The spec language: from YAML to resolved runs and tables. Every error names a file, a line and an address."""
