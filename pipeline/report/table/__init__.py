"""The table: which cells it has, and what the runs of each have measured."""
